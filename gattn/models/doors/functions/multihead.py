"""The door to `torch.nn.MultiheadAttention`: what it tells of the attention that it computes.

The attention itself is seen by the doors of the functions that it calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch.overrides import TorchFunctionMode

from gattn.models.doors.functions import reopened


@dataclass(frozen=True)
class Running:
    """A call that runs: its number of heads, and whether its keys are other tokens."""

    heads: int
    is_cross: bool


_running: ContextVar[Running | None] = ContextVar("running", default=None)


def running() -> Running | None:
    """Return the call that runs, if there is one."""
    return _running.get()


def see(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run torch's function so that the other doors see what it calls."""
    query, key, heads = args[0], args[1], args[4]
    token = _running.set(Running(heads, key is not query))
    try:
        return reopened.see(mode, func, args, kwargs)
    finally:
        _running.reset(token)
