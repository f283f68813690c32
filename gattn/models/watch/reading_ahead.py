"""Tells how far ahead tokens read, so that an answer read at a token is no prediction of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gattn.models.edit.applying import parts
from gattn.models.edit.base import Edit
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.places import Place, Side
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import Context

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


class ReadingAhead:
    """How far the tokens of one sequence read ahead of themselves, in the graphs that are noted."""

    def __init__(self) -> None:
        self._graphs: list[TokenGraph] = []
        self._farthest = torch.full((0,), -1, device="cpu")

    def note(self, graph: TokenGraph, queries: Side, keys: Side) -> None:
        """Note who may read whom in a layer."""
        if queries.positions is None and keys.positions is None:
            if any(graph is known for known in self._graphs):  # Most layers share a mask.
                return
            self._graphs.append(graph)
        query, farthest = _farthest_read(graph, queries, keys)
        tokens = max(min(side.end, side.num_tokens) for side in (queries, keys))
        if (more := tokens - len(self._farthest)) > 0:
            self._farthest = torch.nn.functional.pad(self._farthest, (0, more), value=-1)
        self._farthest.scatter_reduce_(0, query, farthest, "amax")

    def note_reading(self, reading: Reading, num_extra: int = 0) -> None:
        """Note who may read whom in a layer, with its edits; the last keys may be no tokens."""
        keys = _without(reading.keys, num_extra)
        for part in parts(reading) if reading.edits else (reading,):
            self.note(part.graph, reading.queries, keys)

    @property
    def past(self) -> set[int]:
        """The positions up to which some token reads a later one."""
        if not len(self._farthest):
            return set()
        positions = torch.arange(len(self._farthest), device="cpu")
        is_past = self._farthest.cummax(0).values > positions
        return set(positions[is_past].tolist())

    @property
    def reads_last(self) -> bool:
        """Whether another token than the last one reads it."""
        return len(self._farthest) - 2 in self.past


class ReadingAheadOfCall:
    """How far tokens read ahead in one call of a model, in each stack, with all edits.

    A context that needs it shows it each call of attention as it begins, and once it is edited.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[int, ReadingAhead]] = {}
        self._stack, self._num_extra = "", 0
        self._last: list[tuple[int, TokenGraph, Side, Side]] = []

    def begins(self, call: SeenCall, place: Place, tracker: Tracker) -> None:
        """Note a call of attention as the model makes it."""
        self._settle()
        num_extra = len(call.extra_keys) if call.reads_itself else 0
        if isinstance(call, SeenEdges) or (place.is_bipartite and not num_extra):
            return
        self._stack, self._num_extra = place.stack, num_extra
        mask = tracker.mask(call)
        for n, sequence in enumerate(place.sequences):
            queries, keys = place.queries[n], place.keys[n]
            graph = mask.graph(n, queries, keys, place.is_bipartite)
            self._last.append((sequence, graph, queries, _without(keys, num_extra)))

    def is_edited(self, readings: Sequence[Reading]) -> None:
        """Note the call that began last with its edits, if it has some."""
        if not self._last or not any(reading.edits for reading in readings):
            return
        self._last = []
        for reading in readings:
            for sequence in reading.sequences:
                self._of(sequence).note_reading(reading, self._num_extra)

    def _settle(self) -> None:
        for sequence, graph, queries, keys in self._last:
            self._of(sequence).note(graph, queries, keys)
        self._last = []

    def _of(self, sequence: int) -> ReadingAhead:
        return self._known.setdefault(self._stack, {}).setdefault(sequence, ReadingAhead())

    @property
    def stacks(self) -> Mapping[str, Mapping[int, ReadingAhead]]:
        """How far each sequence's tokens read ahead, in each stack; the last one ran last."""
        self._settle()
        if self._stack in self._known:
            self._known[self._stack] = self._known.pop(self._stack)
        return self._known


class AheadOfAnswer(Context):
    """Notes how far tokens read ahead in the stack that runs last, as a decoder after its encoder.

    What tokens read ahead in any call of the model counts.
    """

    def __init__(self) -> None:
        self._every: list[ReadingAheadOfCall] = []
        self._now: WeakKeyDictionary[Tracker, ReadingAheadOfCall] = WeakKeyDictionary()

    def begin(self, tracker: Tracker) -> None:
        """Begin with a call."""
        self._now[tracker] = ReadingAheadOfCall()
        self._every.append(self._now[tracker])

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Note a call of attention, and edit nothing."""
        if tracker in self._now:
            self._now[tracker].begins(call, place, tracker)
        return []

    def met(self, readings: Sequence[Reading], tracker: Tracker) -> None:
        """Note a call of attention that is edited."""
        if tracker in self._now:
            self._now[tracker].is_edited(readings)

    @property
    def _answering(self) -> list[ReadingAhead]:
        stacks = [one.stacks for one in self._every]
        last = [name for some in stacks for name in some][-1:]
        return [ahead for some in stacks for name in last for ahead in some.get(name, {}).values()]

    @property
    def reads_last(self) -> bool:
        """Whether another token than the last one of a sequence reads it."""
        return any(one.reads_last for one in self._answering)

    @property
    def past(self) -> set[int]:
        """The positions up to which some token reads a later one."""
        return {n for one in self._answering for n in one.past}


def _farthest_read(graph: TokenGraph, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
    """List the positions of queries that are tokens, and the last token that each may read."""
    at = keys.at.masked_fill(~keys.are_tokens, -1)
    farthest = torch.full((len(queries),), -1, device="cpu")
    spans = graph.rule.interval(torch.arange(len(queries), device="cpu") + graph.query_offset)
    if spans is not None and keys.positions is None:
        low, high = (ends.cpu().clamp(0, len(keys)) for ends in spans)
        farthest = torch.where(low < high, high - 1 + keys.first, farthest)
    else:
        for rows, columns, allowed in graph.row_blocks():
            read = at[columns].masked_fill(~allowed.cpu(), -1)
            if read.shape[-1]:
                farthest[rows] = read.amax(-1)
    return queries.at[queries.are_tokens], farthest[queries.are_tokens]


def _without(keys: Side, num_extra: int) -> Side:
    """Say that the last keys are no tokens."""
    if not num_extra:
        return keys
    return replace(keys, positions=keys.at, count=len(keys) - num_extra)
