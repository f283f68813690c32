"""The input of a run: one sequence or a batch, encoded once and run as often as needed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.load.encoding import Encoding, Inputs, encode, is_text, pad
from gattn.models.load.limits import text_config
from gattn.models.load.loading import input_device
from gattn.models.load.token_texts import names_of_run
from gattn.models.load.training import refuse_training
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.names.misnamed import other_grid
from gattn.models.run.names.naming import Naming
from gattn.models.run.opening import opened
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gattn.models.read.track.tracking import Tracker

_MOST_COPIES = 256


class Prompt:
    """Sequences as a model takes them.

    `tensors` are the model's arguments by name; `encodings` the sequences, if they are texts or
    token ids.
    """

    naming = Naming()
    """The tokens' texts, or their grid, as the user gives them."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        tensors: Mapping[str, Any],
        encodings: list[Encoding] | None = None,
    ) -> None:
        refuse_training(model)
        self.model, self.tokenizer = model, tokenizer
        self.tensors, self.encodings = tensors, encodings

    @classmethod
    def of(
        cls, inputs: Inputs, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
    ) -> Prompt:
        """Prepare one text, or whatever else `gattn.capture` takes."""
        if is_text(inputs):
            return cls.batch([encode(inputs, model, tokenizer)], model, tokenizer)
        given = cast("Mapping[str, Any]", inputs)
        return cls(model, tokenizer, {name: x for name, x in given.items() if x is not None})

    @classmethod
    def batch(
        cls,
        encodings: list[Encoding],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> Prompt:
        """Join sequences that have the same tensors into one batch, with padding."""
        if model.config.is_encoder_decoder and not all(e.decoder_tokens for e in encodings):
            raise CaptureError(
                f"{type(model).__name__} has an encoder and a decoder: pass a mapping with "
                "input_ids and decoder_input_ids."
            )
        padding = getattr(tokenizer, "pad_token_id", None) or 0
        return cls(model, tokenizer, pad(encodings, padding), encodings)

    @property
    def encoding(self) -> Encoding | None:
        """The first sequence, if it is a text or token ids."""
        return self.encodings[0] if self.encodings else None

    @property
    def repeats(self) -> bool:
        """Whether the batch is the first axis of all tensors, so that copies can run together."""
        tensors = (x for x in self.tensors.values() if isinstance(x, Tensor))
        return all(x.dim() > 1 and len(x) == 1 for x in tensors)

    @property
    def few_logits(self) -> dict[str, int]:
        """The model's argument for the logits of one token alone, if it has one.

        All logits may take as long as several layers, and as much memory as no layer.
        """
        takes = inspect.signature(self.model.forward).parameters
        return {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def run(self, context: Context, copies: int = 1, **settings: Any) -> tuple[Any, Tracker]:
        """Run the model once, in a context, on `copies` of each sequence.

        `settings` are further arguments of the model. Returns the model's output, and the tracker
        of the call.
        """
        if hasattr(self.model.config, "use_cache"):
            settings = {"use_cache": False, **settings}
        device = input_device(self.model)
        given = {**settings, **self.tensors}
        for name, values in given.items():
            if isinstance(values, Tensor):
                there = values.to(device)
                is_copied = copies > 1 and name in self.tensors
                given[name] = there.repeat_interleave(copies, dim=0) if is_copied else there
        if self.encodings is not None:
            context.encodings = [one for one in self.encodings for _ in range(copies)]
        with opened(self.model, context) as calls:
            return self.model(**given), calls.last

    def texts(
        self, call: SeenCall, place: Place, ids: Sequence[int] | None, count: int
    ) -> tuple[str, ...]:
        """Name the `count` tokens of a call, or number them.

        The user's names come first, then those of a text or of `ids`, then those of patches.
        """
        if not call.is_named:
            return tuple(map(str, range(count)))
        if (given := self.naming.of(place.stack).get("key")) is not None:
            return tuple(self.naming.fitted(given, place.stack, count, call.tokens))
        names: Sequence[str] = ()
        if self.encoding is not None:
            names = self.encoding.names(place.stack)["tokens"]
        elif ids is not None:
            names = names_of_run(ids, self.tokenizer)
        if len(names) != count:
            sizes, grid = {"key": count}, self.naming.grid
            grids = self.naming.grids(
                call.tokens, sizes, place.stack, is_bipartite=place.is_bipartite
            )
            if grid is not None and not grids:
                raise CaptureError(f"{other_grid(grid, place.stack, count)}.")
            names = grids["key"].names() if grids else list(map(str, range(count)))
        return tuple(names)

    def most_copies(self, tokens: int, logits: int, memory: int) -> int:
        """Estimate how many copies fit in `memory` bytes, or in half of a GPU's free memory.

        A copy has so many tokens, and the model gives `logits` rows of logits for it.
        """
        config, device = text_config(self.model.config), input_device(self.model)
        # Logits and their softmax, a layer's features, and its attention where it is all computed.
        numbers = (
            2 * logits * (getattr(config, "vocab_size", None) or 1)
            + 20 * tokens * (getattr(config, "hidden_size", None) or 1024)
            + 3 * tokens**2 * (getattr(config, "num_attention_heads", None) or 16)
        )
        if device.type == "cuda":
            memory = torch.cuda.mem_get_info(device)[0] // 2
        return min(max(memory // (4 * numbers), 1), _MOST_COPIES)
