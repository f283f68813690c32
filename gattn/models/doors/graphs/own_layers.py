"""The door to gattn's own layers, which report their calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from gattn.engines import watching
from gattn.engines.call import AttentionCall
from gattn.engines.watching import Run, Watcher
from gattn.models.doors.graphs.ends import owner_of
from gattn.models.read.on_graphs.own_calls import OwnCall, read_own
from gattn.models.read.runs import runs
from gattn.models.watch.contexts import present
from gattn.models.watch.inside import inside
from gattn.models.watch.taking_part import take_part

_before: ContextVar[Watcher | None] = ContextVar("watcher_before", default=None)
_open: ContextVar[int] = ContextVar("own_layers_open", default=0)


@contextmanager
def watched() -> Iterator[None]:
    """Watch gattn's own layers until the last of the contexts, which close in any order."""
    if not _open.get():
        _before.set(watching.watcher())
        watching.set_watcher(_seen)
    _open.set(_open.get() + 1)
    try:
        yield
    finally:
        _open.set(_open.get() - 1)
        if not _open.get():
            watching.set_watcher(_before.get())


def _seen(layer: nn.Module | None, call: AttentionCall, run: Run) -> Tensor:
    """Let the open contexts take part in a call of a layer, or of a function in a module."""
    running = [calls for calls, _ in present() if calls.depth]
    module = layer if layer is not None else owner_of(sys._getframe(1), running)
    if not running or module is None:
        before = _before.get()
        return run(call) if before is None else before(layer, call, run)
    with inside():
        output = run(call)
    rows = output.transpose(1, 2)
    told = module, call, rows, call.graph.is_bipartite, runs.next(module)
    seen = take_part(
        module,
        call.query,
        lambda name: OwnCall.of(name, *told),
        read=lambda call, place, tracker, edits: read_own(call, place, edits),
    )
    if seen is None or seen.output is rows:
        return output
    return seen.output.transpose(1, 2)
