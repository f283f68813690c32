"""The proofs of models that do not route their attention: which softmaxes are attention."""

from __future__ import annotations

from typing import NoReturn
from weakref import WeakKeyDictionary

from torch import nn

from gattn.errors import CaptureError

Kinds = set[type[nn.Module]]
proved_kinds: WeakKeyDictionary[nn.Module, str | Kinds] = WeakKeyDictionary()
"""By model: the types of modules whose softmax is attention, or why it is refused."""


def check_kind(model: nn.Module, module: nn.Module) -> None:
    """Refuse the softmax of a type of module that did not run in the proof of its model."""
    kinds = proved_kinds.get(model)
    if isinstance(kinds, set) and type(module) not in kinds:
        refuse(
            model,
            f"the softmax of a {type(module).__name__} did not run on the small input that proved "
            "the others",
        )


def refuse(model: nn.Module, reason: str) -> NoReturn:
    """Refuse a model."""
    chosen = getattr(model.config, "_attn_implementation", None)
    hint = (
        f" It runs the attention implementation {chosen!r}, which may compute no softmax that can "
        'be seen: load the model with attn_implementation="eager".'
    )
    raise CaptureError(
        f"{type(model).__name__} does not route its attention through transformers' attention "
        f"interface, and {reason}. It is refused, since what gattn would show could be wrong."
        + (hint if chosen not in (None, "eager") and not model.training else "")
    )
