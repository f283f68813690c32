"""Keeps the edges of a model's calls, with what is known of them, in the layers of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock

import torch

from gattn.errors import CaptureError
from gattn.heads.store.kept_edges import KeptEdges
from gattn.keep import All
from gattn.models.doors.graphs.messages import Messages
from gattn.models.edit.applying import parts
from gattn.models.edit.part import Part
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.options import Options
from gattn.models.run.record.projections import Projections, value_norms
from gattn.models.run.record.recorded import RecordedLayer, starts_anew
from gattn.models.run.record.refusing import (
    EDITS_CHANGED,
    not_seen,
    refuse_contributions,
    unrecorded,
)
from gattn.models.run.record.relabelling import Positions
from gattn.models.run.record.sequences import Sequences


class EdgesOfCalls:
    """Keeps the edges of the calls of a model, as options say.

    Parameters
    ----------
    name : str
        The name of the model.
    options : Options
        Which heads and edges are kept, and with what.
    sequences : Sequences
        What is recorded of each sequence.
    projections, messages : Projections, Messages
        What gives the lengths of contributions, where they are wanted.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        sequences: Sequences,
        projections: Projections,
        messages: Messages,
    ) -> None:
        self._name, self._options, self._sequences = name, options, sequences
        self._projections, self._messages = projections, messages
        self._lock = Lock()
        self._size = 0

    def see(
        self, call: SeenCall, place: Place, readings: Sequence[Reading], tracker: Tracker
    ) -> None:
        """Keep the edges of a call."""
        now = self._sequences[tracker]
        now.generates = tracker.generates(call.query.shape[2])
        self._projections.check(tracker, call.module)
        if now.progress is not tracker.progress:
            self._sequences.go_on(tracker, place)
        elif now.goes_on and now.run is not None and starts_anew(now.run, place, readings):
            self._sequences.forget(tracker, place)
        if now.run is None or starts_anew(now.run, place, readings):
            self._sequences.begin_anew(tracker)
            self._sequences.extend(tracker, len(set(place.sequences)))
        with torch.no_grad():
            for reading in readings:
                if len(reading.queries):
                    self._keep_edges(call, place, reading, tracker)

    def _keep_edges(self, call: SeenCall, place: Place, reading: Reading, tracker: Tracker) -> None:
        heads = place.own(self._options.chosen.in_layer(place.layer, place.heads or reading.heads))
        if wanted := self._options.contributions:
            refuse_contributions(call, reading, place, are_projected=wanted is True)
        layers = [self._layer(place, reading, sequence, tracker) for sequence in reading.sequences]
        self._note_grid(call, place, reading, tracker)
        for sequence in reading.sequences:
            one = self._sequences.extend(tracker, sequence + 1)[sequence]
            if not call.is_named:
                one.unnamed.add(place.stack)
            if call.reads_itself:
                one.own.add(place.stack)
        for part in parts(reading, heads):
            self._check_size(part, len(layers))
            stores = [self._store(layer, part, place, call) for layer in layers]
            for store in stores:
                store.begin(part.graph, reading.keys.first)
            part.store(stores, scores=self._options.scores, look=self._options.look(place, part))
        self._contribute(call, reading, layers, tracker)

    def _note_grid(self, call: SeenCall, place: Place, reading: Reading, tracker: Tracker) -> None:
        """Note the grid of patches that was proved of a call."""
        tokens = call.tokens
        if tokens is not None and len(tokens.grid) == 2:
            run = self._sequences[tracker].run or ()
            for sequence in reading.sequences:
                run[sequence].grids[place.stack] = tokens

    def _contribute(
        self, call: SeenCall, reading: Reading, layers: list[RecordedLayer], tracker: Tracker
    ) -> None:
        wanted = self._options.contributions
        if wanted and isinstance(call, SeenEdges):
            self._messages.expect(tracker, call, layers[0])
        elif wanted == "value" or (wanted and call.projection is not None):
            projection = None if wanted == "value" else call.projection
            for layer, norms in zip(layers, value_norms(reading, projection), strict=True):
                layer.add_norms(norms, reading.keys.first)
        elif wanted:
            self._projections.expect(tracker, call, reading, layers)

    def _layer(
        self, place: Place, reading: Reading, sequence: int, tracker: Tracker
    ) -> RecordedLayer:
        now = self._sequences[tracker]
        stacks = self._sequences.extend(tracker, sequence + 1)[sequence].layers
        if place.stack not in stacks:
            stacks[place.stack] = {}
            now.undo[id(stacks), place.stack] = partial(stacks.pop, place.stack)
        stack, queries = stacks[place.stack], reading.queries
        if now.goes_on and place.layer in stack and queries.first < stack[place.layer].queries:
            whole = stack[place.layer]
            stack[place.layer] = whole.first(queries.first)
            now.undo[id(whole), "cropped"] = partial(stack.__setitem__, place.layer, whole)
        if place.layer in stack and id(stack[place.layer]) not in now.undo:
            now.undo[id(stack[place.layer])] = stack[place.layer].going_back()
        if place.layer not in stack:
            if queries.first:
                raise CaptureError(unrecorded(queries.first, now.progress))
            stack[place.layer] = RecordedLayer(
                reading.groups,
                is_cached=place.stack in now.progress.cached or place.is_cross,
                is_projected=self._options.contributions is True,
                is_cross=place.is_cross,
            )
            now.undo[id(stack[place.layer])] = partial(stack.pop, place.layer)
        elif now.generates:
            stack[place.layer].generated += len(queries)
        else:
            stack[place.layer].generated = 0
        layer = stack[place.layer]
        if place.head:
            return layer
        if not place.is_bipartite and queries.first != layer.queries:
            raise CaptureError(not_seen(queries.first, layer.queries))
        layer.queries = queries.first + len(queries)
        if place.sizes is not None and not place.is_part:
            layer.positions = layer.positions or Positions(*place.sizes, place.is_bipartite)
            layer.positions.queries.append(queries.at)
            layer.positions.keys.append(reading.keys.at)
        return layer

    def _check_size(self, part: Part, sequences: int) -> None:
        if self._options.keep is not None:
            return
        edges = sequences * len(part.heads) * part.graph.num_edges
        with self._lock:
            self._size += self._options.bytes_of(edges)
        self._options.check_bytes(self._size)

    def _store(self, layer: RecordedLayer, part: Part, place: Place, call: SeenCall) -> KeptEdges:
        heads = tuple(head + place.head for head in part.heads)
        if heads not in layer.stores:
            if any(set(heads) & set(others) for others in layer.stores):
                raise CaptureError(EDITS_CHANGED)
            dtype = part.attention.query.dtype
            layer.stores[heads] = KeptEdges(
                heads, self._options.keep or All(), self._options.scores, dtype
            )
        layer.attributes[heads] = {
            "has_sink": part.attention.normalizer.has_sink,
            "layer": place.layer,
            "model": self._name,
            "weight_function": repr(part.attention.weight),
            "normalizer": repr(part.attention.normalizer),
            **call.names_of(part.graph.num_keys),
        }
        return layer.stores[heads]
