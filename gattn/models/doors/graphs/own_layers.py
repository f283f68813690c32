"""The door to gattn's own layers, which report their calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from gattn.engines import edges, watching
from gattn.engines.call import AttentionCall, naming_shapes
from gattn.engines.shared.scoring import score_edges
from gattn.engines.watching import Run, Watcher
from gattn.models.doors.graphs.frames import numbers_of, owner_of
from gattn.models.doors.graphs.observing import observer, of_own_layer
from gattn.models.doors.graphs.putting_back import put_back
from gattn.models.read.on_graphs.numbers import NodeNumbers
from gattn.models.read.on_graphs.own_calls import OwnCall, has_parallel_edges, read_own
from gattn.models.read.on_graphs.readings import read_edges
from gattn.models.read.on_graphs.seen_edges import Ends, SeenEdges
from gattn.models.read.track.runs import runs
from gattn.models.watch.contexts import present
from gattn.models.watch.inside import inside, is_inside
from gattn.models.watch.taking_part import take_part

if TYPE_CHECKING:
    from gattn.engines.message_passing import EdgeAttention

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
        return run(call) if before is None or is_inside() else before(layer, call, run)
    with inside(), of_own_layer():
        output = run(call)
        if (see := observer.get()) is not None:
            output = see.own(module, call, output)
    numbers = numbers_of(module)
    if has_parallel_edges(call):
        return _seen_in_parallel(module, call, output, numbers)
    rows = output.transpose(1, 2)
    is_named = numbers is None or numbers.is_known
    told = module, call, rows, call.graph.is_bipartite, runs.next(module), is_named
    seen = take_part(
        module,
        call.query,
        lambda name: OwnCall.of(name, *told),
        read=lambda call, place, tracker, edits: read_own(call, place, edits),
    )
    if seen is None or seen.output is rows:
        return output
    return seen.output.transpose(1, 2)


def _seen_in_parallel(
    layer: nn.Module, call: AttentionCall, output: Tensor, numbers: NodeNumbers | None
) -> Tensor:
    """Let the open contexts take part where several edges run from one node to another."""
    with inside(), naming_shapes(call):
        sorted_scores, sorted_attention = score_edges(call), edges.attention(call)
    given = call.edges.as_given
    scores, attention = given(sorted_scores)[0].T / call.temperature, given(sorted_attention)[0].T
    key, query = call.edge_index
    sizes = call.graph.num_keys, call.graph.num_queries
    ends = Ends(layer, key, query, *sizes, call.graph.is_bipartite)
    part, is_named = runs.next(layer), numbers is None or numbers.is_known
    seen = take_part(
        layer,
        call.query,
        lambda name: SeenEdges.of(name, ends, scores, attention, part, is_named=is_named),
        read=lambda call, place, tracker, edits: read_edges(call, place, edits),
        apply=put_back,
    )
    if seen is None or seen.attention is attention:
        return output
    with inside(), naming_shapes(call):
        edited: Tensor = cast("EdgeAttention", layer).attend(call, seen.attention.T[None])
    return edited
