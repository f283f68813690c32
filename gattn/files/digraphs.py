"""Heads and other directed graphs, in the form that all graph formats share."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import networkx as nx

from gattn.door import GRAPHS, graph_of
from gattn.errors import FileError, GraphError
from gattn.files.plain import attribute_name
from gattn.heads.from_networks import what_else
from gattn.heads.head import AttentionGraph

_MARK = "gattn"
_SCHEMAS = {"Circuit": 2}
"""The version of what files hold of a kind of graph; 1 of others."""
_TABLE = "; graphs.table().to_csv(path) writes what was measured of them"


def mapped(
    graph: nx.DiGraph[Any], node: Callable[[Any], Any], value: Callable[[Any], Any]
) -> nx.DiGraph[Any]:
    """Copy a graph, converting its node ids and the values of its attributes."""

    def changed(attributes: dict[str, Any]) -> dict[str, Any]:
        return {attribute_name(name): value(content) for name, content in attributes.items()}

    copy: nx.DiGraph[Any] = nx.DiGraph()
    copy.graph.update(changed(graph.graph))
    copy.add_nodes_from((node(n), changed(attributes)) for n, attributes in graph.nodes(data=True))
    copy.add_edges_from(
        (node(a), node(b), changed(attributes)) for a, b, attributes in graph.edges(data=True)
    )
    return copy


def as_digraph(thing: Any) -> nx.DiGraph[Any]:
    """Turn a head or directed graph into a directed graph."""
    if isinstance(thing, AttentionGraph):
        return thing.to_networkx()
    if isinstance(thing, Sequence) and thing and all(isinstance(one, nx.DiGraph) for one in thing):
        raise FileError(
            f"A file holds one graph, and this {type(thing).__name__} has {len(thing)}: save each "
            f"by itself, as in gattn.save(graphs[0], path){_TABLE * hasattr(thing, 'table')}."
        )
    if not isinstance(thing, nx.DiGraph) or thing.is_multigraph():
        raise FileError(
            "Only an AttentionGraph, an AttentionTrace or a networkx.DiGraph can be saved; "
            f"{what_else(thing)}"
        )
    return thing


def marked(thing: Any) -> nx.DiGraph[Any]:
    """Turn a head or directed graph into a directed graph that remembers its type."""
    graph = as_digraph(thing).copy()
    kind = "AttentionGraph" if isinstance(thing, AttentionGraph) else _class_of(thing)
    graph.graph[_MARK] = f"{kind} {_schema_of(kind)}"
    return graph


def _class_of(graph: nx.DiGraph[Any]) -> str:
    name = type(graph).__name__
    return name if GRAPHS.get(name) == type(graph).__module__ else "DiGraph"


def _schema_of(kind: str) -> int:
    return _SCHEMAS.get(kind, 1)


def is_marked(graph: nx.Graph[Any]) -> bool:
    """Return whether gattn wrote the graph."""
    return _MARK in graph.graph


def check_ends(place: object, nodes: Container[Any], edges: Iterable[tuple[Any, Any]]) -> None:
    """Refuse edges between nodes that the file does not list; NetworkX would add these nodes."""
    for edge in edges:
        if missing := [end for end in edge if end not in nodes]:
            raise FileError(
                f"{place}: the edge from {edge[0]!r:.80} to {edge[1]!r:.80} has the end "
                f"{missing[0]!r:.80}, but the file lists no such node."
            )


def directed(graph: nx.Graph[Any], place: object) -> nx.DiGraph[Any]:
    """Check that a file holds a directed graph."""
    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise FileError(
            f"{place}: expected a directed graph with one edge per pair, but it holds a "
            f"{type(graph).__name__}: read it with networkx."
        )
    return graph


def unmarked(graph: nx.DiGraph[Any], place: object) -> AttentionGraph | nx.DiGraph[Any]:
    """Undo `marked`; graphs that gattn did not write stay as they are."""
    kind, _, schema = str(graph.graph.pop(_MARK, "DiGraph 1")).partition(" ")
    known = str(_schema_of(kind))
    if schema != known or kind not in ("AttentionGraph", "DiGraph", *GRAPHS):
        writer = "a newer gattn may have written it"
        if schema.isdecimal() and int(schema) < int(known):
            writer = "an older gattn wrote it; make it again"
        raise FileError(
            f"{place} holds {kind!r} of schema {schema!r}, but this gattn reads schema {known}: "
            f"{writer}."
        )
    if kind == "DiGraph":
        return graph
    if kind in GRAPHS:
        return graph_of(kind, graph)
    try:
        return AttentionGraph.from_networkx(graph)
    except (GraphError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{place} does not hold the attention graph it announces: {error}"
        ) from error
