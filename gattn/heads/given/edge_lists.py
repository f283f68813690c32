"""One's own numbers, as lists of edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gattn.errors import GraphError, OptionError, SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.given.numbers import as_floats

if TYPE_CHECKING:
    from gattn.heads.head import AttentionGraph, Floats

Duplicates: TypeAlias = Literal["error", "sum"]
"""What becomes of an edge that is given several times."""
_APART = ("graph", "total_mass", "total_edges", "tokens", "query_tokens")
"""Fields that follow from the edges, or are arguments by themselves."""


def from_edges(
    cls: type[AttentionGraph],
    /,
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
    duplicates: Duplicates = "error",
    **attributes: Any,
) -> AttentionGraph:
    """Read edges and their attention, in any order: each number stays with its edge.

    The graph sorts its edges by query, then key, and their numbers with them. No edge counts as
    dropped.

    Parameters
    ----------
    edge_index : array, Tensor or lists (2, edges)
        torch-geometric's ``[key; query]``, the source of each edge and its target.
    attention : array, Tensor or list (edges,)
        The attention of each edge, in the order of `edge_index`.
    tokens : sequence of str
        The tokens' texts (of the keys, if `query_tokens` are given).
    query_tokens : sequence of str
        The queries' texts, in cross-attention.
    num_tokens : int, optional
        How many tokens there are, if they have no texts.
    num_queries, num_keys : int, optional
        The same in cross-attention.
    score, contribution, value_norm : array, Tensor or list (edges,), optional
        Further numbers of the edges, in the same order.
    duplicates : "error" or "sum"
        Whether an edge given several times is an error, or has the sum of its attention.
    **attributes
        Further fields of `AttentionGraph`, such as ``layer`` and ``head``.

    Raises
    ------
    GraphError
        If an edge is given twice, or has a token that does not exist; if duplicates with scores or
        lengths would be summed.
    ShapeError
        If there is not one number per edge.
    CaptureError
        If a number is not finite.

    Warns
    -----
    UserWarning
        If a weight is negative, or the weights of a query sum to more than 1, as scores do: take
        their softmax first (``torch_geometric.utils.softmax(scores, edge_index[1])``). Other
        weights are kept, and called weights; name what made them, as in ``normalizer="Identity"``,
        and there is no warning.

    Examples
    --------
    >>> edges = [[1, 0, 0], [1, 1, 0]]  # keys, and the queries that read them
    >>> AttentionGraph.from_edges(edges, [0.7, 0.3, 1.0], ["the", "dog"]).to_dense().tolist()
    [[1.0, 0.0], [0.3, 0.7]]
    """
    refuse_counted(attributes)
    _refuse_words(edge_index)
    tokens, query_tokens = texts(tokens, "tokens"), texts(query_tokens, "query_tokens")
    sizes = sizes_of(tokens, query_tokens, num_tokens, num_queries, num_keys)
    graph = TokenGraph.from_edge_index(edge_index, **sizes)
    if attention is None:
        raise ShapeError("attention must hold one number for each edge, not None.")
    numbers = {
        "attention": attention,
        "score": score,
        "contribution": contribution,
        "value_norm": value_norm,
    }
    read = of_edges(_edge_index(edge_index), graph.to("cpu").sorted(), numbers, duplicates)
    return cls(**read, tokens=tokens, query_tokens=query_tokens, **with_arrays(cls, attributes))


def refuse_counted(attributes: dict[str, Any]) -> None:
    """Refuse fields that follow from the edges."""
    if counted := sorted({"graph", "total_mass", "total_edges"} & set(attributes)):
        raise GraphError(
            f"{counted[0]} follows from the edges and their attention: leave it out, or build "
            "AttentionGraph(graph, attention, total_mass, total_edges) itself."
        )


def sizes_of(
    tokens: Sequence[str],
    query_tokens: Sequence[str],
    num_tokens: int | None,
    num_queries: int | None,
    num_keys: int | None,
) -> dict[str, int]:
    """Say how many tokens there are, as `TokenGraph.from_edge_index` takes it."""
    is_bipartite = bool(query_tokens) or num_queries is not None or num_keys is not None
    if num_tokens is not None and is_bipartite:
        raise GraphError("num_tokens is for self-attention; leave it out in cross-attention.")
    if is_bipartite:
        return {
            "num_queries": len(query_tokens) if num_queries is None else num_queries,
            "num_keys": len(tokens) if num_keys is None else num_keys,
        }
    if tokens or num_tokens is not None:
        return {"num_tokens": len(tokens) if num_tokens is None else num_tokens}
    raise GraphError(
        "Give tokens= or num_tokens=, or for cross-attention num_queries= and num_keys=: the "
        "edges do not say how many tokens there are."
    )


def of_edges(
    index: NDArray[np.int64],
    graph: TokenGraph,
    given: dict[str, Any],
    duplicates: Duplicates = "error",
) -> dict[str, Any]:
    """Bring the numbers of edges [key; query] into the order of their graph.

    Parameters
    ----------
    index : array (2, edges)
        The edges, in any order.
    graph : TokenGraph
        The graph of just these edges.
    given : mapping of str to array, Tensor or list (edges,)
        Their numbers by field; None where there are none.
    duplicates : "error" or "sum"
        As in `from_edges`.
    """
    order = np.lexsort(index)  # by query, then key
    numbers: dict[str, Any] = {
        name: _one_each(values, name, len(order))[order]
        for name, values in given.items()
        if values is not None
    }
    runs = _Runs.of(index, order)
    if len(runs.starts) < len(order):
        runs.check(duplicates, numbers)
        # In double precision, so that the sum does not depend on the order.
        sums = np.add.reduceat(numbers["attention"], runs.starts, dtype=np.float64)
        numbers["attention"] = sums.astype(numbers["attention"].dtype)
    elif duplicates not in ("error", "sum"):
        runs.check(duplicates, numbers)
    found = numbers["attention"]
    mass = np.bincount(graph.edge_index[1].numpy(), np.abs(found), graph.num_queries)
    return {
        "graph": graph,
        "total_mass": mass.astype(found.dtype),
        "total_edges": graph.in_degree.numpy(),
        **numbers,
    }


class _Runs(NamedTuple):
    """Sorted edges, of which equal ones are runs.

    Parameters
    ----------
    edges : array (2, edges)
        The edges as given.
    order : array (edges,)
        Their order by query, then key.
    starts : array (runs,)
        Where each run of equal edges starts, in that order.
    """

    edges: NDArray[np.int64]
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, edges: NDArray[np.int64], order: NDArray[np.int64]) -> _Runs:
        is_new = (np.diff(edges[:, order], prepend=-1) != 0).any(0)
        return cls(edges, order, np.flatnonzero(is_new))

    def check(self, duplicates: object, numbers: dict[str, Any]) -> None:
        """Refuse duplicates unless they can be summed."""
        if duplicates == "sum":
            if others := [name for name in numbers if name != "attention"]:
                raise GraphError(
                    f"{others[0]} of an edge that is there several times cannot be summed: leave "
                    "it out, or give each edge once."
                )
            return
        if duplicates != "error":
            raise SelectionError(f'duplicates must be "error" or "sum", not {duplicates!r:.60}.')
        first = int(np.flatnonzero(np.diff(self.starts, append=len(self.order)) > 1)[0])
        one, other = sorted(self.order[self.starts[first] :][:2].tolist())
        key, query = self.edges[:, one].tolist()
        raise GraphError(
            f"The edge from key {key} to query {query} is there twice, as edges {one} and "
            f'{other}: give each edge once, or sum their attention with duplicates="sum".'
        )


def _refuse_words(edge_index: Any) -> None:
    """Refuse edges between words, which `from_pandas` reads."""
    listed = edge_index.ravel() if isinstance(edge_index, np.ndarray) else edge_index
    if isinstance(listed, Tensor) or not isinstance(listed, Iterable):
        return
    parts = [part if isinstance(part, (list, tuple)) else [part] for part in listed]
    word = next((str(one) for part in parts for one in part if isinstance(one, str)), None)
    if word is not None:
        raise GraphError(
            f"edge_index holds positions [keys; queries], not words such as {word!r:.60}: a table "
            "of words goes to from_pandas, as in AttentionGraph.from_pandas(pandas.DataFrame("
            '{"query": [...], "key": [...], "attention": [...]}), tokens).'
        )


def _edge_index(edge_index: Any) -> NDArray[np.int64]:
    values = edge_index.detach().cpu() if isinstance(edge_index, Tensor) else edge_index
    return np.asarray(values).astype(np.int64)


def _one_each(values: Any, name: str, edges: int) -> Floats:
    numbers: Floats = as_floats(values, name).cpu().numpy()
    if numbers.shape != (edges,):
        choose = ""
        if numbers.ndim == 2 and len(numbers) == edges:
            choose = f": an attention graph is of one head, such as {name}[:, 0]"
        raise ShapeError(
            f"{name} must hold one number for each of the {edges} edges, not {numbers.shape}"
            f"{choose}."
        )
    return numbers


def texts(tokens: Sequence[str], name: str) -> tuple[str, ...]:
    """Take the texts of tokens.

    Raises
    ------
    ShapeError
        If they are not a list of texts.
    """
    is_list = not isinstance(tokens, str) and isinstance(tokens, Iterable)
    found = tuple(tokens) if is_list else ()
    if not is_list or not all(isinstance(token, str) for token in found):
        raise ShapeError(f"{name} is a list of texts, one for each token, not {tokens!r:.80}.")
    return tuple(map(str, found))


def with_arrays(cls: type[AttentionGraph], attributes: dict[str, Any]) -> dict[str, Any]:
    """Make arrays of positions that are given as lists; refuse what is no field."""
    names = [field.name for field in fields(cls)]
    if unknown := sorted(set(attributes) - set(names)):
        raise OptionError(
            f"An attention graph has no option {unknown[0]}=: tokens= are the texts of its tokens, "
            "or of the keys in cross-attention, query_tokens= those of its queries, and further "
            f"fields are {', '.join(name for name in names if name not in _APART)}."
        )
    return {
        name: np.asarray(values)
        if name in ("positions", "query_positions") and isinstance(values, (list, tuple, range))
        else values
        for name, values in attributes.items()
    }
