"""Token graphs as NetworkX graphs, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gattn.checks import check_memory
from gattn.graph.listing import check_edges

if TYPE_CHECKING:
    import networkx as nx

    from gattn.graph.token_graph import TokenGraph

_EDGE_BYTES, _NODE_BYTES = 256, 512  # roughly, of a NetworkX graph


def from_networkx(cls: type[TokenGraph], graph: nx.Graph[Any]) -> TokenGraph:
    """Edges from a NetworkX graph: (j, i) lets i read j; an undirected edge goes both ways.

    Nodes 0 .. n-1 are positions; other nodes take positions in the graph's own order. A directed
    graph on ``("key", j)`` and ``("query", i)`` alone is bipartite. A sink outside the text, which
    is no token, is left out.
    """
    nodes = [node for node, is_sink in graph.nodes.data("virtual") if not is_sink]
    if set(nodes) == set(range(len(nodes))):
        nodes = list(range(len(nodes)))
    keys, queries = ([n for n in nodes if _is_on_side(n, side)] for side in ("key", "query"))
    if not graph.is_directed() or not nodes or len(keys) + len(queries) < len(nodes):
        keys = queries = nodes
    column = {node: index for index, node in enumerate(keys)}
    row = {node: index for index, node in enumerate(queries)}
    edges = (graph if graph.is_directed() else graph.to_directed()).edges()
    pairs = [(column[key], row[query]) for key, query in edges if key in column]
    index = torch.tensor(pairs, dtype=torch.long, device="cpu").reshape(-1, 2).T
    if keys is queries:
        return cls.from_edge_index(index, len(nodes))
    return cls.from_edge_index(index, num_queries=len(queries), num_keys=len(keys))


def _is_on_side(node: object, side: str) -> bool:
    return isinstance(node, tuple) and len(node) == 2 and node[0] == side


def to_networkx(graph: TokenGraph) -> nx.DiGraph[Any]:
    """Build the directed graph with an edge (j, i) where query i may attend to key j.

    Nodes are positions, or ``("key", j)`` and ``("query", i)`` if the graph is bipartite.
    """
    import networkx as nx

    check_memory(_NODE_BYTES * graph.num_tokens, f"The nodes of {graph}")
    check_edges(graph, _EDGE_BYTES, "The NetworkX graph", _NODE_BYTES * graph.num_tokens)
    network: nx.DiGraph[Any] = nx.DiGraph()
    nodes = list_nodes(graph)
    network.add_nodes_from(nodes)
    ids = [node for node, _ in nodes]
    queries = ids[graph.num_keys if graph.is_bipartite else graph.query_offset :]
    key, query = graph.edge_index.tolist()
    fill(network, ids, queries, (key, query), ({} for _ in key))
    return network


def fill(
    network: nx.DiGraph[Any],
    keys: Sequence[Any],
    queries: Sequence[Any],
    edges: tuple[Iterable[int], Iterable[int]],
    attributes: Iterable[dict[str, Any]],
) -> None:
    """Add new edges between nodes that are there, each with a dictionary of its own.

    It does what `add_edges_from` does, which looks for nodes, earlier edges and other forms of
    edges, and takes several times as long. NetworkX documents both dictionaries for subclasses.

    Parameters
    ----------
    network : networkx.DiGraph
        The graph.
    keys, queries : sequence
        Its nodes from which edges come, and those to which they go.
    edges : (iterable of int, iterable of int)
        The index of each edge's key, and of its query, in these.
    attributes : iterable of dict
        The attributes of each edge.
    """
    inner: Any = network
    from_key = [inner._succ[key] for key in keys]
    to_query = [inner._pred[query] for query in queries]
    for key, query, facts in zip(*edges, attributes, strict=True):
        from_key[key][queries[query]] = to_query[query][keys[key]] = facts


def list_nodes(graph: TokenGraph) -> list[tuple[Any, dict[str, Any]]]:
    """List the nodes for NetworkX as (id, attributes), keys before queries."""
    size = graph.num_keys + graph.num_queries if graph.is_bipartite else graph.num_tokens
    check_memory(_NODE_BYTES * size, f"The list of the {size:,} nodes of {graph}")
    if graph.is_bipartite:
        sides = (("key", graph.num_keys), ("query", graph.num_queries))
        return [
            ((side, i), {"position": i, "bipartite": int(side == "query")})
            for side, size in sides
            for i in range(size)
        ]
    return [(i, {"position": i}) for i in range(graph.num_tokens)]
