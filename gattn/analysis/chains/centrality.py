"""NetworkX's centralities and communities of every head, by any NetworkX backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias

import networkx as nx
import numpy as np

from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.heads import graphs_of
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Array
from gattn.errors import GraphError, SelectionError
from gattn.heads.head import AttentionGraph
from gattn.progress import walk

Direction: TypeAlias = Literal["attention", "information", "none"]

_DIRECTIONS = {
    "attention": "edges run from query to key, self-loops included",
    "information": "edges run from key to query, self-loops included",
    "none": "edges without direction, self-loops included: (A + Aᵀ) / 2",
}

_SHORTEST = 1e-12
"""The length of edges of attention 1; cycles of length 0 would make endless shortest paths."""
_ALONG_PATHS = (
    "betweenness_centrality",
    "betweenness_centrality_subset",
    "eccentricity",
    "load_centrality",
    "percolation_centrality",
)
"""Measures whose ``weight`` is a length; those that call theirs ``distance`` are known by that."""


def centrality(
    attention: Attention,
    measure: str | Callable[..., Any],
    *,
    tokens: Sequence[str] = (),
    direction: Direction = "attention",
    backend: str | None = None,
    progress: bool = True,
    **options: Any,
) -> Array:
    """Measure the tokens of every head by a centrality of NetworkX.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    tokens : sequence of str
        The texts of an array's tokens.
    measure : str or callable
        The name of NetworkX's function, such as "betweenness_centrality", or a function of a graph
        that gives one number per node.
    direction : {"attention", "information", "none"}
        Which way edges run. NetworkX's measures follow edges, and most call a node central if
        edges lead to it. With "attention" edges lead from query to key, so that tokens that are
        attended to are central; with "information" from key to query, as ``head.to_networkx()``
        has them, so that tokens that gather are central. With "none" edges have no direction:
        (A + Aᵀ) / 2.
    backend : str, optional
        The NetworkX backend that computes it, such as "cugraph" or "parallel", if installed.
    progress : bool
        Whether to show a progress bar.
    **options
        Passed on to the measure, such as ``k=100``. A measure that takes edge weights gets
        ``weight``, the attention, or if it follows paths ``distance``, ``-ln attention``, unless
        they are given here; ``weight=None`` counts every edge alike.

    Returns
    -------
    Array (layer, head, token)
        One number per token. Edges are those of kept attention above 0, self-loops included; a sink
        outside of the text is left out. NetworkX counts a self-loop as an edge, and in a degree at
        both of its ends: the degree centrality of a full head of three tokens is 3.0. To leave
        self-loops out, pass ``head.without_self_loops()``.

    Raises
    ------
    SelectionError
        If there is no such measure, direction or backend, or queries and keys are different
        tokens.
    GraphError
        If NetworkX cannot compute it, or the result is not one number per token.
    """
    function, name = named_function(measure, nx, "nx")
    options = usual_weights(function, name) | options
    layers = layers_of(attention, tokens).square()
    values = []
    for head, graph in networks_of(layers, direction, name, progress):
        found = call(function, graph, head, backend, options)
        if not isinstance(found, dict) or set(found) != set(graph):
            raise GraphError(
                f"{name} must give one number per token, not {type(found).__name__}; wrap "
                "it in a function that does, such as lambda graph: nx.hits(graph)[1]."
            )
        values.append([float(found[node]) for node in layers.positions])
    axes = layers.axes("layer", "head", "token")
    shape = [len(labels) for labels in axes.values()]
    return layers.array(np.reshape(values, shape), axes, name, [_DIRECTIONS[direction]])


def named_function(
    given: str | Callable[..., Any], home: Any, prefix: str
) -> tuple[Callable[..., Any], str]:
    """Find a function of NetworkX by its name, or take a function; give its name, too."""
    if callable(given):
        return given, str(getattr(given, "__name__", "measure"))
    found = getattr(home, given, None) if isinstance(given, str) else None
    if not callable(found):
        raise SelectionError(
            f"NetworkX has no function {prefix}.{given}: name one as it does, such as "
            '"betweenness_centrality" or "louvain_communities", or give a function.'
        )
    return found, str(given)


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """List the names of a function's parameters, as far as they are known."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def usual_weights(function: Callable[..., Any], name: str) -> dict[str, str]:
    """Return the edge attribute that a function of NetworkX needs, as a keyword."""
    if getattr(nx, name, getattr(nx.community, name, None)) is not function:
        return {}
    parameters = parameters_of(function)
    if "distance" in parameters:
        return {"distance": "distance"}
    if "weight" in parameters:
        return {"weight": "distance" if name in _ALONG_PATHS else "weight"}
    return {}


def networks_of(
    layers: Layers, direction: Direction, name: str, progress: bool
) -> Iterator[tuple[AttentionGraph, nx.Graph[Any]]]:
    """Build the graph of each head in turn, with a progress bar."""
    if direction not in _DIRECTIONS:
        raise SelectionError(
            f'direction is "attention", "information" or "none", not {direction!r}.'
        )
    fewer = "choose some heads, as in trace[1, 3]"
    for head in walk(graphs_of(layers), name, "head", progress=progress, fewer=fewer):
        yield head, _graph(head, direction)


def _graph(head: AttentionGraph, direction: Direction) -> nx.Graph[Any]:
    """Build the graph of positive attention among tokens, with lengths that paths can add up."""
    from scipy.sparse import coo_array, triu

    matrix = head.to_scipy().astype(np.float64)
    graph: nx.Graph[Any] = nx.DiGraph()
    if direction == "none":
        matrix, graph = triu((matrix + matrix.T) / 2), nx.Graph()
    edges = coo_array(matrix)
    there = edges.data > 0
    weight = edges.data[there]
    length = np.maximum(-np.log(weight), _SHORTEST)
    positions, _ = head.node_ids()
    names = np.array(positions)
    ends = [names[edges.coords[side][there]].tolist() for side in (0, 1)]
    if direction == "information":
        ends.reverse()
    for position, token in zip(positions, head.labels(), strict=True):
        graph.add_node(position, token=token)
    for start, end, w, d in zip(*ends, weight.tolist(), length.tolist(), strict=True):
        graph.add_edge(start, end, weight=w, distance=d)
    return graph


def call(
    function: Callable[..., Any],
    graph: nx.Graph[Any],
    head: AttentionGraph,
    backend: str | None,
    options: dict[str, Any],
) -> Any:
    """Call NetworkX on a head's graph, and name the head in its errors."""
    chosen = {} if backend is None else {"backend": backend}
    place = ", ".join(head.place()) or "the head"
    try:
        found = function(graph, **options, **chosen)
        return list(found) if isinstance(found, Iterator) else found
    except (ImportError, NotImplementedError) as error:
        if backend is None:
            raise
        known = sorted({*entry_points(group="networkx.backends").names} - {"nx_loopback"})
        raise SelectionError(
            f"NetworkX's backend {backend!r} cannot compute this: {error}. Installed are {known}."
        ) from error
    except nx.NetworkXException as error:
        why = error.args[-1] if error.args else error
        raise GraphError(f"NetworkX cannot compute this for {place}: {why}") from error
