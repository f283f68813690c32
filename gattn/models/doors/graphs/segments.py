"""The door to torch-geometric: its softmax over segments, wherever a module has imported it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.doors.graphs.ends import NotNeighboursError, find_ends, owner_of, plain
from gattn.models.doors.graphs.putting_back import put_back
from gattn.models.read.on_graphs.readings import read_edges
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import present
from gattn.models.watch.taking_part import take_part

_HOME = "torch_geometric.utils._softmax"

_wrapped: list[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = []


def watch() -> None:
    """Wrap the softmax in every module that has it, if torch-geometric is loaded."""
    home = sys.modules.get(_HOME)
    if home is None:
        return
    original: Callable[..., Tensor] = home.softmax
    wrapper = _watched(original)
    _wrapped.append((original, wrapper))
    _replace(original, wrapper)


def leave() -> None:
    """Put it back, also in modules that were imported meanwhile."""
    while _wrapped:
        original, wrapper = _wrapped.pop()
        _replace(wrapper, original)


def _replace(old: object, new: object) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if value is old:
                    names[name] = new


def _watched(softmax: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(softmax)
    def watched(
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        attention = softmax(src, index, ptr, num_nodes, dim)
        running = [calls for calls, _ in present() if calls.depth]
        if not running:
            return attention
        return _seen(running, src, attention, index, ptr, num_nodes, dim)

    return watched


def _seen(
    running: Sequence[Calls],
    src: Tensor,
    attention: Tensor,
    index: Tensor | None,
    ptr: Tensor | None,
    num_nodes: int | None,
    dim: int,
) -> Tensor:
    """Let the open contexts take part, if a softmax is a model's attention."""
    frame = sys._getframe(2)
    owner = owner_of(frame, running)
    if owner is None:
        return attention
    if num_nodes is None and ptr is not None:
        num_nodes = len(ptr) - 1
    try:
        ends = find_ends(frame, _segments(index, ptr), num_nodes)
        if ends is None:
            return attention
        scores, given = _by_edge(src, dim), _by_edge(attention, dim)
    except NotNeighboursError as error:
        raise CaptureError(
            f"The attention of {type(owner).__name__} cannot be read: {error}."
        ) from error
    module = ends.module if any(calls.owns(ends.module) for calls in running) else owner
    call = take_part(
        module,
        src,
        lambda name: SeenEdges.of(name, replace(ends, module=module), scores, given),
        read=lambda call, place, tracker, edits: read_edges(call, place, edits),
        apply=put_back,
    )
    if call is None or call.attention is given:
        return attention
    return call.attention.reshape(attention.movedim(dim, 0).shape).movedim(0, dim)


def _segments(index: Tensor | None, ptr: Tensor | None) -> Tensor:
    """Say which node each score belongs to."""
    if index is not None:
        return plain(index)
    assert ptr is not None  # or the softmax itself would have raised
    return torch.repeat_interleave(ptr.diff())


def _by_edge(values: Tensor, dim: int) -> Tensor:
    """Bring values to (edges, heads)."""
    dim = dim % values.dim()
    if math.prod(values.shape[:dim]) != 1:
        raise NotNeighboursError(
            f"its scores {tuple(values.shape)} belong to several graphs with the same edges: call "
            "the model with one graph at a time, or with a disjoint union"
        )
    moved = values.movedim(dim, 0)
    return moved.flatten(1) if moved.dim() > 1 else moved[:, None]
