"""The door to torch-geometric's DenseGATConv, which attends along another dimension than others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gattn.models.read.seen_call import SeenCall
from gattn.models.watch.contexts import present
from gattn.models.watch.taking_part import take_part

_HOME = "torch_geometric.nn.dense.dense_gat_conv"
_KEYS = 2
"""The dimension of keys among scores (graphs, queries, keys, heads)."""

_originals: list[tuple[Any, Callable[..., Tensor]]] = []


def watch() -> None:
    """Wrap its forward, if torch-geometric is loaded."""
    home = sys.modules.get(_HOME)
    if home is not None:
        kind = home.DenseGATConv
        _originals.append((kind, kind.forward))
        kind.forward = _watched(kind.forward)


def leave() -> None:
    """Put it back."""
    while _originals:
        kind, forward = _originals.pop()
        kind.forward = forward


def _watched(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(forward)
    def watched(conv: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        if not any(calls.depth and calls.owns(conv) for calls, _ in present()):
            return forward(conv, *args, **kwargs)
        with _Softmax(conv):
            return forward(conv, *args, **kwargs)

    return watched


class _Softmax(TorchFunctionMode):
    """Takes the softmax over keys as the attention of a module."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self._conv = conv

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        result = func(*args, **given)
        if func != Tensor.softmax or args[0].dim() != 4 or given.get("dim") != _KEYS:
            return result
        scores, attention = (x.permute(0, 3, 1, 2) for x in (args[0], result))
        call = take_part(self._conv, scores, lambda name: self._call(name, scores, attention))
        if call is None or call.weights is attention:
            return result
        assert call.weights is not None
        return call.weights.permute(0, 2, 3, 1)

    def _call(self, name: str, scores: Tensor, attention: Tensor) -> SeenCall:
        batch, heads, queries, keys = scores.shape
        query = scores.new_zeros(batch, heads, queries, 0)
        key = scores.new_zeros(batch, heads, keys, 0)
        tensors = query, key, key, query.transpose(1, 2), attention, scores
        return SeenCall(name or type(self._conv).__name__, self._conv, *tensors, is_scores=True)
