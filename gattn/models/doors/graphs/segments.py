"""The door to torch-geometric: its softmax over segments, whoever calls it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.doors.functions.mode import paused
from gattn.models.doors.graphs.ends import find_ends
from gattn.models.doors.graphs.frames import numbers_of, owner_of, plain
from gattn.models.doors.graphs.indices import NotNeighboursError
from gattn.models.doors.graphs.landed import Wanted
from gattn.models.doors.graphs.landing import Travel, follow
from gattn.models.doors.graphs.observing import observer
from gattn.models.doors.graphs.putting_back import put_back
from gattn.models.read.on_graphs.readings import read_edges
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.track.runs import runs
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import present
from gattn.models.watch.inside import inside
from gattn.models.watch.taking_part import take_part

_TAKES = ("src", "index", "ptr", "num_nodes", "dim")

_plain: list[FunctionType] = []
_watched_now: list[tuple[FunctionType, CodeType]] = []


def watch() -> None:
    """Let torch-geometric's softmax run the code of `_softmax`, if it is loaded.

    The function stays the same object: whoever holds it, in a namespace, a closure or a class,
    calls what is seen.
    """
    softmax = getattr(sys.modules.get("torch_geometric.utils"), "softmax", None)
    if _watched_now or not isinstance(softmax, FunctionType):
        return
    code = softmax.__code__
    if code.co_varnames[: code.co_argcount] == _TAKES and not code.co_freevars:
        names = softmax.__globals__, softmax.__name__, softmax.__defaults__
        _plain[:] = [FunctionType(code, *names)]
        _watched_now.append((softmax, code))
        softmax.__code__ = _softmax.__code__


def leave() -> None:
    """Put its own code back."""
    while _watched_now:
        softmax, code = _watched_now.pop()
        softmax.__code__ = code


def _softmax(
    src: Tensor, index: Any = None, ptr: Any = None, num_nodes: Any = None, dim: int = 0
) -> Tensor:
    # This code runs with the global names of torch-geometric's function.
    from gattn.models.doors.graphs.segments import shown

    return shown(src, index, ptr, num_nodes, dim)


_is_running: ContextVar[bool] = ContextVar("is_running", default=False)


def is_running() -> bool:
    """Return whether torch-geometric's softmax runs, which is not seen as one written out."""
    return _is_running.get()


_factors: ContextVar[Tensor | None] = ContextVar("factors", default=None)


@contextmanager
def scaled(factors: Tensor) -> Iterator[None]:
    """Multiply the attention of all heads with numbers (heads,), and show it to nobody."""
    token = _factors.set(factors)
    try:
        yield
    finally:
        _factors.reset(token)


def shown(src: Tensor, *given: Any) -> Tensor:
    """Compute torch-geometric's softmax, and let the open contexts take part in it."""
    token = _is_running.set(True)
    try:
        with paused():
            attention: Tensor = _plain[0](src, *given)
    finally:
        _is_running.reset(token)
    if (factors := _factors.get()) is not None:
        heads = _by_edge(attention, given[-1])
        return _as_given(heads * factors.to(heads.dtype), attention, given[-1])
    running = [calls for calls, _ in present() if calls.depth]
    if not running:
        return attention
    index, ptr, num_nodes, dim = given
    if num_nodes is None and ptr is not None:
        num_nodes = len(ptr) - 1
    with paused(), inside():  # What it reads of the edges is not read by the model's code.
        nodes = _segments(index, ptr)
    return seen(running, sys._getframe(2), src, attention, nodes, num_nodes, dim)


def seen(
    running: Sequence[Calls],
    frame: FrameType | None,
    src: Tensor,
    attention: Tensor,
    nodes: Tensor,
    num_nodes: int | None,
    dim: int,
) -> Tensor:
    """Let the open contexts take part, if the softmax of scores `src` is a model's attention.

    It was taken over the edges of each of the `nodes`, by code that runs in a frame.
    """
    owner = owner_of(frame, running)
    if owner is None:
        return attention
    try:
        with paused(), inside():
            ends = find_ends(frame, nodes, num_nodes)
            module = owner
            if ends is not None and any(calls.owns(ends.module) for calls in running):
                module = ends.module
            if (see := observer.get()) is not None and frame is not None:
                attention = see.softmax(module, ends, frame, src, attention)
            if ends is None:
                return attention
            scores, given = _by_edge(src, dim), _by_edge(attention, dim)
    except NotNeighboursError as error:
        raise CaptureError(
            f"The attention of {type(owner).__name__} cannot be read: {error}."
        ) from error
    part = 0 if ends.kind else runs.next(module)
    numbers = numbers_of(module)
    known = replace(ends if numbers is None else numbers.of(ends), module=module)
    is_named = numbers is None or numbers.is_known
    with paused(), inside():  # Its own softmaxes are none of the model's.
        call = take_part(
            module,
            src,
            lambda name: SeenEdges.of(name, known, scores, given, part, is_named=is_named),
            read=lambda call, place, tracker, edits: read_edges(call, place, edits),
            apply=put_back,
        )
    if call is not None and call.attention is not given:
        attention = _as_given(call.attention, attention, dim)
    is_shown = call is not None and call.is_shown
    if ends.is_listed or is_shown:
        with paused():
            wanted = Wanted(call.attention, call.takes) if call is not None and call.takes else None
            name = type(module).__name__
            travel = Travel(name, ends.query, ends.is_listed, is_shown, wanted=wanted)
            follow(attention, travel)
    return attention


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


def _as_given(values: Tensor, like: Tensor, dim: int) -> Tensor:
    """Bring (edges, heads) to the shape of what was given."""
    return values.reshape(like.movedim(dim, 0).shape).movedim(0, dim)
