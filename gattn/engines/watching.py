"""Whoever watches gattn's own attention sees each call, may change it, and gives the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gattn.engines.call import AttentionCall

Run: TypeAlias = Callable[[AttentionCall], Tensor]
"""Computes the output of a call, (B, H, Q, V), on the engine that suits it."""

Watcher: TypeAlias = Callable[[nn.Module | None, AttentionCall, Run], Tensor]
"""Given a layer (None for `graph_attention`), its call, and what runs it: returns the output.

It may run the call as it is, a changed one, several or none. It is called outside
`naming_shapes`, so autocast may be on; what runs calls turns it off.
"""

_WATCHER: ContextVar[Watcher | None] = ContextVar("gattn_watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Show each call in this context to a watcher, in place of one that watched before."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def watcher() -> Watcher | None:
    """Return who watches in this context, if anyone."""
    return _WATCHER.get()


def set_watcher(watcher: Watcher | None) -> None:
    """Show calls to a watcher from now on, where watchers come and go in any order."""
    _WATCHER.set(watcher)


def watched(module: nn.Module | None, call: AttentionCall, run: Run) -> Tensor:
    """Compute the output of a call: by the watcher if there is one, else by `run`."""
    if torch.compiler.is_compiling():  # Contexts of gattn run models uncompiled.
        return run(call)
    watcher = _WATCHER.get()
    return run(call) if watcher is None else watcher(module, call, run)
