"""NetworkX graphs as attention graphs."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.checks import finite_number
from gattn.edit_records import EditRecord, from_text
from gattn.errors import GraphError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.fields import TEXTS
from gattn.heads.geometry import Geometry, Layout
from gattn.heads.geometry.written import axes_of
from gattn.heads.geometry.written import from_text as geometry_from
from gattn.heads.merging import unless_counted
from gattn.heads.networks import SINK

if TYPE_CHECKING:
    import networkx as nx

_Edge: TypeAlias = tuple[int, int, dict[str, Any]]


def fields_from(
    graph: nx.DiGraph[Any], weight: str = "weight", default: float | None = None
) -> dict[str, Any]:
    """Read the fields of an `AttentionGraph` from a directed graph whose edges run to the query.

    Graphs made by `to_networkx` come back complete. In other graphs, nodes that are not whole
    numbers get positions in the graph's own order, no edges count as dropped, and nodes lie where
    their attribute ``pos`` says, if all of them have it.

    Parameters
    ----------
    graph : networkx.DiGraph
        The graph.
    weight : str
        The edge attribute that holds the attention.
    default : float, optional
        The attention of edges without it; by default every edge must have it.

    Raises
    ------
    GraphError
        If the graph is undirected or a multigraph, or an edge lacks the attribute.
    """
    import networkx as nx

    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise GraphError(f"An attention graph is read from a nx.DiGraph; {what_else(graph)}")
    if default is not None:
        finite_number("default", default)
    nodes = _Nodes.of(graph)
    kind = _kind(graph)
    edges = nodes.edges(graph)
    values = nodes.edge_values(edges, kind, weight, default)
    tokens = nodes.token_graph(graph, edges)
    return {
        **values,
        **nodes.masses(graph, tokens, values["attention"]),
        **nodes.texts(graph),
        **nodes.geometries(graph),
        **{name: graph.graph.get(name) for name in ("layer", "head", "key_value_head")},
        **{name: graph.graph.get(name, "") for name in TEXTS},
        "graph": tokens,
        "sink": _sink(graph, nodes.queries, kind, weight, default),
        "kept_by": _kept(graph.graph.get("keep", "All()")),
        "edits": _edits(graph.graph.get("edits", "[]")),
    }


def what_else(thing: object) -> str:
    """Return what a thing is that is not an `nx.DiGraph`, and what to do."""
    import networkx as nx

    kind = type(thing).__name__
    if not isinstance(thing, nx.Graph):
        writes = next((one for one in ("to_csv", "to_netcdf") if hasattr(thing, one)), None)
        return f"this is of type {kind}{f': write it by its {writes}(path)' if writes else ''}."
    if thing.is_multigraph():
        return f"a {kind} may have several edges per pair: give each pair at most one edge."
    return (
        f"a {kind} is undirected, but attention runs one way, from key to query: build a "
        "nx.DiGraph, or take graph.to_directed() if each edge runs both ways."
    )


class _Nodes(NamedTuple):
    """The nodes that are keys and queries, in order, and the first query's place among the keys."""

    keys: list[Any]
    queries: list[Any]
    offset: int
    is_bipartite: bool

    @classmethod
    def of(cls, graph: nx.DiGraph[Any]) -> _Nodes:
        real = [node for node in graph if node != SINK or not graph.nodes[node].get("virtual")]
        sides = [node[0] if isinstance(node, tuple) and node else None for node in real]
        if real and set(sides) <= {"key", "query"}:
            keys, queries = (
                sorted(node for node, is_on in zip(real, sides, strict=True) if is_on == side)
                for side in ("key", "query")
            )
            return cls(keys, queries, 0, True)
        is_whole = all(isinstance(node, int) and not isinstance(node, bool) for node in real)
        keys = sorted(real) if is_whole else real
        rows = [i for i, node in enumerate(keys) if "total_edges" in graph.nodes[node]]
        offset, stop = (rows[0], rows[-1] + 1) if rows else (0, len(keys))
        return cls(keys, keys[offset:stop], offset, False)

    def edges(self, graph: nx.DiGraph[Any]) -> list[_Edge]:
        """List the edges as (row, column, attributes), by query, then key."""
        columns = {node: index for index, node in enumerate(self.keys)}
        rows = {node: index for index, node in enumerate(self.queries)}
        found = [
            (rows[query], columns[key], attributes)
            for key, query, attributes in graph.edges(data=True)
            if key in columns
        ]
        return sorted(found, key=lambda edge: edge[:2])

    def token_graph(self, graph: nx.DiGraph[Any], edges: list[_Edge]) -> TokenGraph:
        num_keys = min(len(self.keys), graph.graph.get("num_keys", len(self.keys)))
        row = torch.tensor([row for row, *_ in edges], dtype=torch.long, device="cpu")
        key = torch.tensor([column for _, column, _ in edges], dtype=torch.long, device="cpu")
        if len(key) and int(key.max()) >= num_keys:
            raise GraphError(
                f"The graph says num_keys={num_keys}, but has an edge from key {int(key.max())}."
            )
        rule = Edges.from_pairs(row, key, len(self.queries), self.offset)
        return TokenGraph(rule, len(self.queries), num_keys, self.offset, self.is_bipartite)

    def edge_values(
        self, edges: list[_Edge], kind: np.dtype[Any], weight: str, default: float | None
    ) -> dict[str, Any]:
        """Read the attention, and what else every edge has."""
        named = [(self.keys[key], self.queries[row], found) for row, key, found in edges]
        values = {"attention": _numbers(_listed(named, weight, default), kind, weight)}
        for name in ("score", "contribution", "value_norm"):
            if edges and all(name in attributes for *_, attributes in edges):
                values[name] = _numbers(_listed(named, name), kind, name)
        return values

    def masses(self, graph: nx.DiGraph[Any], tokens: TokenGraph, attention: Any) -> dict[str, Any]:
        """Read what queries had before edges were dropped; by default what they have now."""
        mass = np.bincount(tokens.edge_index[1].numpy(), np.abs(attention), len(self.queries))
        edges = tokens.in_degree.numpy()

        def read(name: str, now: NDArray[Any], kind: Any) -> Any:
            had = zip(self.queries, now.tolist(), strict=True)
            return _numbers([graph.nodes[q].get(name, one) for q, one in had], kind, name)

        return {
            "total_mass": read("total_mass", mass, attention.dtype),
            "total_edges": read("total_edges", edges, np.dtype(np.int64)),
        }

    def texts(self, graph: nx.DiGraph[Any]) -> dict[str, Any]:
        """Read tokens, words and positions."""
        tokens, query_tokens = (
            tuple(str(graph.nodes[node].get("token", node)) for node in nodes)
            for nodes in (self.keys, self.queries)
        )
        words, segments = (
            tuple(graph.nodes[node].get(name) for node in self.keys) for name in ("word", "segment")
        )
        of_text = self.queries if self.is_bipartite else self.keys
        return {
            "tokens": tokens,
            "query_tokens": query_tokens if self.is_bipartite else (),
            "words": words if any(word is not None for word in words) else (),
            "segments": () if None in segments else segments,
            "positions": _positions(self.keys, self.is_bipartite),
            "query_positions": _positions(self.queries, True) if self.is_bipartite else None,
            "generated": sum(bool(graph.nodes[node].get("generated")) for node in of_text),
        }

    def geometries(self, graph: nx.DiGraph[Any]) -> dict[str, Geometry | None]:
        """Read where the nodes lie."""
        found = {"geometry": _geometry(graph, self.keys, "geometry")}
        if self.is_bipartite:
            found["query_geometry"] = _geometry(graph, self.queries, "query_geometry")
        return found


def _geometry(graph: nx.DiGraph[Any], nodes: list[Any], name: str) -> Geometry | None:
    if name not in graph.graph:
        places: list[Any] = [graph.nodes[node].get("pos") for node in nodes]
        if not places or any(np.shape(place) != (2,) for place in places):
            return None
        return Layout(np.array(places))
    try:
        text = graph.graph[name]
        return geometry_from(
            text,
            {
                axis: np.array([graph.nodes[node].get(axis, np.nan) for node in nodes], np.float64)
                for axis in axes_of(text)
            },
        )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise GraphError(f"The graph's attribute {name} is not a geometry: {error}.") from error


def _listed(
    edges: list[tuple[Any, Any, dict[str, Any]]], name: str, default: float | None = None
) -> list[Any]:
    """List an attribute of edges (key, query, attributes); without a default, all must have it."""
    found = []
    for key, query, attributes in edges:
        value = attributes.get(name, default)
        if value is None and name not in attributes:
            known = ", ".join(sorted(map(repr, attributes)))
            raise GraphError(
                f"The edge ({key!r}, {query!r}) has no attribute {name!r}, which would be its "
                f"attention; it has {known or 'no attributes'}. Set it on every edge, or name "
                'another attribute, as in from_networkx(graph, weight="attention"). If all such '
                "edges have the same attention, say which, as in default=1.0."
            )
        if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
            raise GraphError(
                f"The {name} of the edge ({key!r}, {query!r}) must be a real number, not "
                f"{value!r:.60}."
            )
        found.append(value)
    return found


def _kept(text: Any) -> Any:
    return steps.from_text(text) if isinstance(text, str) else text


def _edits(text: Any) -> tuple[EditRecord, ...]:
    try:
        return from_text(text)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise GraphError(f"The graph's attribute edits is not a list of edits: {error}.") from error


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


def _sink(
    graph: nx.DiGraph[Any],
    queries: list[Any],
    kind: np.dtype[Any],
    weight: str,
    default: float | None,
) -> Any:
    if SINK not in graph or not graph.nodes[SINK].get("virtual"):
        return None
    edges = [(SINK, query, graph.get_edge_data(SINK, query)) for query in queries]
    if missing := [query for _, query, edge in edges if edge is None]:
        raise GraphError(
            f"The sink, node {SINK}, has no edge to query {missing[0]!r}: give it one of weight 0, "
            "or remove the sink."
        )
    return _numbers(_listed(edges, weight, default), kind, weight)
