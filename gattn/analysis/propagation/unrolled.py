"""All layers as one directed acyclic graph, and what of it passes over each edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.analysis.reading.layers import Layers, notes_of_mass
from gattn.analysis.reading.reductions import described
from gattn.analysis.reading.results import Graph, told_in_graph
from gattn.analysis.reading.sources import counted
from gattn.door import draw
from gattn.edit_records import in_words
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Reduction, Stack
from gattn.names.choices import REDUCTIONS, HeadChoice, numbers_or_places
from gattn.names.tokens import find_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node: TypeAlias = tuple[int, int]
"""Depth and position: depth 0 is the input, and l + 1 what layer l gives out."""
Floats: TypeAlias = NDArray[np.float64]

_SCALE = 2**30
"""What a capacity of 1 is: scipy takes whole numbers of 32 bits."""


class Unrolled(Graph):
    """The layers of a stack, unrolled; see `gattn.heads.stack.Stack.unroll`.

    It is a `networkx.DiGraph` on (depth, position) that draws itself. What `rollout` and `flow`
    give has ``passes`` at each edge and node, too: how much comes over it.
    """

    @property
    def positions(self) -> tuple[int, ...]:
        """The tokens' positions."""
        return tuple(position for depth, position in self if depth == 0)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens' texts."""
        return tuple(str(self.nodes[0, position]["token"]) for position in self.positions)

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return int(self.graph["layers"])

    def matrices(self, name: str = "weight") -> Floats:
        """Give an attribute of the edges as an array (layers, queries, keys), 0 without an edge."""
        row = {position: n for n, position in enumerate(self.positions)}
        found = np.zeros((self.depth, len(row), len(row)))
        for (depth, key), edges in self.adjacency():
            queries = [row[query] for _, query in edges]
            found[depth : depth + 1, queries, row[key]] = [
                facts.get(name, 0.0) for facts in edges.values()
            ]
        return found

    def rollout(
        self, *, query: int | str | Node | None = None, key: int | str | Node | None = None
    ) -> Unrolled:
        """Keep what leads to one token, or from one, and say how much comes over each edge.

        Where everything passes on what its neighbourhood passed to it, by weight, an edge's
        ``passes`` is the share of the query that came over it: over each layer they sum to 1 (with
        a key, to its share), and at the input nodes they are `gattn.analysis.rollout`. Without a
        query it is the share of the edge's end that came over it from the key. Where edges were
        dropped all of these are lower bounds, as in `gattn.analysis.rollout`.

        Parameters
        ----------
        query : int, str or (depth, position), optional
            Where it leads to; a token alone, by its position or text, is the one behind all layers.
        key : int, str or (depth, position), optional
            Where it comes from; a token alone is the one in the input.

        Returns
        -------
        Unrolled
            The edges over which something comes.

        Raises
        ------
        SelectionError
            Where neither is given, or there is no such node.
        """
        if query is None and key is None:
            raise SelectionError(
                "Say which token: query= where it leads to, key= where it comes from, or both."
            )
        weights = self.matrices()
        came, goes = self._came(weights, key), self._goes(weights, query)
        passes = goes[1:, :, None] * weights * came[:-1, None, :]
        return self._with_passes(passes, goes * came, "rollout", query, key)

    def flow(self, *, key: int | str | Node, query: int | str | Node) -> Unrolled:
        """Keep a maximum flow from one token to another: ``passes`` is what flows over each edge.

        How much flows in all is certain (`gattn.analysis.flow`), but mostly not on which ways: this
        is one of the maximum flows.

        Parameters
        ----------
        key, query : int, str or (depth, position)
            As in `rollout`.

        Returns
        -------
        Unrolled
            The edges over which something flows.

        Raises
        ------
        SelectionError
            Where there is no such node.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        weights = self.matrices()
        count = len(self.positions)
        start, end = self._place(key, 0), self._place(query, self.depth)
        depth, ends, starts = weights.nonzero()
        tail, head = depth * count + starts, (depth + 1) * count + ends
        capacity = np.floor(weights[depth, ends, starts] * _SCALE).astype(np.int32)
        size = (self.depth + 1) * count
        network = csr_array((capacity, (tail, head)), shape=(size, size))
        first, last = (d * count + self._row(p) for d, p in (start, end))
        passes = np.zeros_like(weights)
        at_nodes = np.zeros((self.depth + 1, count))
        if first != last:
            found = maximum_flow(network, first, last).flow
            passes[depth, ends, starts] = np.maximum(found[tail, head], 0) / _SCALE
        at_nodes[1:] = passes.sum(2)
        at_nodes[:-1] = np.maximum(at_nodes[:-1], passes.sum(1))
        return self._with_passes(passes, at_nodes, "flow", query, key)

    def _came(self, weights: Floats, key: int | str | Node | None) -> Floats:
        """Say what of each node came from the key; all of it where there is none."""
        if key is None:
            return np.ones((self.depth + 1, len(self.positions)))
        depth, position = self._place(key, 0)
        came = np.zeros((self.depth + 1, len(self.positions)))
        came[depth, self._row(position)] = 1.0
        for n in range(depth, self.depth):
            came[n + 1] = weights[n] @ came[n]
        return came

    def _goes(self, weights: Floats, query: int | str | Node | None) -> Floats:
        """Say what of each node goes to the query; all of it where there is none."""
        if query is None:
            return np.ones((self.depth + 1, len(self.positions)))
        depth, position = self._place(query, self.depth)
        goes = np.zeros((self.depth + 1, len(self.positions)))
        goes[depth, self._row(position)] = 1.0
        for n in reversed(range(depth)):
            goes[n] = goes[n + 1] @ weights[n]
        return goes

    def _place(self, given: int | str | Node, depth: int) -> Node:
        if isinstance(given, tuple):
            if given not in self:
                raise SelectionError(
                    f"No node {given!r:.80}: nodes are (depth, position), depth 0 .. {self.depth}, "
                    "0 being the input."
                )
            return given
        return depth, self.positions[find_token(given, self.positions, self.tokens, "token")]

    def _row(self, position: int) -> int:
        return self.positions.index(position)

    def _with_passes(
        self,
        passes: Floats,
        at_nodes: Floats,
        kind: str,
        query: int | str | Node | None,
        key: int | str | Node | None,
    ) -> Unrolled:
        row = {position: n for n, position in enumerate(self.positions)}
        made = Unrolled(**self.graph)
        made.add_nodes_from(
            (node, facts | {"passes": float(at_nodes[node[0], row[node[1]]])})
            for node, facts in self.nodes(data=True)
        )
        found = passes.tolist()
        made.add_edges_from(
            (start, end, facts | {"passes": value})
            for start, end, facts in self.edges(data=True)
            if (value := found[start[0]][row[end[1]]][row[start[1]]])
        )
        made.graph["passes"] = kind
        for name, (node, depth) in {"key": (key, 0), "query": (query, self.depth)}.items():
            if node is not None:
                at, position = self._place(node, depth)
                made.graph |= {f"{name}_depth": at, f"{name}_position": position}
        return made

    def end(self, name: Literal["key", "query"]) -> Node | None:
        """Tell where what passes comes from, or goes to, if that is one node."""
        if f"{name}_depth" not in self.graph:
            return None
        return self.graph[f"{name}_depth"], self.graph[f"{name}_position"]

    def draw(self, layout: str = "layered", *, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw it on Axes; see `gattn.drawing.layers.unrolled.draw_unrolled`."""
        return draw(self, layout, ax=ax, **options)


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
    named = described(heads, reduce)
    graph = Unrolled(
        residual=float(residual),
        heads=named,
        layers=len(stack.layers),
        first_layer=stack.layers[0],
        computed_from=_described(stack, named, residual),
        notes="\n".join(_notes([layer for layer in chosen.values() if layer])),
        **told_in_graph(stack.edits),
    )
    for depth in range(len(stack.layers) + 1):
        for position, token in zip(places, labels, strict=True):
            graph.add_node((depth, position), token=token, layer=depth, position=position)
    for depth, layer in enumerate(stack.layers):
        attention, mass = _reduced(chosen[layer], reduce, len(places))
        _add_layer(graph, depth, places, attention, mass)
        if isinstance(heads, Sequence) and (found := chosen[layer]):
            _add_heads(graph, depth, places, found)
    return graph


def _add_layer(
    graph: Unrolled, depth: int, places: Sequence[int], attention: Floats, mass: Floats
) -> None:
    """Add the edges of a layer, whose rows have the whole mass, dropped edges included."""
    residual = graph.graph["residual"]
    mixed = (1 - residual) * attention + residual * np.eye(len(attention))
    whole = ((1 - residual) * mass + residual)[:, None]
    weight = np.divide(mixed, whole, out=np.zeros_like(mixed), where=whole > 0)
    rows, columns = (mixed > 0).nonzero()
    stays = np.where(rows == columns, residual / whole[rows, 0], 0.0)
    found = [some[rows, columns].tolist() for some in (attention, weight)]
    graph.add_edges_from(
        (
            (depth, places[key]),
            (depth + 1, places[query]),
            {"attention": given, "residual": own, "weight": value, "capacity": value},
        )
        for query, key, given, value, own in zip(
            rows.tolist(), columns.tolist(), *found, stays.tolist(), strict=True
        )
    )


def _add_heads(graph: Unrolled, depth: int, places: Sequence[int], layer: Layers) -> None:
    for number, matrix in zip(layer.heads, layer.read(0).numpy(), strict=True):
        for query, key in np.argwhere(matrix > 0).tolist():
            edge = graph.edges[(depth, places[key]), (depth + 1, places[query])]
            edge[f"head_{number}"] = float(matrix[query, key])


def _chosen(stack: Stack, heads: HeadChoice) -> dict[int, Layers | None]:
    """Take the heads of each layer that are read, if there are any."""
    chosen = numbers_or_places(heads)
    places: list[tuple[int, int]] = sorted(stack.heads if chosen is None else ())
    for one in chosen or ():
        places += [one] if isinstance(one, tuple) else [(layer, one) for layer in stack.layers]
    graphs = {place: stack[place] for place in places}
    of_layers = (
        {place: graph for place, graph in graphs.items() if place[0] == layer}
        for layer in stack.layers
    )
    return {
        layer: Layers.of(Stack(stack.name, some)) if some else None
        for layer, some in zip(stack.layers, of_layers, strict=True)
    }


def _reduced(layer: Layers | None, reduce: Reduction, size: int) -> tuple[Floats, Floats]:
    """Make the heads of a layer one, and say what its whole rows sum to."""
    if layer is None:
        return np.zeros((size, size)), np.zeros(size)
    ((attention, mass),) = layer.reduced_with_mass(reduce=reduce)
    return attention.numpy(), mass.numpy()


def _described(stack: Stack, heads: str, residual: float) -> str:
    first, last = stack.layers[0], stack.layers[-1]
    parts = [
        next(iter(stack.heads.values())).model,
        f"{stack.name} stack",
        f"layers {first}-{last}" if last > first else f"layer {first}",
        counted(len(stack.tokens), "token"),
        in_words(stack.edits),
    ]
    return f"{', '.join(filter(None, parts))}; {heads}, residual {residual:g}"


def _notes(layers: Sequence[Layers]) -> list[str]:
    """Say what of the attention is not there."""
    mass, kept = (
        torch.cat([torch.zeros(0), *(getattr(layer, name).flatten() for layer in layers)])
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
    for head in stack.heads.values():
        if head.graph.is_bipartite or head.graph.num_queries != head.graph.num_keys:
            raise SelectionError(
                "Only self-attention of all tokens unrolls, such as that of an encoder or a "
                f"decoder; the {stack.name} stack is not: it has {head.graph.num_queries} queries "
                f"and {head.graph.num_keys} keys."
            )
        if bool((head.attention < 0).any()):
            raise ShapeError("Only non-negative attention unrolls; this trace has negative.")
