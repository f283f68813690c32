"""What a call of a transformers model is given, and what it gives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from gattn.models.hugging_face import caches
from gattn.models.hugging_face.generating import Step, present_step
from gattn.models.hugging_face.media import Batch, generated_from

_WITH_CHOICES = ("MultipleChoice", "DoubleHeads")
"""What transformers calls models whose texts come with several choices each."""


class Given:
    """What a call of a model is given, by name, and what `generate` knows about it.

    Images that `generate` encodes before their texts belong to the texts in `generating`.
    """

    def __init__(self, model: nn.Module, named: Mapping[str, Any]) -> None:
        config = getattr(model, "config", None)
        has_decoder = bool(getattr(config, "is_encoder_decoder", False))
        self.step = present_step(model) if named else Step()
        self.generating = None if has_decoder or not named else generated_from(model)
        kinds = [one.__name__ for one in type(model).__mro__]
        self.has_choices = any(word in kind for kind in kinds for word in _WITH_CHOICES)
        """Whether its texts are choices, several for each row of the batch."""
        self.batch = Batch(named, config, self.generating, has_choices=self.has_choices)
        self.cache: Any = named.get("past_key_values")
        self.seen = 0 if self.cache is None else caches.length(self.cache)
        self.encoded = first_tensor(named.get("encoder_outputs")) if has_decoder else None
        """What an encoder gave before, which the call decodes."""
        self.encodes = has_decoder and self.encoded is None
        inputs = ("decoder_input_ids", "decoder_inputs_embeds")
        self.only_encodes = self.encodes and all(named.get(name) is None for name in inputs)
        self.kept_logits: Any = named.get("logits_to_keep")
        """How many of the last slots have logits, 0 for all, or which ones."""
        types = self.texts(named.get("token_type_ids"))
        self.token_types = types if isinstance(types, Tensor) and types.dim() == 2 else None
        self.lengths_beside = {
            x.shape[1]
            for name, x in named.items()
            if isinstance(x, Tensor)
            and x.dim() == 3
            and x.is_floating_point()
            and not name.endswith("inputs_embeds")
        }
        """The lengths of sequences that are no text, such as the regions of an image."""
        masks = {
            name: x
            for name, x in named.items()
            if name.endswith("attention_mask") and isinstance(x, Tensor)
        }
        self.has_own_mask = any(mask.dim() == 4 for mask in masks.values())
        self.padding = {name: mask.detach() != 0 for name, mask in masks.items()}
        if getattr(named.get("input_ids"), "ndim", 2) == 3:
            self.padding = {name: self.texts(mask) for name, mask in self.padding.items()}
        # Read here once for all layers; masks of pairs are no padding.
        self.padding = {name: mask.cpu() for name, mask in self.padding.items() if mask.dim() == 2}

    def texts(self, values: Any) -> Any:
        """Read multiple choice input, (texts, choices, tokens), as one text per choice."""
        is_nested = self.has_choices and isinstance(values, Tensor) and values.dim() == 3
        return values.flatten(0, 1) if is_nested else values


def arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Name a call's arguments."""
    if not args:
        return kwargs
    return {**dict(zip(_names(module.forward), args, strict=False)), **kwargs}


def _names(forward: Any) -> Sequence[str]:
    """Name what a forward takes; the code of a plain method says it sooner than its signature."""
    function = getattr(forward, "__func__", None)
    if isinstance(function, FunctionType) and not vars(function):
        code = function.__code__
        if not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            return code.co_varnames[1 : code.co_argcount]
    return list(inspect.signature(forward).parameters)


def first_tensor(outputs: Any) -> Tensor | None:
    """Find the first tensor of a model's outputs, such as an encoder's last hidden states."""
    some = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    first = some[0] if isinstance(some, (tuple, list)) and len(some) else some
    return first if isinstance(first, Tensor) and first.dim() > 1 else None


def repeated(rows: Tensor | None, count: int) -> Tensor | None:
    """Repeat what is known of sequences when a cache has several continuations of each."""
    if rows is None or len(rows) == count:
        return rows
    return None if count % len(rows) else rows.repeat_interleave(count // len(rows), dim=0)
