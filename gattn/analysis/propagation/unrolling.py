"""Unrolls the layers of a stack into one graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gattn.analysis.propagation.unrolled import Floats, Node, Unrolled
from gattn.analysis.reading.layers import Layers, notes_of_mass
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.reductions import described, places_of
from gattn.analysis.reading.results import told_in_graph
from gattn.analysis.reading.sources import Source, is_square
from gattn.errors import SelectionError, ShapeError
from gattn.graph.networks import fill
from gattn.heads.nouns import counted, noun_of
from gattn.heads.stack import Reduction, Stack
from gattn.names.choices import REDUCTIONS, HeadChoice


def unroll(
    stack: Stack, *, heads: HeadChoice = None, reduce: Reduction = "mean", residual: float = 0.5
) -> Unrolled:
    """Unroll a stack; see `gattn.heads.stack.Stack.unroll`."""
    if not 0 <= residual <= 1:
        raise ShapeError(f"residual is a share from 0 to 1, not {residual!r}.")
    _check(stack)
    if reduce not in REDUCTIONS:
        raise SelectionError(f"reduce is 'mean', 'max' or 'min' here, not {reduce!r:.80}.")
    chosen = _chosen(stack, heads)
    first = next(iter(stack.heads.values()))
    places, labels = first.node_positions.tolist(), first.labels()
    noun = noun_of(first.geometry, stack.name)
    named, size = described(heads, reduce), counted(len(places), noun)
    source = Source(first.model, stack.name, tuple(stack.layers), size=size, edits=stack.edits)
    graph = Unrolled(
        residual=float(residual),
        heads=named,
        layers=len(stack.layers),
        first_layer=stack.layers[0],
        computed_from=f"{source}; {named}, residual {residual:g}",
        notes="\n".join(_notes([layer for layer in chosen.values() if layer])),
        **told_in_graph(stack.edits),
    )
    nodes = [[(depth, position) for position in places] for depth in range(len(stack.layers) + 1)]
    graph.add_nodes_from(
        (node, {"token": token, "layer": node[0], "position": node[1]})
        for row in nodes
        for node, token in zip(row, labels, strict=True)
    )
    for depth, layer in enumerate(stack.layers):
        attention, mass = _reduced(chosen[layer], reduce, len(places))
        _add_layer(graph, nodes[depth], nodes[depth + 1], attention, mass)
        if isinstance(heads, Sequence) and (found := chosen[layer]):
            _add_heads(graph, depth, places, found)
    return graph


def _add_layer(
    graph: Unrolled,
    keys: Sequence[Node],
    queries: Sequence[Node],
    attention: Floats,
    mass: Floats,
) -> None:
    """Add the edges of a layer, whose rows have the whole mass, dropped edges included."""
    residual = graph.graph["residual"]
    mixed = (1 - residual) * attention + residual * np.eye(len(attention))
    whole = ((1 - residual) * mass + residual)[:, None]
    weight = np.divide(mixed, whole, out=np.zeros_like(mixed), where=whole > 0)
    rows, columns = (mixed > 0).nonzero()
    stays, is_own = np.full(len(rows), 0.0, object), rows == columns  # one 0.0 for all others
    stays[is_own] = residual / whole[rows[is_own], 0]
    found = [some[rows, columns].tolist() for some in (attention, weight)]
    fill(
        graph,
        keys,
        queries,
        (columns.tolist(), rows.tolist()),
        (
            {"attention": given, "residual": own, "weight": value, "capacity": value}
            for given, value, own in zip(*found, stays.tolist(), strict=True)
        ),
    )


def _add_heads(graph: Unrolled, depth: int, places: Sequence[int], layer: Layers) -> None:
    for number, matrix in zip(layer.heads, layer.read(0).numpy(), strict=True):
        for query, key in np.argwhere(matrix > 0).tolist():
            edge = graph.edges[(depth, places[key]), (depth + 1, places[query])]
            edge[f"head_{number}"] = float(matrix[query, key])


def _chosen(stack: Stack, heads: HeadChoice) -> dict[int, Layers | None]:
    """Take the heads of each layer that are read, if there are any."""
    places = places_of(heads, stack.layers)
    graphs = {place: stack[place] for place in (sorted(stack) if places is None else places)}
    of_layers = {
        layer: {place: graph for place, graph in graphs.items() if place[0] == layer}
        for layer in stack.layers
    }
    return {
        layer: layers_of(Stack(stack.name, some)) if some else None
        for layer, some in of_layers.items()
    }


def _reduced(layer: Layers | None, reduce: Reduction, size: int) -> tuple[Floats, Floats]:
    """Make the heads of a layer one, and say what its whole rows sum to."""
    if layer is None:
        return np.zeros((size, size)), np.zeros(size)
    ((attention, mass),) = layer.reduced_with_mass(reduce=reduce)
    return attention.numpy(), mass.numpy()


def _notes(layers: Sequence[Layers]) -> list[str]:
    """Return which attention is missing."""
    mass, kept = (
        torch.cat(
            [torch.zeros(0, device="cpu"), *(getattr(layer, name).flatten() for layer in layers)]
        )
        for name in ("mass", "kept_mass")
    )
    has_sink = any(layer.has_sink for layer in layers)
    notes = notes_of_mass(mass, kept, has_sink=has_sink)
    if bool((kept < mass).any()):
        notes.append("weights are lower bounds")
    return notes


def _check(stack: Stack) -> None:
    if not stack.heads:
        raise SelectionError("The stack is empty: capture at least one layer.")
    if stack.layers != list(range(stack.layers[0], stack.layers[-1] + 1)):
        raise SelectionError(
            f"Only consecutive layers unroll into a graph; this stack has {stack.layers}."
        )
    first = next(iter(stack.heads.values()))
    for (layer, _), head in stack.heads.items():
        if head.node_ids() != first.node_ids() or head.labels() != first.labels():
            raise SelectionError(
                f"Only layers of the same tokens unroll into a graph; layer {layer} is of "
                f"other tokens than layer {stack.layers[0]}. Capture the layers of the same tokens "
                "alone, by layers=."
            )
        if not is_square(head.graph):
            raise SelectionError(
                "Only self-attention of all tokens unrolls, such as that of an encoder or a "
                f"decoder; the {stack.name} stack is not: it has {head.graph.num_queries} queries "
                f"and {head.graph.num_keys} keys."
            )
        if bool((head.attention < 0).any()):
            raise ShapeError("unroll needs attention ≥ 0; this trace has negative attention.")
