"""The door to models that do not route their attention: the softmax of their scores.

Such a call has no queries and keys, only the scores, which take the place of the mask: they are
added to the scores of vectors of no dimension.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gattn.models.doors.attending import routes
from gattn.models.doors.proofs import check_kind
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.tracking import Tracker
from gattn.models.watch.contexts import present
from gattn.models.watch.taking_part import take_part

_SOFTMAXES: frozenset[Callable[..., Any]] = frozenset(
    (torch.softmax, torch.nn.functional.softmax, Tensor.softmax, torch.special.softmax)
)


_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


class SoftmaxMode(TorchFunctionMode):
    """Takes each softmax over the last of four dimensions inside a model as its attention.

    A mode belongs to no model: there is one per open context, and whichever comes first handles a
    softmax, so that contexts may close in any order.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let the open contexts take part in a softmax."""
        given = dict(kwargs or {})
        if func not in _SOFTMAXES or _is_inside.get():
            return func(*args, **given)
        token = _is_inside.set(True)
        try:
            return _seen(func(*args, **given), args, given)
        finally:
            _is_inside.reset(token)


def _seen(attention: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Let the open contexts take part, if a softmax is a model's attention."""
    scores = args[0] if args else given.get("input")
    dim = given.get("dim", args[1] if len(args) > 1 else None)
    trackers = [calls.tracker for calls, _ in present() if calls.depth]
    if not isinstance(scores, Tensor) or dim not in (-1, scores.dim() - 1) or not trackers:
        return attention
    module, tracker = _owner(trackers)
    if module is None or tracker is None or routes(tracker.model):
        return attention
    batch = tracker.given.batch.size
    if scores.dim() == 4:
        check_kind(tracker.model, module)
        return _take_part(module, scores, attention)
    if scores.dim() != 3 or batch is None or len(scores) % batch or len(scores) <= batch:
        return attention
    check_kind(tracker.model, module)
    split = (x.unflatten(0, (batch, -1)) for x in (scores, attention))
    return _take_part(module, *split).reshape(attention.shape)


def _owner(trackers: Sequence[Tracker]) -> tuple[nn.Module | None, Tracker | None]:
    """Find the module that computes the softmax: the innermost that is not just a softmax."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and not isinstance(module, nn.Softmax):
            for tracker in trackers:
                if tracker.modules.owns(module):
                    return module, tracker
        frame = frame.f_back
    return None, None


def _take_part(module: nn.Module, scores: Tensor, attention: Tensor) -> Tensor:
    batch, heads, queries, keys = scores.shape
    query = scores.new_zeros(batch, heads, queries, 0)
    key = scores.new_zeros(batch, heads, keys, 0)
    call = take_part(
        module,
        scores,
        lambda name: SeenCall(
            name, module, query, key, key, query.transpose(1, 2), attention, scores, is_scores=True
        ),
    )
    if call is None:
        return attention
    assert call.weights is not None
    return call.weights
