"""Walks the frames on the stack: which modules run, and what they were called with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor, nn

from gattn.models.read.on_graphs.numbers import AS_THEY_COME, NodeNumbers
from gattn.models.watch.calls import Calls
from gattn.models.watch.parts_and_wholes import numbered_twice, trackers_of

_HOMES = ("conv", "aggr")
PROPAGATES = ("propagate", "edge_updater")
"""The methods of torch-geometric's message passing that know the edges."""


def is_loaded() -> bool:
    """Return whether torch-geometric is: without it there are no layers on graphs."""
    return "torch_geometric.nn" in sys.modules


def owner_of(frame: FrameType | None, running: Sequence[Calls]) -> nn.Module | None:
    """Find the innermost module that runs and belongs to a watched model."""
    for one in frames(frame):
        module = one.f_locals.get("self")
        if isinstance(module, nn.Module) and any(calls.owns(module) for calls in running):
            return module
    return None


def numbers_of(module: nn.Module) -> NodeNumbers | None:
    """Return the numbers of a layer's nodes, which all watched models must give alike."""
    some = [tracker.numbers(module) for tracker in trackers_of(module)]
    for one in some[1:]:
        if not (one or AS_THEY_COME).are_those_of(some[0] or AS_THEY_COME):
            raise numbered_twice(type(module).__name__, "nodes")
    unknown = (one for one in some if one is not None and not one.is_known)
    return next(unknown, some[0] if some else None)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Walk a frame and those around it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_a(module: object, name: str) -> bool:
    """Return whether an object is of a class of torch-geometric, which may not be loaded."""
    kinds = (getattr(sys.modules.get(f"torch_geometric.nn.{of}"), name, None) for of in _HOMES)
    return any(kind is not None and isinstance(module, kind) for kind in kinds)


def frame_of_forward(module: nn.Module, frame: FrameType) -> FrameType | None:
    """Find the forward of a module, one of whose steps runs in a frame."""
    for one in frames(frame.f_back):
        if one.f_locals.get("self") is module:
            if one.f_code.co_name == "forward":
                return one
            if one.f_code.co_name not in PROPAGATES:
                return None
    return None


def arguments_of(module: nn.Module, frame: FrameType) -> list[Any]:
    """List what a module was called with."""
    for one in frames(frame.f_back):
        if one.f_code.co_name == "_call_impl" and one.f_locals.get("self") is module:
            return [*one.f_locals["args"], *one.f_locals["kwargs"].values()]
    forward = frame_of_forward(module, frame)
    if forward is None:
        return []
    code = forward.f_code
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return [forward.f_locals.get(name) for name in names]


def plain(index: Any) -> Tensor:
    """Give torch-geometric's own classes of indices as plain tensors."""
    given: Tensor = index.as_tensor() if hasattr(index, "as_tensor") else index
    return given.detach()
