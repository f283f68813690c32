"""Refuses a backward pass that computes edited attention again where no edit reaches it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.utils._pytree import tree_leaves

from gattn.errors import EditError
from gattn.models.doors.functions.calling.custom_backward import arguments_around

_LATE = (
    "Gradient checkpointing, or an autograd function that runs a module, computes attention again "
    "in the backward pass, which would miss the edits: call backward() inside the context."
)
_LOST = (
    "Gradient checkpointing computes attention over listed edges, or of a layer of gattn, again in "
    "the backward pass, where no edit reaches it: run the model without checkpointing."
)


@dataclass(eq=False)
class Backward:
    """Whether the context of some edits is still open when gradients are taken.

    It `is_lost` to what the backward pass computes again, even then.
    """

    is_late: bool = False
    is_lost: bool = False

    def guard(self, result: Any) -> None:
        """Refuse gradients of what a model returned, if edits miss what is computed for them."""
        if not isinstance(result, (Tensor, tuple, list, dict)):
            result = vars(result) if hasattr(result, "__dict__") else result
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.grad_fn is not None:
                x.register_hook(self._check)

    def _check(self, gradient: Tensor) -> None:
        if self.is_lost:
            raise EditError(_LOST)
        if self.is_late:
            refuse()


def refuse() -> None:
    """Say that a backward pass would miss the edits."""
    raise EditError(_LATE)


def is_in_checkpoint() -> bool:
    """Return whether what calls this function will run again in the backward pass.

    `torch.utils.checkpoint` does so, and autograd functions that run a module.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    has_module = False
    for first, *_ in arguments_around():
        has_module |= isinstance(first, nn.Module)
        if has_module and (
            isinstance(first, FunctionCtx)
            or (isinstance(first, type) and issubclass(first, Function))
        ):
            return True
    return False
