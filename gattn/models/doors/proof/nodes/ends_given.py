"""What message passing is given of the nodes at both ends of edges."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.graphs.frames import PROPAGATES, frames, is_a, is_loaded

_METHODS = ("message", "edge_update", "aggregate", "update")
_TRUSTED = ("torch_geometric.nn.norm", "torch_geometric.nn.attention")


def passing_of(frame: FrameType) -> tuple[Any, dict[str, Any]] | None:
    """Find the message passing in which a function runs, and what it is given."""
    for one in frames(frame):
        module = one.f_locals.get("self")
        if one.f_code.co_name in PROPAGATES and is_a(module, "MessagePassing"):
            known = dict(one.f_locals)
            known |= known["kwargs"] if isinstance(known.get("kwargs"), dict) else {}
            return module, known
    return None


def nodes_of(conv: Any, known: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Find what message passing takes of keys and of queries."""
    signatures = (inspect.signature(getattr(conv, name)).parameters for name in _METHODS)
    names = {name[:-2] for one in signatures for name in one if name.endswith(("_i", "_j"))}
    i, j = (1, 0) if conv.flow == "source_to_target" else (0, 1)
    found: tuple[list[Tensor], list[Tensor]] = [], []
    for name in names:
        value = known.get(name)
        pair = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)
        for side, x in zip(found, (pair[j], pair[i]), strict=True):
            if isinstance(x, Tensor) and x.is_floating_point() and x.dim():
                side.append(x)
    return found


def is_trusted(module: nn.Module) -> bool:
    """Return whether a module of torch-geometric mixes nodes, and leaves them where they are."""
    return type(module).__module__.startswith(_TRUSTED)


def is_own(module: nn.Module) -> bool:
    """Return whether a module is a layer of gattn."""
    if not is_loaded():
        return False
    from gattn.engines.message_passing import EdgeAttention  # It needs torch-geometric.

    return isinstance(module, EdgeAttention)


def counts_up(index: Tensor) -> bool:
    """Return whether an index lists all numbers in order."""
    return torch.equal(index, torch.arange(len(index), device=index.device))
