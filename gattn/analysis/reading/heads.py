"""Lists the heads of whatever holds attention as graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard, cast, overload

import numpy as np

from gattn.analysis.reading.attention import Attention, Heads
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.sources import Source, is_square, size_of
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.fields import from_dense
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import counted, noun_of
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

Place: TypeAlias = tuple[str, int, int]
"""A stack's name, a layer and a head."""


def graphs_of(layers: Layers) -> Sequence[AttentionGraph]:
    """List the heads of layers as graphs; those of arrays are made one at a time, as asked for."""
    graphs = [head for heads in layers.graphs for head in heads]
    return graphs or _DenseHeads(layers)


def by_place(attention: Heads) -> dict[Place, AttentionGraph]:
    """List heads by stack ("" if it has no name), layer and head.

    Raises
    ------
    ShapeError
        As `layers_of` does.
    SelectionError
        If several graphs have one place.
    """
    if isinstance(attention, AttentionTrace):
        return {place: head for one in attention.stacks.values() for place, head in _placed(one)}
    if isinstance(attention, Stack):
        return dict(_placed(attention))
    if are_graphs(attention):
        graphs = attention
    else:
        graphs = graphs_of(layers_of(cast(Attention, attention), signed=True))
    found = {("", head.layer or 0, head.head or 0): head for head in graphs}
    if len(found) < len(graphs):
        raise SelectionError(
            f"These {len(graphs)} graphs are of {len(found)} heads: take those of one text, and "
            "give each its layer= and head=."
        )
    return found


def are_graphs(attention: object) -> TypeGuard[Sequence[AttentionGraph]]:
    """Return whether something is a list of attention graphs."""
    return isinstance(attention, (list, tuple)) and all(
        isinstance(one, AttentionGraph) for one in attention
    )


def described(heads: Sequence[AttentionGraph]) -> str:
    """Say in words what heads these are."""
    return str(source_of(heads))


def source_of(heads: Sequence[AttentionGraph]) -> Source:
    """Say what heads these are, and what the model was edited by."""
    if not heads:
        return Source(text="no heads")
    graphs = [head.graph for head in heads]
    sizes = dict.fromkeys(
        size_of(
            graph.num_queries,
            graph.num_keys,
            is_square=is_square(graph),
            noun=noun_of(head.geometry, head.stack),
        )
        for head, graph in zip(heads, graphs, strict=True)
    )
    size = ", ".join([counted(len(heads), "head"), *sizes])
    edits = union(head.edits for head in heads)
    return Source(heads[0].model, size=size, kept_by=heads[0].kept_by, edits=edits)


def _placed(stack: Stack) -> list[tuple[Place, AttentionGraph]]:
    return [((stack.name, *place), stack[place]) for place in sorted(stack)]


class _DenseHeads(Sequence[AttentionGraph]):
    """The heads of arrays, made as they are asked for: graphs take many times the memory."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        names: dict[str, Any] = {"positions": np.array(layers.positions)}
        names["tokens"] = layers.key_texts
        if not layers.is_square:
            names["query_positions"] = np.array(layers.query_positions)
            names["query_tokens"] = layers.query_texts
        self._names = names

    def __len__(self) -> int:
        return len(self._layers) * len(self._layers.heads)

    @overload
    def __getitem__(self, place: int) -> AttentionGraph: ...
    @overload
    def __getitem__(self, place: slice) -> list[AttentionGraph]: ...
    def __getitem__(self, place: int | slice) -> AttentionGraph | list[AttentionGraph]:
        chosen = range(len(self))[place]
        if isinstance(chosen, range):
            return [self[n] for n in chosen]
        layers = self._layers
        n, head = divmod(chosen, len(layers.heads))
        matrix = layers.read(n)[head]
        graph = TokenGraph.from_mask(matrix != 0, is_bipartite=not layers.is_square)
        place_of: dict[str, Any] = {"layer": layers.layers[n], "head": layers.heads[head]}
        return from_dense(AttentionGraph, matrix, graph, **self._names, **place_of)
