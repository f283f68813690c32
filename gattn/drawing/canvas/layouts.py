"""Layouts: pure functions from an attention graph to the positions of its nodes.

Positions are a dict from node to (x, y), as NetworkX uses them; nodes are named as by
`AttentionGraph.to_networkx`: positions, ``("key", j)`` and ``("query", i)``, and -1 for a sink.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TypeAlias

from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK
from gattn.names.pieces import spelled

Node: TypeAlias = Hashable
Positions: TypeAlias = dict[Node, tuple[float, float]]

_FEW = 0.25
"""The share of the longer row of an arc diagram that the shorter one takes at least."""


def ends(head: AttentionGraph, *, split: bool = False) -> tuple[list[Node], list[Node]]:
    """List the node of each key and the node of each row of queries.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    split : bool
        Whether a token is two nodes, one as key and one as query, as it always is where bipartite.
    """
    keys, queries = head.node_ids()
    if split or head.graph.is_bipartite:
        return [("key", j) for j in keys], [("query", i) for i in queries]
    return list(keys), list(queries)


def node_labels(head: AttentionGraph, *, split: bool = False) -> dict[Node, str]:
    """Map each node, keys before queries, to its token's text; the sink is not among them."""
    keys, queries = ends(head, split=split)
    if split or head.graph.is_bipartite:
        texts = [*spelled(head.labels()[: len(keys)]), *spelled(head.query_labels())]
        return dict(zip([*keys, *queries], texts, strict=True))
    every = range(head.graph.num_tokens) if head.positions is None else head.positions.tolist()
    return dict(zip(every, spelled(head.labels()), strict=True))


def generated(head: AttentionGraph, *, split: bool = False) -> list[Node]:
    """List the nodes of generated tokens; where bipartite, these are queries."""
    if not (split or head.graph.is_bipartite):
        return list(node_labels(head))[head.graph.num_tokens - head.generated :]
    sides = zip(ends(head, split=True), generated_ends(head), strict=True)
    return [node for nodes, count in sides for node in nodes[len(nodes) - count :]]


def generated_ends(head: AttentionGraph) -> tuple[int, int]:
    """Count the generated tokens among the keys and among the queries: the last ones of each."""
    graph = head.graph
    if graph.is_bipartite:
        return 0, head.generated
    first = graph.num_tokens - head.generated
    queries = graph.query_offset + graph.num_queries - first
    return max(graph.num_keys - first, 0), min(max(queries, 0), graph.num_queries)


def arcs(head: AttentionGraph) -> Positions:
    """Put the tokens on one line, keys before queries where bipartite, a sink apart on the left.

    A few queries, or keys, among many others stand further apart, so that they can be told apart.
    """
    placed: Positions = {}
    at = 0.0
    for nodes, apart in arc_sides(head):
        placed |= {node: (at + i * apart, 0.0) for i, node in enumerate(nodes)}
        at += (len(nodes) - 1) * apart + 2.0 if nodes else 1.0
    return placed | _sink(head, (-2.0, 0.0))


def arc_sides(head: AttentionGraph) -> list[tuple[list[Node], float]]:
    """List the nodes that stand side by side as keys, and as queries, and how far apart."""
    if not head.graph.is_bipartite:
        return [(list(node_labels(head)), 1.0)]
    keys, queries = ends(head)
    least = _FEW * max(len(keys), len(queries))
    return [(nodes, max(1.0, least / max(len(nodes), 1))) for nodes in (keys, queries)]


def columns(head: AttentionGraph) -> Positions:
    """Put keys in a left column and queries in a right one, from top to bottom.

    A token of self-attention stands in both columns, at the same height; of two texts, the shorter
    is as high as the other.
    """
    keys, queries = ends(head, split=True)
    apart = columns_apart(head)
    shift = 0.0 if head.graph.is_bipartite else float(head.graph.query_offset)
    placed: Positions = {}
    for x, nodes, first, step in zip((0.0, 1.0), (keys, queries), (0.0, shift), apart, strict=True):
        placed |= {node: (x, -first - (i + 0.5) * step + 0.5) for i, node in enumerate(nodes)}
    return placed | _sink(head, (0.0, -float(len(keys) * apart[0] + 1)))


def columns_apart(head: AttentionGraph) -> tuple[float, float]:
    """Return how far apart the keys and the queries of columns stand; 1 in the longer column."""
    if not head.graph.is_bipartite:
        return 1.0, 1.0
    keys, queries = max(head.graph.num_keys, 1), max(head.graph.num_queries, 1)
    most = max(keys, queries)
    return most / keys, most / queries


def circle(head: AttentionGraph) -> Positions:
    """Put the tokens clockwise on a circle, a gap at the top, a sink in its centre.

    Where bipartite, queries run down the right half and keys down the left one.
    """
    nodes = list(node_labels(head))
    step = math.tau / (len(nodes) + 1)
    angles = [step * (i + 1) for i in range(len(nodes))]
    if head.graph.is_bipartite:
        sizes = head.graph.num_keys, head.graph.num_queries
        angles = [-math.pi * (i + 1) / (sizes[0] + 1) for i in range(sizes[0])]
        angles += [math.pi * (i + 1) / (sizes[1] + 1) for i in range(sizes[1])]
    placed: Positions = {
        node: (math.sin(angle), math.cos(angle)) for node, angle in zip(nodes, angles, strict=True)
    }
    return placed | _sink(head, (0.0, 0.0))


def _sink(head: AttentionGraph, place: tuple[float, float]) -> Positions:
    return {} if head.sink is None else {SINK: place}
