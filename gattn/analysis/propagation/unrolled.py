"""All layers as one directed acyclic graph, and what of it passes over each edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.reading.results import Graph
from gattn.errors import SelectionError
from gattn.names.tokens import find_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

Node: TypeAlias = tuple[int, int]
"""Depth and position: depth 0 is the input, and l + 1 the output of layer l."""
Floats: TypeAlias = NDArray[np.float64]

_SCALE = 2**30
"""The whole number of a capacity of 1: scipy takes 32 bits."""


class Unrolled(Graph):
    """The layers of a stack, unrolled; see `gattn.heads.stack.Stack.unroll`.

    It is a `networkx.DiGraph` on (depth, position) that draws itself. The results of `rollout` and
    `flow` also have ``passes`` at each edge and node: how much passes over it.
    """

    if TYPE_CHECKING:

        def draw(
            self,
            layout: str = "layered",
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            cmap: str | Colormap | None = None,
            labels: bool = True,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""

    def _leads_to(self) -> str:
        return str(self.graph.get("passes", ""))

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
        """Return an attribute of the edges as an array (layers, queries, keys), 0 without edge."""
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
        """Keep what leads to one token, or from one, and say how much passes over each edge.

        Every node passes on, by weight, what was passed to it. With a query, an edge's ``passes``
        is the share of the query that came over it: in each layer they sum to 1 (with a key, to its
        share), and at the input nodes they are `gattn.analysis.rollout`. Without a query it is the
        share of the edge's end that came over it from the key. If edges were dropped, all of these
        are lower bounds, as in `gattn.analysis.rollout`.

        Parameters
        ----------
        query : int, str or (depth, position), optional
            Where it leads to; a token alone, by its position or text, is the one after all layers.
        key : int, str or (depth, position), optional
            Where it comes from; a token alone is the one in the input.

        Returns
        -------
        Unrolled
            The edges over which something passes.

        Raises
        ------
        SelectionError
            If neither is given, or there is no such node.
        """
        if query is None and key is None:
            raise SelectionError(
                "Say which token: query= where it leads to, key= where it comes from, or both."
            )
        weights = self.matrices()
        every = np.ones((self.depth + 1, len(self.positions)))
        came = every if key is None else self._came(weights, key)
        goes = every if query is None else self._goes(weights, query)
        passes = goes[1:, :, None] * weights * came[:-1, None, :]
        return self._with_passes(passes, goes * came, "rollout", query, key)

    def flow(self, *, key: int | str | Node, query: int | str | Node) -> Unrolled:
        """Keep a maximum flow from one token to another: ``passes`` is what flows over each edge.

        How much flows in all is unique (`gattn.analysis.flow`), but mostly not along which paths:
        this is one of the maximum flows.

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
            If there is no such node.
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

    def _came(self, weights: Floats, key: int | str | Node) -> Floats:
        """Return the share of each node that came from the key."""
        depth, came = self._starts(key, 0)
        for n in range(depth, self.depth):
            came[n + 1] = weights[n] @ came[n]
        return came

    def _goes(self, weights: Floats, query: int | str | Node) -> Floats:
        """Return the share of each node that goes to the query."""
        depth, goes = self._starts(query, self.depth)
        for n in reversed(range(depth)):
            goes[n] = goes[n + 1] @ weights[n]
        return goes

    def _starts(self, node: int | str | Node, depth: int) -> tuple[int, Floats]:
        """Return 1 at a node, and its depth."""
        shares = np.zeros((self.depth + 1, len(self.positions)))
        depth, position = self._place(node, depth)
        shares[depth, self._row(position)] = 1.0
        return depth, shares

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
        """Return the node from which all comes, or to which all goes, if there is one."""
        if f"{name}_depth" not in self.graph:
            return None
        return self.graph[f"{name}_depth"], self.graph[f"{name}_position"]
