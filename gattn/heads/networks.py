"""Attention graphs as NetworkX graphs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gattn.checks import check_memory
from gattn.edit_records import to_text
from gattn.errors import GraphError
from gattn.graph.networks import fill
from gattn.heads import steps
from gattn.heads.fields import TEXTS
from gattn.heads.geometry import Geometry, Grid
from gattn.heads.geometry.written import to_text as geometry_text

if TYPE_CHECKING:
    import networkx as nx

    from gattn.heads.head import AttentionGraph

_ROUNDING = 1e-5
"""The most that attention in single precision exceeds 1 by rounding."""
SINK = -1
"""The id of the virtual node that stands for a sink outside the sequence."""

_EDGE_BYTES, _NUMBER_BYTES = 256, 32  # about


def to_networkx(
    head: AttentionGraph, *, self_loops: bool = True, distance: bool = False
) -> nx.DiGraph[Any]:
    """Build the directed graph of a head's kept edges.

    The edge (j, i) follows the flow of information, from key j to query i, so the adjacency matrix
    is the transpose of A; ``graph.reverse()`` shows who attends to whom. All attributes are plain
    Python numbers and strings, which every NetworkX writer accepts.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    self_loops : bool
        Whether to include the edges from a token to itself.
    distance : bool
        Whether to add the edge attribute ``distance = -ln attention``, for algorithms that read
        weights as lengths. Edges of zero attention have distance infinity.

    Returns
    -------
    networkx.DiGraph
        Nodes are positions; in a bipartite graph, ``("key", j)`` and ``("query", i)``. Attributes,
        as far as known:

        - of edges, ``weight`` (the attention), ``score``, ``contribution``, ``value_norm`` and
          ``distance``;
        - of nodes, ``token``, ``position``, ``word`` (the number of the token's word),
          ``generated`` (True if the model generated it), ``bipartite`` (0 for keys, 1 for
          queries), and where it lies: ``row`` and ``column``, ``start`` and ``stop`` in seconds, or
          ``x`` and ``y``; of queries also ``kept_mass``, and ``total_mass`` and ``total_edges``
          before edges were dropped;
        - of the graph, ``layer``, ``head``, ``key_value_head``, ``model``, ``weight_function``,
          ``normalizer``, ``keep``, ``edits`` (a JSON list), ``geometry`` and ``query_geometry``
          (JSON, where tokens lie), ``dtype`` (of the attention) and ``num_keys`` (if not every
          token is a key).

        A sink is node -1, ``virtual``.
    """
    if distance and bool((head.attention < 0).any()):
        raise GraphError("distance=True needs attention >= 0; this head has negative attention.")
    numbers = len(head.edge_values) + distance
    size = (_EDGE_BYTES + _NUMBER_BYTES * numbers) * head.graph.num_edges
    check_memory(
        size,
        f"The NetworkX graph of {head}",
        "drop faint edges first with head.keep(gattn.Threshold(0.01))",
    )
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph(**_graph_attributes(head))
    graph.add_nodes_from(_nodes(head))
    _add_edges(graph, head if self_loops else head.without_self_loops(), distance)
    if head.sink is not None:
        graph.add_node(SINK, token="<sink>", position=SINK, virtual=True)
        for query, mass in zip(_ids(head)[1], head.sink.tolist(), strict=True):
            graph.add_edge(SINK, query, weight=mass)
            if distance:
                graph.edges[SINK, query]["distance"] = _distance(mass)
    return graph


def _add_edges(graph: nx.DiGraph[Any], head: AttentionGraph, distance: bool) -> None:
    keys, queries = _ids(head)
    columns = {name: values.tolist() for name, values in head.edge_values.items()}
    columns = {"weight": columns.pop("attention"), **columns}
    if distance:
        columns["distance"] = list(map(_distance, columns["weight"]))
    rows = zip(*columns.values(), strict=True)
    edges = head.key.tolist(), head.query.tolist()
    fill(graph, keys, queries, edges, (dict(zip(columns, row, strict=True)) for row in rows))


def _distance(attention: float) -> float:
    if 1 < attention < 1 + _ROUNDING:  # Dijkstra's algorithm refuses negative lengths
        return 0.0
    return -math.log(attention) if attention > 0 else math.inf


def _graph_attributes(head: AttentionGraph) -> dict[str, Any]:
    attributes = {
        "layer": head.layer,
        "head": head.head,
        "key_value_head": head.key_value_head,
        **{name: getattr(head, name) or None for name in TEXTS},
        "keep": steps.to_text(head.kept_by),
        "edits": to_text(head.edits) if head.edits else None,
        "geometry": None if head.geometry is None else geometry_text(head.geometry),
        "query_geometry": None
        if head.query_geometry is None
        else geometry_text(head.query_geometry),
        "dtype": head.attention.dtype.name,
        "num_keys": None if head.graph.num_keys == head.graph.num_tokens else head.graph.num_keys,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _ids(head: AttentionGraph) -> tuple[list[Any], list[Any]]:
    keys, queries = head.node_ids()
    if head.graph.is_bipartite:
        return [("key", j) for j in keys], [("query", i) for i in queries]
    return list(keys), list(queries)


def _nodes(head: AttentionGraph) -> list[tuple[Any, dict[str, Any]]]:
    keys, queries = _ids(head)
    bipartite = head.graph.is_bipartite
    every = range(head.graph.num_tokens) if head.positions is None else head.positions.tolist()
    ids = keys if bipartite else every
    nodes: dict[Any, dict[str, Any]] = {}
    for index, (node, token) in enumerate(zip(ids, head.labels(), strict=True)):
        nodes[node] = {"token": token, "position": node[1] if bipartite else node}
        if head.words and head.words[index] is not None:
            nodes[node]["word"] = head.words[index]
        if head.segments:
            nodes[node]["segment"] = head.segments[index]
    rows = zip(
        queries,
        head.query_labels(),
        head.kept_mass.tolist(),
        head.total_mass.tolist(),
        head.total_edges.tolist(),
        strict=True,
    )
    for node, token, kept, mass, edges in rows:
        attributes = nodes.setdefault(node, {"token": token})
        attributes.setdefault("position", node[1] if bipartite else node)
        attributes |= {"kept_mass": kept, "total_mass": mass, "total_edges": edges}
    _place(nodes, list(nodes)[: head.graph.num_tokens], head.geometry)
    _place(nodes, queries, head.query_geometry)
    if bipartite:
        for node, attributes in nodes.items():
            attributes["bipartite"] = int(node[0] == "query")
    for node in list(nodes)[len(nodes) - head.generated :]:
        nodes[node]["generated"] = True
    return list(nodes.items())


def _place(nodes: dict[Any, dict[str, Any]], some: list[Any], geometry: Geometry | None) -> None:
    """Tell nodes where they lie, those that do."""
    if geometry is None:
        return
    for axis, values in geometry.coordinates().items():
        for node, value in zip(some, values.tolist(), strict=True):
            if not math.isnan(value):
                nodes[node][axis] = int(value) if isinstance(geometry, Grid) else value
