"""The door to `torch.nn.MultiheadAttention`: what it tells of the attention that it computes.

The attention itself is seen by the doors of the functions that it calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gattn.models.doors.functions.calling import reopened
from gattn.models.read.seen_call import EXTRA_KEYS


@dataclass(frozen=True)
class Running:
    """A call that runs: its heads, its output projection, and whether its keys are other tokens.

    `extra_keys` are the names of keys that it adds after those of tokens.
    """

    heads: int
    is_cross: bool
    projection: Tensor
    extra_keys: tuple[str, ...] = ()


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
    adds = named["bias_k"] is not None, named["add_zero_attn"]
    extra_keys = tuple(compress(EXTRA_KEYS, adds))
    projection = named["out_proj_weight"]
    token = _running.set(Running(named["num_heads"], is_cross, projection, extra_keys))
    try:
        return reopened.see(mode, func, args, kwargs)
    finally:
        _running.reset(token)
