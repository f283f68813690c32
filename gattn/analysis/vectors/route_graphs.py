"""The graph of routes to a prediction, and its strongest paths."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import networkx as nx

from gattn.analysis.reading.results import Graph, Table, edits_of
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.names.text import numbered, placed, quoted, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

Node: TypeAlias = tuple[int, int, str]
"""Layer, position and kind."""

RANKS = {"residual": 0, "attention": 1, "middle": 2, "mlp": 3}
"""The order of the kinds of nodes within a layer."""


class Routes(Graph):
    """The routes to a prediction, a `networkx.DiGraph` whose edges run the way information does.

    Nodes are ``(layer, position, kind)``, with these kinds:

    - "residual": the stream of a token at the start of a layer; ``(layers, position, "residual")``
      is the last, from which the prediction is read, and those of layer 0 are the embeddings;
    - "attention": what a token's attention adds to its stream;
    - "middle": the stream after attention, unless attention and MLP are parallel;
    - "mlp": what the MLP adds.

    Nodes have ``layer``, ``position``, ``kind``, ``token``, and ``strength``: that of all paths
    from there to the prediction together. The embeddings' strengths sum to 1.

    Edges have

    - ``kind``: "residual" along the stream, "attention" from another token, "self" from the token
      itself by attention, "mlp" into the MLP, "output" from attention or MLP into the stream;
    - ``importance``: its share in the stream after attention, or after the MLP;
    - ``weight``: its share among all edges into its target; these sum to 1, and the strength of a
      path is the product of its weights;
    - ``head_0``, ``head_1`` ...: the importance of each head of attention; ``head``: the most
      important one.

    The graph has ``position``, ``predicted``, ``threshold``, ``norm``, ``layers``, ``tokens`` (a
    JSON list), ``computed_from``, ``notes``, and ``error``: how far the parts were from their sums,
    relative to the largest number. All are plain numbers and texts, which NetworkX writes. Tokens
    may hold control characters, which its GraphML and GEXF cannot: `gattn.save` escapes them, and
    `gattn.load` gives such routes back from ``.json`` and ``.graphml``.

    A subgraph keeps the weights and strengths of the whole; its paths are those that lie in it from
    an embedding to the prediction.
    """

    if TYPE_CHECKING:

        def draw(
            self,
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            by: str = "strength",
            paths: int = 0,
            cmap: str | Colormap | None = None,
            labels: bool = True,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts of all tokens, on a route or not."""
        return tuple(json.loads(self.graph.get("tokens", "[]")))

    def _leads_to(self) -> str:
        position, predicted = self.graph.get("position"), str(self.graph.get("predicted", ""))
        if position is None or not position < len(self.tokens):
            return ""
        said = f"to position {placed(position, self.tokens, position)}"
        return f"{said}, which predicts {quoted(predicted, is_entry=True)}" if predicted else said

    def weigh(self) -> None:
        """Give each node the strength of all paths from it, over their weights."""
        for node in sorted(self, key=_place, reverse=True):
            strengths = [
                self.nodes[target]["strength"] * facts["weight"]
                for target, facts in self.succ[node].items()
            ]
            self.nodes[node]["strength"] = float(sum(strengths)) if strengths else 1.0

    def check(self) -> None:
        """Refuse what is not, or no longer, a graph of routes, such as a reversed one."""
        for node, facts in self.nodes(data=True):
            is_node = isinstance(node, tuple) and len(node) == 3 and node[2] in RANKS
            if not is_node or not {"strength", "token"} <= set(facts):
                raise SelectionError(
                    f"Routes have nodes (layer, position, kind) with a strength and a token, not "
                    f"{node!r} with {sorted(facts)}: take networkx.DiGraph(graph) for other graphs."
                )
        for source, target, facts in self.edges(data=True):
            if _place(source) >= _place(target):
                raise SelectionError(
                    f"Routes run up to the prediction, not from {source} to {target}: read them as "
                    "`routes` gives them, not reversed."
                )
            if not {"kind", "importance", "weight"} <= set(facts):
                raise SelectionError(
                    f"Edges of routes have a kind, importance and weight; {source} to {target} has "
                    f"{sorted(facts)}: take networkx.DiGraph(graph) for other graphs."
                )

    def paths(self, k: int = 10, *, mlp: bool = False) -> Table:
        """Rank the paths from the embeddings to the prediction by their strength.

        Parameters
        ----------
        k : int
            How many at most.
        mlp : bool
            Whether paths through an MLP and past it are told apart; by default their strengths are
            added up.

        Returns
        -------
        Table
            One row per path, the strongest first: ``strength``; ``from`` and ``token`` where it
            begins; ``path`` in words, with ``2.1,2.0→`` for attention by the heads 1 and 0 of layer
            2, the most important first, and ``2.1↺`` for a token's to itself; ``nodes``.

        Notes
        -----
        Each node keeps its k best paths, in one pass over the graph.

        Raises
        ------
        SelectionError
            If k is not a positive number, or the graph does not have the form of routes or lacks
            the node from which the prediction is read.
        """
        count = whole("k", k, 1, SelectionError)
        self.check()
        if self.end not in self:
            raise SelectionError(
                f"The graph lacks {self.end}, from which the prediction is read, so no path "
                "ends there: keep this node."
            )
        best = self._best_paths(self if mlp else self._without_mlps(), count)
        nodes = [tuple(path.nodes()) for path in best]
        columns = {
            "strength": [path.strength for path in best],
            "from": [some[0][1] for some in nodes],
            "token": [self.nodes[some[0]]["token"] for some in nodes],
            "path": list(map(self._words, nodes)),
            "nodes": nodes,
        }
        return self._table(columns, "paths")

    def _best_paths(self, graph: nx.DiGraph[Node], count: int) -> list[_Path]:
        """Find the strongest paths of a graph with some of these nodes."""
        best: dict[Node, list[_Path]] = {}
        for node in sorted(graph, key=_place):
            known = (
                _Path(facts["weight"] * path.strength, node, path)
                for source, facts in graph.pred[node].items()
                for path in best[source]
            )
            best[node] = heapq.nlargest(count, known, key=lambda path: path.strength)
            if node[0] == 0 and node[2] == "residual":
                best[node] = [_Path(1.0, node, None)]
        return best[self.end]

    @property
    def end(self) -> Node:
        """The node from which the prediction is read."""
        try:
            return self.graph["layers"], self.graph["position"], "residual"
        except KeyError as error:
            raise SelectionError(
                f"Routes say how many layers there are and for which position they are: this graph "
                f"has no {error}, so it is not one of `routes`."
            ) from error

    def _without_mlps(self) -> nx.DiGraph[Node]:
        """Add the ways through MLPs to those past them."""
        graph: nx.DiGraph[Node] = nx.DiGraph()
        for source, target, facts in self.edges(data=True):
            if target[2] == "mlp":
                continue
            for begin in self.pred[source] if source[2] == "mlp" else [source]:
                known = graph.get_edge_data(begin, target, {"weight": 0.0})["weight"]
                graph.add_edge(begin, target, weight=known + facts["weight"])
        graph.add_node(self.end)
        return graph

    def _words(self, nodes: Sequence[Node]) -> str:
        """Write a path: its tokens, the heads between them, and its MLPs."""
        words = [numbered(nodes[0], visible(self.nodes[nodes[0]]["token"]))]
        for source, target in pairwise(nodes):
            if target[2] == "attention":
                heads = heads_of_edge(self.edges[source, target])
                ranked = sorted(heads, key=heads.__getitem__)[::-1]
                name = ",".join(f"{source[0]}.{head}" for head in ranked)
                if source[1] == target[1]:
                    words.append(f"{name}↺")
                else:
                    words.append(
                        f"{name}→ {numbered(target, visible(self.nodes[target]['token']))}"
                    )
            elif target[2] == "mlp":
                words.append(f"mlp {target[0]}")
        return " ".join(words)

    def attention_edges(self) -> Table:
        """List the edges of attention, by head, the strongest first.

        Returns
        -------
        Table
            One row per edge and head: ``layer``, ``head``, ``query``, ``key``, ``query_token``,
            ``key_token``, ``importance``, and ``strength``: that of all paths over it; ``why``
            after `why_edges`.
        """
        self.check()
        rows = []
        for source, target, facts in self.edges(data=True):
            if facts["kind"] in ("attention", "self"):
                through = self.nodes[target]["strength"] * facts["weight"]
                rows += [
                    {
                        "layer": source[0],
                        "head": head,
                        "query": target[1],
                        "key": source[1],
                        "query_token": self.nodes[target]["token"],
                        "key_token": self.nodes[source]["token"],
                        "importance": share,
                        "strength": through * share / facts["importance"],
                        **({"why": facts[f"why_{head}"]} if f"why_{head}" in facts else {}),
                    }
                    for head, share in heads_of_edge(facts).items()
                ]
        rows.sort(key=lambda row: (-row["strength"], row["layer"], row["head"]))
        return self._table(rows, "edges of routes")

    def _table(self, rows: Any, name: str) -> Table:
        edits = edits_of(self)
        source = self.computed_from
        return Table.of(rows, name=name, computed_from=source, notes=self.notes, edits=edits)


def _place(node: Node) -> tuple[int, int, int]:
    """Return a node's place in the order of layers and kinds."""
    return node[0], RANKS[node[2]], node[1]


def heads_of_edge(facts: Mapping[str, Any]) -> dict[int, float]:
    """Read an edge's importance by each head."""
    named = {name.removeprefix("head_"): share for name, share in facts.items()}
    return {int(name): share for name, share in named.items() if name.isdigit()}


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """A path to a node, as the node and the path before it."""

    strength: float
    node: Node
    before: _Path | None

    def nodes(self) -> list[Node]:
        """List its nodes from the first on."""
        path: _Path | None = self
        found = []
        while path is not None:
            found.append(path.node)
            path = path.before
        return found[::-1]
