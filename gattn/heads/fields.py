"""The fields of an attention graph: what each may hold, and how a matrix fills them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gattn.checks import refuse_hidden, whole
from gattn.edit_records import checked as checked_edits
from gattn.edit_records import in_words
from gattn.errors import CaptureError, ShapeError
from gattn.graph.ordering import refuse_numbers
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.geometry import Geometry
from gattn.heads.given.edge_lists import texts, with_arrays
from gattn.heads.given.weights import noted, what_of
from gattn.heads.nouns import GRAPH, counted, noun_of

if TYPE_CHECKING:
    from gattn.heads.head import AttentionGraph

_WHOLE = ("total_edges", "positions", "query_positions")
_LISTS: Mapping[str, tuple[type, ...]] = {
    "tokens": (str,),
    "query_tokens": (str,),
    "words": (int, type(None)),
    "segments": (int,),
}
TEXTS = ("model", "weight_function", "normalizer", "stack")
_PLACES = ("layer", "head", "key_value_head")


def checked(head: AttentionGraph) -> dict[str, Any]:
    """Check all fields, and give those that are stored in another form than given."""
    _check_types(head)
    refuse_numbers(
        head.graph,
        "attention",
        "Where it follows the edges as given, AttentionGraph.from_edges(edge_index, attention) "
        "keeps each number with its edge.",
    )
    queries, nodes = head.graph.num_queries, head.graph.num_tokens
    by_query = (
        "total_mass",
        "total_edges",
        "sink",
        "query_tokens",
        "query_positions",
        "query_geometry",
    )
    _check_sizes(head, dict.fromkeys(by_query, queries))
    by_node = ("tokens", "words", "segments", "positions", "geometry")
    _check_sizes(head, dict.fromkeys(by_node, nodes))
    # Last, because it lists the edges, whose queries are by now as many as the numbers given.
    _check_sizes(head, dict.fromkeys(head.edge_values, head.graph.num_edges))
    found: dict[str, Any] = {
        name: whole(name, place, 0, ShapeError)
        for name in _PLACES
        if (place := getattr(head, name)) is not None
    }
    most = queries if head.graph.is_bipartite else nodes
    found["generated"] = whole("generated", head.generated, 0, ShapeError, most=most)
    try:
        found["edits"] = checked_edits(head.edits)
    except TypeError as error:
        raise ShapeError(f"{error}.") from error
    _check_edge_values(head)
    _check_masses(head)
    return found


def _check_types(head: AttentionGraph) -> None:
    """Refuse fields that are not arrays with one axis, lists or texts of the right type."""
    kinds = dict.fromkeys(head.edge_values, "f") | {"total_mass": "fiu", "sink": "f"}
    for name, kind in (kinds | dict.fromkeys(_WHOLE, "iu")).items():
        values = getattr(head, name)
        if values is None or (
            isinstance(values, np.ndarray)
            and values.ndim == 1
            and values.dtype.kind in kind
            and values.dtype.itemsize <= 8  # no long doubles
        ):
            continue
        given = f"{getattr(values, 'dtype', type(values).__name__)} {np.shape(values)}"
        wanted = "whole numbers" if kind == "iu" else "floats of 16, 32 or 64 bits"
        raise ShapeError(f"{name} must be a NumPy array of {wanted} (n,), not {given}.")
    for name, types in _LISTS.items():
        for found in set(map(type, getattr(head, name))):
            if not issubclass(found, types):
                raise ShapeError(
                    f"{name} must be a tuple of {types[0].__name__}, not of {found.__name__}."
                )
    for name in TEXTS:
        if not isinstance(getattr(head, name), str):
            raise ShapeError(f"{name} must be a str, not {getattr(head, name)!r:.80}.")
    for name in ("geometry", "query_geometry"):
        if not isinstance(getattr(head, name), Geometry | None):
            raise ShapeError(
                f"{name} must be a Grid, Times or Layout, not {getattr(head, name)!r:.80}."
            )
    if head.query_geometry is not None and not head.graph.is_bipartite:
        raise ShapeError("query_geometry is for cross-attention; here geometry is of all tokens.")
    steps.check(head.kept_by)


def _check_sizes(head: AttentionGraph, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        values = getattr(head, name)
        is_absent = values is None or (name in _LISTS and not values)
        if not is_absent and len(values) != size:
            raise ShapeError(f"{name} must have {size} entries, not {len(values)}.")


def _check_edge_values(head: AttentionGraph) -> None:
    """Refuse numbers that would spoil every sum; only a score may be infinite."""
    for name, values in head.edge_values.items():
        is_length = name in ("contribution", "value_norm")
        with np.errstate(all="ignore"):
            if not is_length and np.isfinite(values.sum()):  # Much faster, and usual.
                continue
        wrong = np.isnan(values) if name == "score" else ~np.isfinite(values)
        if is_length:
            wrong |= values < 0
        if wrong.any():
            edge = int(np.flatnonzero(wrong)[0])
            key, query = head.graph.edge_index[:, edge].tolist()
            reason = (
                "it is a length, and lengths are at least 0"
                if np.isfinite(values[edge])
                else "look for NaN or infinity in what computed it, such as half precision that "
                "overflowed"
            )
            raise CaptureError(
                f"The {name} of query {query} to key {key} is {values[edge]}: {reason}."
            )


def _check_masses(head: AttentionGraph) -> None:
    for name in ("sink", "total_mass"):
        masses = getattr(head, name)
        if masses is not None and not np.isfinite(masses).all():
            query = int(np.flatnonzero(~np.isfinite(masses))[0])
            raise CaptureError(
                f"The {name} of query {query} is {masses[query]}: it must be finite."
            )
    if (head.total_mass < 0).any():
        query = int(np.flatnonzero(head.total_mass < 0)[0])
        raise CaptureError(
            f"The total_mass of query {query} is {head.total_mass[query]}: it is a sum of "
            "|attention|, which is at least 0."
        )
    if (head.dropped_edges < 0).any():
        query = int(np.flatnonzero(head.dropped_edges < 0)[0])
        raise ShapeError(
            f"total_edges of query {query} is {head.total_edges[query]}, but it has "
            f"{head.graph.in_degree[query]} edges."
        )


def from_dense(
    cls: type[AttentionGraph],
    /,
    attention: Any,
    graph: TokenGraph | None = None,
    *,
    tokens: Sequence[str] = (),
    query_tokens: Sequence[str] = (),
    **attributes: Any,
) -> AttentionGraph:
    """Read a matrix A, where ``A[i, j]`` is the attention of query i to key j.

    Weights that are negative, or sum to more than 1, are kept as they are; the graph says so. A
    warning tells of a matrix whose columns sum to 1, but not its rows, as if it were transposed,
    and of one that looks like some rows of causal attention, but is read as cross-attention.

    Parameters
    ----------
    attention : array or Tensor (queries, keys)
        The attention; entries for which `graph` has no edge are ignored.
    graph : TokenGraph, optional
        The edges; by default every non-zero entry. Queries and keys are then different tokens if
        `query_tokens` are given, or if the matrix is not square.
    tokens : sequence of str
        The tokens' texts (of the keys, in cross-attention).
    query_tokens : sequence of str
        The queries' texts, in cross-attention.
    **attributes
        Further fields of `AttentionGraph`, such as ``layer`` and ``head``.
    """
    queries = texts(query_tokens, "query_tokens")
    read = of_matrix(attention, graph, is_bipartite=bool(queries))
    return cls(
        **read,
        tokens=texts(tokens, "tokens"),
        query_tokens=queries,
        **with_arrays(cls, attributes),
    )


def of_matrix(
    attention: Any, graph: TokenGraph | None, *, is_bipartite: bool = False
) -> dict[str, Any]:
    """Read edges and masses from a matrix; see `AttentionGraph.from_dense`."""
    if getattr(attention, "dims", ()) == ("key", "query"):
        raise ShapeError("attention must be (queries, keys), but this one is transposed.")
    refuse_hidden("attention", attention, ShapeError)
    if isinstance(attention, torch.Tensor):
        attention = attention.detach().cpu()
        if attention.dtype == torch.bfloat16:  # NumPy has no such dtype
            attention = attention.float()
    matrix = np.asarray(attention)
    if matrix.dtype.kind in "iu":
        matrix = matrix.astype(np.float64)
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or matrix.dtype.itemsize > 8:
        raise ShapeError(
            "attention must be a (queries, keys) array of integers or floats of up to 64 bits, "
            f"not {matrix.dtype} {matrix.shape}."
        )
    if graph is None:
        is_bipartite = is_bipartite or matrix.shape[0] != matrix.shape[1]
        graph = TokenGraph.from_mask(torch.from_numpy(matrix != 0), is_bipartite=is_bipartite)
    if not isinstance(graph, TokenGraph):
        raise ShapeError(f"graph must be a TokenGraph, not {graph!r}. Give tokens as tokens=...")
    graph = graph.to("cpu").sorted()
    if matrix.shape != (graph.num_queries, graph.num_keys):
        raise ShapeError(
            f"attention is {matrix.shape}, but the token graph has {graph.num_queries} queries "
            f"and {graph.num_keys} keys."
        )
    key, query = graph.edge_index.numpy()
    values = matrix[query, key]
    return {
        "graph": graph,
        "attention": values,
        "total_mass": np.bincount(query, np.abs(values), graph.num_queries).astype(matrix.dtype),
        "total_edges": graph.in_degree.numpy(),
    }


def to_text(head: AttentionGraph) -> str:
    """Show where a head is from, how many edges it has, and how much of the attention they hold."""
    place = "".join(f"{part}, " for part in head.place())
    edits = f", {in_words(head.edits)}" if head.edits else ""
    size = counted(head.graph.num_tokens, noun_of(head.geometry, head.stack))
    if head.graph.is_bipartite:
        queries, keys = head.graph.num_queries, head.graph.num_keys
        size = f"{counted(queries, 'query')}, {counted(keys, 'key')}"
    return (
        f"AttentionGraph({place}{size}, {head.graph.num_edges} edges, "
        f"keep={steps.to_text(head.kept_by)}, {head.share_kept * 100:.1f} % of "
        f"{what_of([head])}{noted(head)}{edits})"
    )


def place(head: AttentionGraph) -> list[str]:
    """Return where in the model the graph comes from, as in ``["layer 1", "head 3"]``.

    The list begins with the name of its stack if its trace has several, else for cross-attention
    with "cross-attention".
    """
    numbers = {"layer": head.layer, "head": head.head, "key-value head": head.key_value_head}
    known = [f"{name} {number}" for name, number in numbers.items() if number is not None]
    if head.stack not in ("", "cross", GRAPH):
        return [head.stack, *known]
    return ["cross-attention", *known] if known and head.graph.is_bipartite else known
