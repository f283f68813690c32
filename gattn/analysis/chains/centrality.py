"""NetworkX's centralities and communities of every head, by any NetworkX backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias

import networkx as nx
import numpy as np

from gattn.analysis.reading.layers import Attention, Layers, heads_of, named
from gattn.analysis.reading.results import Array, array
from gattn.errors import GraphError, SelectionError
from gattn.heads.head import AttentionGraph
from gattn.progress import walk

Direction: TypeAlias = Literal["attention", "information", "none"]

_SHORTEST = 1e-12
"""The length of edges of attention 1: cycles of length 0 would make endless shortest paths."""
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
        Self-attention: a trace, a stack, a head or arrays.
    tokens : sequence of str
        The tokens' texts, where `attention` is an array, which does not know them.
    measure : str or callable
        The name of NetworkX's function, such as "betweenness_centrality", or a function of a graph
        that gives one number per node.
    direction : {"attention", "information", "none"}
        Which way edges run. NetworkX's measures follow edges, and most call central what edges lead
        to. With "attention" they lead from query to key, so that tokens are central that are
        attended to; with "information" from key to query, as ``head.to_networkx()`` has them, so
        that tokens are central that gather. With "none" they have no direction: (A + Aᵀ) / 2.
    backend : str, optional
        The NetworkX backend that computes it, such as "cugraph" or "parallel", where installed.
    progress : bool
        Whether to print an estimate first and show a bar, where it takes more than a second.
    **options
        Passed on to the measure, such as ``k=100``. Where it takes edge weights, and they are not
        given here, it gets ``weight``, the attention, or where it follows paths ``distance``,
        ``-ln attention``; ``weight=None`` counts every edge alike.

    Returns
    -------
    Array (layer, head, token)
        One number per token. Edges are those of kept attention above 0, self-loops included; a sink
        outside of the text is left out. NetworkX counts a self-loop as any edge, and in a degree
        at both of its ends: the degree centrality of a full head of three tokens is 3.0. To leave
        them out give ``head.without_self_loops()``.

    Raises
    ------
    SelectionError
        Where there is no such measure, direction or backend, or queries and keys are different
        tokens.
    GraphError
        Where NetworkX cannot compute it, or it gives something else than one number per token.
    """
    attention = named(attention, tokens)
    function, name = named_function(measure, nx, "nx")
    options = usual_weights(function, name) | options
    layers = Layers.of(attention).square()
    values = []
    for head, graph in graphs_of(attention, direction, name, progress):
        found = call(function, graph, head, backend, options)
        if not isinstance(found, dict) or set(found) != set(graph):
            raise GraphError(
                f"{name} must give one number per token, not {type(found).__name__}; wrap "
                "it in a function that does, such as lambda graph: nx.hits(graph)[1]."
            )
        values.append([float(found[node]) for node in layers.positions])
    notes = [
        *layers.mass_notes(),
        {
            "attention": "edges run from query to key, self-loops included",
            "information": "edges run from key to query, self-loops included",
            "none": "edges without direction, self-loops included: (A + Aᵀ) / 2",
        }[direction],
    ]
    return by_token(name, layers, np.array(values), notes)


def named_function(
    given: str | Callable[..., Any], home: Any, prefix: str
) -> tuple[Callable[..., Any], str]:
    """Find a function of NetworkX by its name, or take one as it is; and its name.

    Raises
    ------
    SelectionError
        Where there is none of that name.
    """
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
    """Give NetworkX's own functions the edge attribute that they need."""
    if getattr(nx, name, getattr(nx.community, name, None)) is not function:
        return {}
    parameters = parameters_of(function)
    if "distance" in parameters:
        return {"distance": "distance"}
    if "weight" in parameters:
        return {"weight": "distance" if name in _ALONG_PATHS else "weight"}
    return {}


def graphs_of(
    attention: Attention, direction: Direction, name: str, progress: bool
) -> Iterator[tuple[AttentionGraph, nx.Graph[Any]]]:
    """Build the graph of each head in turn, with a progress bar.

    Raises
    ------
    SelectionError
        Where `direction` is none.
    """
    if direction not in ("attention", "information", "none"):
        raise SelectionError(
            f'direction is "attention", "information" or "none", not {direction!r}.'
        )
    fewer = "choose some heads, as in trace[1, 3]"
    for head in walk(heads_of(attention), name, "head", progress=progress, fewer=fewer):
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
    """Call NetworkX on a head's graph.

    Raises
    ------
    SelectionError
        Where the backend cannot do it.
    GraphError
        Where NetworkX cannot.
    """
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


def by_token(
    name: str, layers: Layers, values: np.ndarray[Any, Any], notes: list[str], **facts: object
) -> Array:
    """Label one number per token and head."""
    axes = layers.axes("layer", "head", "token")
    return array(
        values.reshape([len(labels) for labels in axes.values()]),
        axes,
        name=name,
        computed_from=layers.source,
        edits=layers.edits,
        notes=notes,
        tokens=layers.texts("token"),
        **facts,
    )
