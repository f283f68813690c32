"""The door to `torch.nn.MultiheadAttention`: what it tells of the attention that it computes.

The attention itself is seen by the doors of the functions that it calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gattn.models.doors.functions.calling import reopened


@dataclass(frozen=True)
class Running:
    """A call that runs: its heads, its output projection, and whether its keys are other tokens."""

    heads: int
    is_cross: bool
    projection: Tensor


_running: ContextVar[Running | None] = ContextVar("running", default=None)


def running() -> Running | None:
    """Return the call that runs, if there is one."""
    return _running.get()


def see(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run torch's function so that the other doors see what it calls."""
    named = inspect.signature(func).bind(*args, **kwargs).arguments
    is_cross = named["key"] is not named["query"]
    token = _running.set(Running(named["num_heads"], is_cross, named["out_proj_weight"]))
    try:
        return reopened.see(mode, func, args, kwargs)
    finally:
        _running.reset(token)
