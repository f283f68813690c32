"""NetworkX graphs as attention graphs."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gattn.edit_records import EditRecord, from_text
from gattn.errors import GraphError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.merging import unless_counted
from gattn.heads.networks import SINK, TEXTS

if TYPE_CHECKING:
    import networkx as nx


def fields_from(graph: nx.DiGraph[Any], weight: str = "weight") -> dict[str, Any]:
    """Read the fields of an `AttentionGraph` from a directed graph whose edges run to the query.

    What `to_networkx` wrote comes back whole. In another graph, nodes that are not whole numbers
    take positions in the graph's own order, and nothing counts as dropped.

    Parameters
    ----------
    graph : networkx.DiGraph
        The graph.
    weight : str
        The edge attribute that holds the attention. Every edge must have it.

    Raises
    ------
    GraphError
        Where the graph is undirected or a multigraph, or an edge has no such attribute.
    """
    import networkx as nx

    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise GraphError(f"An attention graph is read from a nx.DiGraph; {what_else(graph)}")
    sides = {
        node for node in graph if isinstance(node, tuple) and node[:1] in (("key",), ("query",))
    }
    real = [node for node in graph if node != SINK or not graph.nodes[node].get("virtual")]
    bipartite = bool(sides) and len(sides) == len(real)
    if bipartite:
        keys = sorted(node for node in real if node[0] == "key")
        queries = sorted(node for node in real if node[0] == "query")
        offset = 0
    else:
        whole = all(isinstance(node, int) and not isinstance(node, bool) for node in real)
        keys = sorted(real) if whole else real
        rows = [i for i, node in enumerate(keys) if "total_edges" in graph.nodes[node]]
        offset = rows[0] if rows else 0
        queries = keys[offset : rows[-1] + 1] if rows else keys
    return _read(graph, keys, queries, offset, bipartite, weight)


def what_else(thing: object) -> str:
    """Say what a thing is that is no `nx.DiGraph`, and what to do."""
    import networkx as nx

    kind = type(thing).__name__
    if not isinstance(thing, nx.Graph):
        return f"this is a {kind}."
    if thing.is_multigraph():
        return f"a {kind} may have several edges for one pair: give one edge a pair."
    return (
        f"a {kind} is undirected, but attention runs one way, from key to query: build a "
        "nx.DiGraph, or take graph.to_directed() where each edge holds both ways."
    )


def _attention(edges: list[tuple[Any, Any, dict[str, Any]]], name: str) -> list[Any]:
    for key, query, edge in edges:
        if name not in edge:
            known = ", ".join(sorted(map(repr, edge)))
            raise GraphError(
                f"The edge ({key!r}, {query!r}) has no attribute {name!r}, which would be its "
                f"attention; it has {known or 'none at all'}. Set it on every edge, or say which "
                'attribute it is, as in from_networkx(graph, weight="attention").'
            )
        value = edge[name]
        if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
            raise GraphError(
                f"The {name} of the edge ({key!r}, {query!r}) must be a real number, not "
                f"{value!r:.60}."
            )
    return [edge[name] for *_, edge in edges]


def _read(
    graph: nx.DiGraph[Any],
    keys: list[Any],
    queries: list[Any],
    offset: int,
    bipartite: bool,
    weight: str,
) -> dict[str, Any]:
    key_index = {node: index for index, node in enumerate(keys)}
    row_index = {node: index for index, node in enumerate(queries)}
    found = [
        (row_index[query], key_index[key], edge)
        for key, query, edge in graph.edges(data=True)
        if key in key_index
    ]
    found.sort(key=lambda edge: edge[:2])
    kind = _kind(graph)
    named = [(keys[key], queries[row], edge) for row, key, edge in found]
    attention = _numbers(_attention(named, weight), kind, weight)
    row = torch.tensor([row for row, *_ in found], dtype=torch.long)
    key = torch.tensor([key for _, key, _ in found], dtype=torch.long)
    rule = Edges.from_pairs(row, key, len(queries), offset)
    num_keys = min(len(keys), graph.graph.get("num_keys", len(keys)))
    if len(key) and int(key.max()) >= num_keys:
        raise GraphError(
            f"The graph says num_keys={num_keys}, but has an edge from key {int(key.max())}."
        )
    tokens = TokenGraph(rule, len(queries), num_keys, offset, bipartite)
    mass = np.bincount(row.numpy(), np.abs(attention), len(queries))
    degree = np.bincount(row.numpy(), minlength=len(queries))
    nodes = graph.nodes
    stored = {
        name: _numbers(_attention(named, name), kind, name)
        for name in ("score", "contribution", "value_norm")
        if found and all(name in edge for *_, edge in found)
    }
    words = [nodes[node].get("word") for node in keys]
    return {
        **stored,
        "graph": tokens,
        "attention": attention,
        "total_mass": _numbers(
            [nodes[q].get("total_mass", m) for q, m in zip(queries, mass, strict=True)],
            kind,
            "total_mass",
        ),
        "total_edges": _numbers(
            [nodes[q].get("total_edges", d) for q, d in zip(queries, degree, strict=True)],
            np.dtype(np.int64),
            "total_edges",
        ),
        "sink": _sink(graph, queries, kind, weight),
        "tokens": tuple(str(nodes[node].get("token", node)) for node in keys),
        "query_tokens": tuple(str(nodes[q].get("token", q)) for q in queries) if bipartite else (),
        "words": tuple(words) if any(word is not None for word in words) else (),
        "positions": _positions(keys, bipartite),
        "query_positions": _positions(queries, bipartite) if bipartite else None,
        "layer": graph.graph.get("layer"),
        "head": graph.graph.get("head"),
        "key_value_head": graph.graph.get("key_value_head"),
        "generated": sum(
            bool(nodes[node].get("generated")) for node in (queries if bipartite else keys)
        ),
        "kept_by": _kept(graph.graph.get("keep", "All()")),
        "edits": _edits(graph.graph.get("edits", "[]")),
        **{name: graph.graph.get(name, "") for name in TEXTS},
    }


def _kept(text: Any) -> Any:
    return steps.from_text(text) if isinstance(text, str) else text


def _edits(text: Any) -> tuple[EditRecord, ...]:
    try:
        return from_text(text)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise GraphError(f"The graph's attribute edits holds no edits: {error}.") from error


def _kind(graph: nx.DiGraph[Any]) -> np.dtype[Any]:
    name = graph.graph.get("dtype", "float64")
    if name not in ("float16", "float32", "float64"):
        raise GraphError(f"The graph's dtype must be float16, float32 or float64, not {name!r}.")
    kind: np.dtype[Any] = np.dtype(name)
    return kind


def _numbers(values: list[Any], kind: np.dtype[Any], name: str) -> Any:
    try:
        return np.fromiter(values, kind, len(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"The attribute {name} must hold numbers: {error}.") from error


def _positions(nodes: list[Any], bipartite: bool) -> Any:
    ids = [node[1] if bipartite else node for node in nodes]
    is_position = all(isinstance(node, int) for node in ids)
    return unless_counted(np.array(ids, dtype=np.int64)) if is_position else None


def _sink(graph: nx.DiGraph[Any], queries: list[Any], kind: np.dtype[Any], weight: str) -> Any:
    if SINK not in graph or not graph.nodes[SINK].get("virtual"):
        return None
    edges = [(SINK, query, graph.get_edge_data(SINK, query)) for query in queries]
    if missing := [query for _, query, edge in edges if edge is None]:
        raise GraphError(
            f"The sink, node {SINK}, has no edge to query {missing[0]!r}: give it one of weight 0, "
            "or remove the sink."
        )
    return _numbers(_attention(edges, weight), kind, weight)
