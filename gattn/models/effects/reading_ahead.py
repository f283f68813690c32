"""Tells whether tokens read later ones, so that an answer read there is no prediction of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gattn.models.read.masks import is_last_read, read_past
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.places import Place, Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph
    from gattn.models.edit.base import Edit


class ReadingAhead(Context):
    """Notes who may read whom in the stack that runs last, as a decoder does after its encoder."""

    def __init__(self) -> None:
        self._answering = ""
        self._read: dict[str, list[tuple[TokenGraph, Side, Side]]] = {}

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Note a call, and edit nothing."""
        if isinstance(call, SeenEdges) or place.is_bipartite:
            return []
        self._answering = place.stack
        known = self._read.setdefault(place.stack, [])
        mask = tracker.mask(call)
        for n, sides in enumerate(zip(place.queries, place.keys, strict=True)):
            graph = mask.graph(n, *sides, is_bipartite=False)
            is_told = any(side.positions is not None for side in sides)
            if is_told or all(graph is not one for one, *_ in known):  # Most layers share a mask.
                known.append((graph, *sides))
        return []

    @property
    def reads_last(self) -> bool:
        """Whether another token than the last one reads it."""
        return any(is_last_read(*read) for read in self._read.get(self._answering, ()))

    @property
    def past(self) -> set[int]:
        """The positions up to which some token reads a later one."""
        return {n for read in self._read.get(self._answering, ()) for n in read_past(*read)}
