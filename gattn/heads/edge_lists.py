"""One's own numbers: lists of edges, and numbers of any library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import refuse_hidden
from gattn.errors import GraphError, ShapeError
from gattn.graph.token_graph import TokenGraph

if TYPE_CHECKING:
    from gattn.heads.head import Floats


def fields_of(
    edge_index: Any,
    attention: Any,
    tokens: Sequence[str] = (),
    *,
    query_tokens: Sequence[str] = (),
    num_tokens: int | None = None,
    num_queries: int | None = None,
    num_keys: int | None = None,
    score: Any = None,
    contribution: Any = None,
    value_norm: Any = None,
    **attributes: Any,
) -> dict[str, Any]:
    """Read the fields of a head from edges and their numbers; see `AttentionGraph.from_edges`."""
    if counted := sorted({"graph", "total_mass", "total_edges"} & set(attributes)):
        raise GraphError(
            f"{counted[0]} follows from the edges and their attention: leave it out, or build "
            "AttentionGraph(graph, attention, total_mass, total_edges) itself."
        )
    attributes = with_arrays(attributes)
    tokens, query_tokens = texts(tokens, "tokens"), texts(query_tokens, "query_tokens")
    if num_tokens is None and (query_tokens or num_queries is not None or num_keys is not None):
        num_queries = len(query_tokens) if num_queries is None else num_queries
        num_keys = len(tokens) if num_keys is None else num_keys
        graph = TokenGraph.from_edge_index(edge_index, num_queries=num_queries, num_keys=num_keys)
    elif query_tokens or num_queries is not None or num_keys is not None:
        raise GraphError("num_tokens is for self-attention; leave it out in cross-attention.")
    elif tokens or num_tokens is not None:
        graph = TokenGraph.from_edge_index(
            edge_index, len(tokens) if num_tokens is None else num_tokens
        )
    else:
        raise GraphError(
            "Give tokens= or num_tokens=, or for cross-attention num_queries= and num_keys=: the "
            "edges do not say how many tokens there are."
        )
    index = _edge_index(edge_index)
    order = np.lexsort(index)  # by query, then key
    _refuse_doubles(index, order)
    given = {
        "attention": attention,
        "score": score,
        "contribution": contribution,
        "value_norm": value_norm,
    }
    numbers: dict[str, Any] = {
        name: _of_edges(values, name, len(order))[order]
        for name, values in given.items()
        if values is not None
    }
    found = numbers["attention"]
    mass = np.bincount(index[1][order], np.abs(found), graph.num_queries)
    return {
        "graph": graph.to("cpu").sorted(),
        "total_mass": mass.astype(found.dtype),
        "total_edges": graph.in_degree.cpu().numpy(),
        "tokens": tokens,
        "query_tokens": query_tokens,
        **numbers,
        **attributes,
    }


def _edge_index(edge_index: Any) -> NDArray[np.int64]:
    values = edge_index.detach().cpu() if isinstance(edge_index, Tensor) else edge_index
    return np.asarray(values).astype(np.int64)


def _refuse_doubles(index: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    same = (np.diff(index[:, order]) == 0).all(0)
    if same.any():
        first, second = sorted(order[np.flatnonzero(same)[0] :][:2].tolist())
        key, query = index[:, first].tolist()
        raise GraphError(
            f"The edge from key {key} to query {query} is there twice, as edges {first} and "
            f"{second}: give each edge once, with one attention (their sum, say)."
        )


def _of_edges(values: Any, name: str, edges: int) -> Floats:
    numbers: Floats = as_floats(values, name).cpu().numpy()
    if numbers.shape != (edges,):
        raise ShapeError(
            f"{name} must hold one number for each of the {edges} edges, not {numbers.shape}."
        )
    return numbers


def as_floats(values: Any, name: str) -> Tensor:
    """Take numbers of any kind, on any device: double where they are, half as single."""
    refuse_hidden(name, values, ShapeError)
    try:
        found = values.detach() if isinstance(values, Tensor) else torch.from_numpy(_array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{name} must hold numbers, not {type(values).__name__}.") from error
    if found.is_complex() or found.dtype == torch.bool:
        raise ShapeError(f"{name} must hold real numbers, not {found.dtype}.")
    if not found.is_floating_point():
        return found.double()
    return found if found.dtype == torch.float64 else found.float()


def _array(values: Any) -> NDArray[Any]:
    found = np.array(values, order="C")
    if found.dtype.byteorder not in "=|":
        found = found.astype(found.dtype.newbyteorder("="))
    return found.astype(np.float64) if found.size == 0 or found.dtype == np.longdouble else found


def texts(tokens: Sequence[str], name: str) -> tuple[str, ...]:
    """Take the texts of tokens.

    Raises
    ------
    ShapeError
        If they are not a list of texts.
    """
    found = () if isinstance(tokens, str) else tuple(tokens)
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in found):
        raise ShapeError(f"{name} is a list of texts, one for each token, not {tokens!r:.80}.")
    return tuple(map(str, found))


def with_arrays(attributes: dict[str, Any]) -> dict[str, Any]:
    """Make arrays of positions that are given as lists."""
    return {
        name: np.asarray(values)
        if name in ("positions", "query_positions") and isinstance(values, (list, tuple, range))
        else values
        for name, values in attributes.items()
    }
