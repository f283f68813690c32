"""The mode that shows torch's functions to the doors, while a model with such attention runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from gattn.models.doors.functions import flex, scaled_dot_product
from gattn.models.doors.functions.calling import multihead, reopened
from gattn.models.doors.functions.calling.handling import handling
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.softmaxes import beside, ranks, softmax
from gattn.models.doors.functions.softmaxes.follow.following import softmaxes
from gattn.models.doors.functions.softmaxes.follow.known import Following
from gattn.models.doors.functions.softmaxes.ranks import RANKS
from gattn.models.doors.functions.softmaxes.written import BEGINNINGS
from gattn.models.watch.inside import inside, is_inside

Door = Callable[[TorchFunctionMode, Any, tuple[Any, ...], Mapping[str, Any]], Any]

Watch = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], Any]
watches: dict[Following[Any], Watch] = {beside.observers: beside.see}
"""What is shown each function that ran, with what it gave, while something is followed: returns
what the model gets."""
starts: dict[Any, Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]] = {}
"""What is shown each run of one of the functions with which written softmaxes begin."""

_F = nn.functional


def _of_owner(see: Callable[..., Any]) -> Door:
    """Make a door of what shows a kernel: only a watched model's own are shown."""

    def door(
        mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        module = owner()
        if module is None:
            return func(*args, **kwargs)
        with inside():
            return see(module, func, args, kwargs)

    return door


_DOORS: dict[Any, Door] = {
    _F.scaled_dot_product_attention: _of_owner(scaled_dot_product.see),
    _F.multi_head_attention_forward: multihead.see,
    flex_attention: _of_owner(flex.see),
    torch.softmax: softmax.see,
    _F.softmax: softmax.see,
    Tensor.softmax: softmax.see,
    torch.special.softmax: softmax.see,
    _F.gumbel_softmax: reopened.see,
    _F.softmin: reopened.see,
    Tensor.backward: reopened.backward,
    torch.autograd.backward: reopened.see,
    torch.autograd.grad: reopened.see,
}
_LOOKED_AT = frozenset((*_DOORS, *BEGINNINGS, *RANKS))


class FunctionMode(TorchFunctionMode):
    """Shows the functions of a thread to the doors.

    A mode belongs to no model: there is one per open context, and whichever comes first handles a
    call, so that contexts may close in any order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._followed = [following.known for following in (softmaxes, *watches)]
        """What is followed in this thread: nothing else is looked at of most functions."""

    def __exit__(self, *error: Any) -> None:
        """Let go of what was only kept to be compared."""
        ranks.forget()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let a door see a function, if there is one for it, or what it takes is followed."""
        given = kwargs or {}
        if not (func in _LOOKED_AT or any(self._followed)) or is_inside():
            return func(*args, **given)
        with handling():
            return self._handled(func, args, given)

    def _handled(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> Any:
        if (door := _DOORS.get(func)) is not None:
            return door(self, func, args, given)
        if func in RANKS:
            ranks.note(args, given)
        begin = BEGINNINGS.get(func)
        finish = None if begin is None else begin(args, given)
        follow = softmax.follow if softmaxes.known else _run
        result = follow(func, args, given)
        if finish is not None:
            finish(result)
        for of, watch in watches.items():
            if of.known:
                result = watch(func, args, given, result)
        if (start := starts.get(func)) is not None:
            start(func, args, given, result)
        return result


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


@contextmanager
def paused() -> Iterator[None]:
    """Leave the modes of this thread that are innermost for a while: gattn's own functions run."""
    left: list[TorchFunctionMode] = []
    while (stack := _get_current_function_mode_stack()) and isinstance(stack[-1], FunctionMode):
        left.append(_pop_mode())
    try:
        yield
    finally:
        for mode in reversed(left):
            _push_mode(mode)
