"""Sees the attention of models that do not route it: the softmax of their scores.

Such a call has no queries and keys, but the scores themselves, which here are the mask: what is
added to the scores of vectors without any numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gattn.models.masks import SCORES
from gattn.models.routing import RoutedCall, take_part
from gattn.models.tracking import Tracker

_SOFTMAXES: frozenset[Callable[..., Any]] = frozenset(
    (torch.softmax, torch.nn.functional.softmax, Tensor.softmax, torch.special.softmax)
)


class SoftmaxMode(TorchFunctionMode):
    """Takes each softmax over the last of four dimensions inside a model as its attention."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = tracker
        self._is_inside = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let the open contexts take part in a softmax."""
        given = dict(kwargs or {})
        result = func(*args, **given)
        if func not in _SOFTMAXES or self._is_inside or not self._tracker.is_calling:
            return result
        scores = args[0] if args else given.get("input")
        module = self._module()
        if module is None or not self._is_attention(scores, given, args):
            return result
        assert isinstance(scores, Tensor)
        self._is_inside = True
        try:
            return self._take_part(module, scores, result)
        finally:
            self._is_inside = False

    def _is_attention(self, scores: Any, given: Mapping[str, Any], args: tuple[Any, ...]) -> bool:
        dim = given.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(scores, Tensor) or dim not in (-1, scores.dim() - 1):
            return False
        if scores.dim() == 3:
            batch = self._tracker.batch
            return batch is not None and len(scores) % batch == 0 and len(scores) > batch
        return scores.dim() == 4

    def _module(self) -> nn.Module | None:
        """Find the module that computes the softmax: the innermost that is more than a softmax."""
        frame = sys._getframe(2)
        while frame is not None:
            module = frame.f_locals.get("self")
            if (
                isinstance(module, nn.Module)
                and not isinstance(module, nn.Softmax)
                and self._tracker.owns(module)
            ):
                return module
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _take_part(self, module: nn.Module, scores: Tensor, attention: Tensor) -> Tensor:
        shape = attention.shape
        if scores.dim() == 3:
            assert self._tracker.batch is not None
            scores, attention = (
                x.unflatten(0, (self._tracker.batch, -1)) for x in (scores, attention)
            )
        batch, heads, queries, keys = scores.shape
        query = scores.new_zeros(batch, heads, queries, 0)
        key = scores.new_zeros(batch, heads, keys, 0)
        output = query.transpose(1, 2)
        call = RoutedCall("", module, SCORES, query, key, key, scores, {}, output, attention)
        take_part(call)
        assert call.weights is not None
        return call.weights.reshape(shape)
