"""Refuses gradients through a user's own autograd function whose attention was edited."""

from __future__ import annotations

import sys
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from gattn.errors import EditError

_SAYS = (
    "{} attends inside the autograd function {}, whose own backward knows nothing of edits, so "
    "gradients through it would be those of another function. Write it without a backward of its "
    "own, or take no gradients (torch.no_grad())."
)


def refuse_gradients(name: str) -> None:
    """Let the backward pass of an autograd function whose forward runs raise an EditError.

    Where its forward is given no context, it is refused at once if gradients are taken of it.
    """
    frame: FrameType | None = sys._getframe(1)
    context: Any = None
    while frame is not None:
        given = [frame.f_locals.get(one) for one in frame.f_code.co_varnames[:2]]
        first = given[0] if given else None
        if isinstance(first, nn.Module):
            return
        if isinstance(first, FunctionCtx):
            context = first
        if isinstance(first, type) and issubclass(first, Function):
            _refuse(_SAYS.format(name, first.__name__), context, given[-1])
            return
        frame = frame.f_back


def _refuse(says: str, context: Any, given: Any) -> None:
    if context is not None:
        context.register_prehook(partial(_raise, says))
    elif any(isinstance(x, Tensor) and x.requires_grad and not x.is_leaf for x in given):
        raise EditError(says)


def _raise(says: str, *_: Any) -> None:
    raise EditError(says)
