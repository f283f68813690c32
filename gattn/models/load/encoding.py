"""Turns a text or token ids into a model's inputs, and names the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gattn.errors import CaptureError, ModelError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.models.load.limits import check_ids, check_length, check_takes_text, longest
from gattn.models.load.token_texts import Words, names_of, trimmed, warn_of_unknown, words_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Inputs: TypeAlias = "str | Sequence[int] | Tensor | Mapping[str, Any]"


@dataclass(frozen=True)
class Encoding:
    """One sequence as a model takes it, without a batch axis.

    `tensors` holds ``input_ids`` (tokens,) and whatever else the tokenizer gives per token.
    """

    tensors: dict[str, Tensor]
    tokens: tuple[str, ...]
    words: Words = ()
    decoder_tokens: tuple[str, ...] = ()
    text: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_pairs(self) -> int:
        """How many pairs of tokens a head of a layer has at most, in all stacks together."""
        return len(self) ** 2 + len(self.decoder_tokens) * (len(self) + len(self.decoder_tokens))

    @property
    def segments(self) -> tuple[int, ...]:
        """The token type of each token, if there are several."""
        types = self.tensors.get("token_type_ids")
        found = () if types is None or types.dim() != 1 else tuple(map(int, types.tolist()))
        return found if len(set(found)) > 1 else ()

    def names(self, stack: str) -> dict[str, Any]:
        """Name the nodes of a stack's attention graphs."""
        if stack == "cross":
            return {"tokens": self.tokens, "query_tokens": self.decoder_tokens}
        if stack == "decoder" and self.decoder_tokens:
            return {"tokens": self.decoder_tokens}
        return {"tokens": self.tokens, "words": self.words, "segments": self.segments}


def is_text(inputs: Inputs) -> bool:
    """Return whether inputs are a text or tokens, rather than images, sounds or all together."""
    if isinstance(inputs, (AttentionTrace, Stack, AttentionGraph)):
        raise CaptureError(
            f"This runs a model on a text, but {type(inputs).__name__} is the result of such a "
            "run: pass the text that it was captured from."
        )
    if not isinstance(inputs, Mapping):
        return True
    if texts := [name for name, value in inputs.items() if _holds_text(value)]:
        raise CaptureError(
            f"A mapping holds what a tokenizer or processor gives, such as input_ids; here "
            f"{texts[0]!r} holds text: pass the text itself, as in gattn.capture(text)."
        )
    if not inputs:
        raise CaptureError("The mapping is empty: pass a text, or what a tokenizer gives.")
    floats = [n for n, x in inputs.items() if isinstance(x, Tensor) and x.is_floating_point()]
    return "input_ids" in inputs and not floats


def _holds_text(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_text, value))
    return isinstance(value, (str, bytes))


def encode(
    inputs: Inputs, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> Encoding:
    """Encode one text, one sequence of token ids, or one mapping of tensors."""
    check_takes_text(model)
    limit = longest(model)
    if isinstance(inputs, str):
        encoding = _encode_text(inputs, tokenizer, limit)
    elif isinstance(inputs, Mapping):
        encoding = _encode_mapping(inputs, tokenizer)
    else:
        encoding = _encode_ids(_as_ids(inputs), {}, tokenizer)
    if not encoding.words:
        ids = encoding.tensors["input_ids"].tolist()
        encoding = replace(encoding, words=words_of(ids, tokenizer))
    if not len(encoding):
        raise CaptureError("The text is empty: expected at least one token.")
    for name in ("input_ids", "decoder_input_ids"):
        if name in encoding.tensors:
            check_ids(name, encoding.tensors[name], model, limit)
            warn_of_unknown(encoding.tensors[name].tolist(), tokenizer)
    return encoding


def _encode_text(
    text: str, tokenizer: PreTrainedTokenizerBase | None, limit: int | None
) -> Encoding:
    if not text:
        raise CaptureError("The text is empty: expected at least one token.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CaptureError(
            f"The text is not valid Unicode at character {error.start}, {text[error.start]!r}: "
            "expected text that encodes as UTF-8."
        ) from error
    if tokenizer is None:
        raise ModelError("A text needs a tokenizer: pass tokenizer=, or token ids.")
    if limit is not None:
        check_length(text, tokenizer, limit)
    found = tokenizer(text, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    ids: list[int] = found["input_ids"]
    tensors = {
        name: torch.tensor(found[name], device="cpu")
        for name in tokenizer.model_input_names
        if name in found and len(found[name]) == len(ids)
    }
    tensors["input_ids"] = torch.tensor(ids, dtype=torch.long, device="cpu")
    if not tokenizer.is_fast:
        return Encoding(tensors, names_of(ids, tokenizer), text=text)
    texts = _slices(text, found["offset_mapping"])
    unknown = [n for n, one in enumerate(texts) if one is None]
    names = iter(names_of([ids[n] for n in unknown], tokenizer))
    named = tuple(next(names) if one is None else one for one in texts)
    return Encoding(tensors, named, tuple(found.word_ids(0)), text=text)


_MANY = "; gattn.capture_many takes several texts"


def _slices(text: str, spans: Sequence[tuple[int, int]]) -> list[str | None]:
    """Take each token's text from the text itself; None where tokens share a character."""
    texts = []
    for i, (start, stop) in enumerate(spans):
        shares = (i > 0 and start < spans[i - 1][1]) or (
            i + 1 < len(spans) and spans[i + 1][0] < stop and spans[i + 1][1] > 0
        )
        texts.append(None if shares or stop <= start else trimmed(text[start:stop]))
    return texts


def _encode_mapping(
    inputs: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None
) -> Encoding:
    if "input_ids" not in inputs:
        raise CaptureError(f"Expected inputs with 'input_ids', got {sorted(inputs)}.")
    tensors = {name: _as_ids(values) for name, values in inputs.items()}
    ids = tensors.pop("input_ids")
    batched = ids.dim() == 2
    if batched and len(ids) != 1:
        raise CaptureError(
            f"Expected one sequence, got a batch of {len(ids)}; capture_many takes several."
        )
    for name, values in tensors.items():
        if values.dim() < ids.dim() or (batched and len(values) != 1):
            raise CaptureError(
                f"{name!r} must be a tensor with the same batch as input_ids {tuple(ids.shape)}, "
                f"not {inputs[name]!r:.60}; settings of the model do not belong here."
            )
    rest = {name: values[0] if batched else values for name, values in tensors.items()}
    decoder = {name: rest.pop(name) for name in list(rest) if name.startswith("decoder_")}
    words = _told_words(inputs, ids.reshape(-1).tolist(), rest.get("attention_mask"))
    encoding = replace(_encode_ids(ids, rest, tokenizer), words=words)
    if "decoder_input_ids" not in decoder:
        return encoding
    decoder_ids = decoder["decoder_input_ids"]
    decoder_ids = decoder_ids[_real_tokens(decoder_ids, decoder.get("decoder_attention_mask"))]
    return replace(
        encoding,
        tensors={**encoding.tensors, "decoder_input_ids": decoder_ids.long()},
        decoder_tokens=names_of(decoder_ids.tolist(), tokenizer),
    )


def _told_words(inputs: Mapping[str, Any], ids: list[int], mask: Tensor | None) -> Words:
    """Take the words that a tokenizer's output knows, if its ids are unchanged."""
    known = getattr(inputs, "encodings", None)
    if not known or known[0].ids != ids:
        return ()
    is_real = [True] * len(ids) if mask is None else mask.tolist()
    return tuple(word for word, real in zip(known[0].word_ids, is_real, strict=True) if real)


def _as_ids(values: Any) -> Tensor:
    try:
        ids = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise CaptureError(
            "Expected a text, token ids or a mapping of numbers, one per token, not "
            f"{type(values).__name__} {values!r:.60}{_several(values)}."
        ) from error
    return ids if ids.numel() else ids.long()


def _several(values: Any) -> str:
    """Say what takes several texts, if that is what was given."""
    is_list = isinstance(values, (list, tuple)) or hasattr(values, "tolist")
    return _MANY if is_list and any(isinstance(one, str) for one in values) else ""


def _real_tokens(ids: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.shape != ids.shape:
        raise CaptureError(
            f"The attention mask must have one entry per token, {tuple(ids.shape)}, not "
            f"{tuple(mask.shape)}."
        )
    return mask.bool()


def _encode_ids(
    ids: Tensor, rest: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase | None
) -> Encoding:
    ids = ids[0] if ids.dim() == 2 and len(ids) == 1 else ids
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise CaptureError(
            "Expected a text, or one sequence of whole token ids, got "
            f"{f'{ids.item()}' if ids.dim() == 0 else f'{ids.dtype} {tuple(ids.shape)}'}"
            f"{_MANY if ids.dim() == 2 else ''}."
        )
    real = _real_tokens(ids, rest.pop("attention_mask", None))
    tensors = {
        name: values[real] if values.shape[:1] == ids.shape else values
        for name, values in rest.items()
    }
    ids = ids[real].long()
    return Encoding({"input_ids": ids, **tensors}, names_of(ids.tolist(), tokenizer))


def room_after(encoding: Encoding, model: PreTrainedModel) -> int | None:
    """Return how many more tokens a model takes after these; None if it does not say."""
    limit = longest(model)
    return None if limit is None else max(0, limit - len(encoding))


def pad(encodings: Sequence[Encoding], padding_id: int) -> dict[str, Tensor]:
    """Join sequences with the same tensors into one batch, padded on the right, with its mask."""
    batch = {
        name: torch.nn.utils.rnn.pad_sequence(
            [encoding.tensors[name] for encoding in encodings],
            batch_first=True,
            padding_value=padding_id if name.endswith("input_ids") else 0,
        )
        for name in sorted(encodings[0].tensors)
    }
    batch["attention_mask"] = _real([len(encoding) for encoding in encodings])
    if "decoder_input_ids" in batch:
        batch["decoder_attention_mask"] = _real([len(e.decoder_tokens) for e in encodings])
    return batch


def _real(lengths: Sequence[int]) -> Tensor:
    return (
        torch.arange(max(lengths), device="cpu") < torch.tensor(lengths, device="cpu")[:, None]
    ).long()
