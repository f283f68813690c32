"""Refuses gradients through a user's own autograd function whose attention was edited."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


def refuse_gradients(name: str, takes_gradients: bool) -> None:
    """Let the backward pass of an autograd function whose forward runs raise an EditError.

    Where its forward is given no context, it is refused at once if gradients are taken of it. A
    function that runs a module that attends is a checkpoint (see `checkpoints`).
    """
    context: Any = None
    for given in arguments_around():
        first = given[0]
        if isinstance(first, nn.Module):
            return
        if isinstance(first, FunctionCtx):
            context = first
        if isinstance(first, type) and issubclass(first, Function):
            says = _SAYS.format(name, first.__name__)
            some = [x for x in given[-1] if isinstance(x, Tensor) and x.requires_grad]
            if context is not None:
                context.register_prehook(partial(_raise, says))
            elif any(takes_gradients or not x.is_leaf for x in some):
                raise EditError(says)
            return


def arguments_around() -> Iterator[list[Any]]:
    """Walk the frames that run, the innermost first: the first two arguments of each that has any.

    `Function.apply` has its class first, a forward its context, and a module itself.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if names := frame.f_code.co_varnames[:2]:
            held = frame.f_locals  # Made anew each time it is asked for.
            yield [held.get(one) for one in names]
        frame = frame.f_back


def _raise(says: str, *_: Any) -> None:
    raise EditError(says)
