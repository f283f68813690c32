"""What a model takes: whether text, which ids, and how many tokens."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gattn.checks import warn
from gattn.errors import CaptureError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_FIRST_CHARACTERS = 16


def check_takes_text(model: PreTrainedModel) -> None:
    """Refuse a model that takes something else than tokens."""
    main = getattr(model, "main_input_name", "input_ids")
    parameters = inspect.signature(model.forward).parameters
    if main in parameters and "input_ids" not in parameters:
        raise ModelError(
            f"{type(model).__name__} takes {main} instead of tokens: pass a mapping with {main!r}, "
            "such as its processor returns."
        )


def check_ids(name: str, ids: Tensor, model: PreTrainedModel, limit: int | None) -> None:
    """Refuse more tokens than a model takes, and ids that it does not have."""
    if limit is not None and len(ids) > limit:
        raise CaptureError(
            f"The text has {len(ids)} tokens, but the model takes at most {limit}; shorten or "
            "split it."
        )
    known = _number_of_tokens(model)
    if known is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise CaptureError(
            f"{name} runs from {int(ids.min())} to {int(ids.max())}, but the model's tokens are "
            f"0 .. {known - 1}; use the tokenizer that belongs to the model."
        )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Warn of a tokenizer that has more tokens than its model, tokens that were added left out."""
    known = _number_of_tokens(model)
    if known is not None and tokenizer.vocab_size > known:
        warn(
            f"The tokenizer has {tokenizer.vocab_size:,} tokens, and the {type(model).__name__} "
            f"only {known:,}: it is probably that of another model, and names of tokens are wrong. "
            "Pass the tokenizer that belongs to the model."
        )


def _number_of_tokens(model: PreTrainedModel) -> int | None:
    """Return how many ids a model takes, if one table says so."""
    if not hasattr(model, "get_input_embeddings"):
        return None
    try:
        table: nn.Module | None = model.get_input_embeddings()
    except NotImplementedError:  # Some models hash their tokens, or have several tables.
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def check_length(text: str, tokenizer: PreTrainedTokenizerBase, limit: int) -> None:
    """Refuse a text far longer than the limit by its beginning: all of it takes long to tokenize.

    Twice the limit is certain enough, however the last word would have continued.
    """
    size = _FIRST_CHARACTERS * limit
    while size < len(text):
        count = len(tokenizer(text[:size], add_special_tokens=False, verbose=False)["input_ids"])
        if count > 2 * limit:
            raise CaptureError(
                f"The text has {len(text):,} characters, and the first {size:,} are {count:,} "
                f"tokens already, but the model takes at most {limit}; shorten or split it."
            )
        size *= 2


def longest(model: PreTrainedModel) -> int | None:
    """Return how many tokens a model takes; None if it does not say."""
    size = getattr(text_config(model.config), "max_position_embeddings", None)
    limit = size if isinstance(size, int) and size > 0 else None
    for name, table in model.named_modules():
        # RoBERTa and similar models count positions from after the padding's.
        is_table = name.endswith("embeddings.position_embeddings")
        if is_table and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            limit = table.num_embeddings - table.padding_idx - 1
    return limit


def text_config(config: Any) -> Any:
    """Return the configuration of the texts that a model is given.

    MusicGen, for example, has one of its text encoder and one of its decoder.
    """
    try:
        return config.get_text_config()
    except ValueError:  # There are several.
        return config.get_text_config(encoder=True)
