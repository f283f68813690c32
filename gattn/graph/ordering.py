"""Numbers per edge, where edges were given in another order than a token graph's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gattn.errors import GraphError
from gattn.graph.arrays import as_tensor, whole_numbers

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


def refuse_numbers(graph: TokenGraph, name: str, otherwise: str) -> None:
    """Refuse numbers per edge if the edges were given in another order than the graph's own.

    Parameters
    ----------
    graph : TokenGraph
        The graph whose edges they are.
    name : str
        What each number is called.
    otherwise : str
        What takes them in the order in which the edges were given.

    Raises
    ------
    GraphError
        If it is unclear which number belongs to which edge.
    """
    if graph.is_reordered:
        raise GraphError(
            "This token graph was built from edges in another order than its own, which is by "
            "query, then key, or from doubled edges, which merged: it is unclear which edge has "
            f"which {name}. {otherwise} If they follow graph.edge_index already, pass "
            "graph.sorted()."
        )


def permutation(graph: TokenGraph, edge_index: Tensor | ArrayLike) -> Tensor:
    """Find each of the graph's edges in a list of edges.

    With ``order = graph.permutation(edge_index)``, ``edge_index[:, order]`` is the graph's own
    ``edge_index``, and ``numbers[order]`` are numbers of the given edges in the graph's order. Back
    go ``numbers[order.argsort()]``.

    Parameters
    ----------
    edge_index : Tensor or array (2, edges)
        The graph's edges ``[key; query]``, each once, in any order.

    Returns
    -------
    Tensor
        The place of each edge of the graph among those given, int64 (edges,).

    Raises
    ------
    GraphError
        If `edge_index` does not hold each edge of this graph exactly once: with a duplicate it
        would be unclear whose number counts.

    Examples
    --------
    >>> edges = torch.tensor([[2, 0, 1], [2, 1, 2]])  # keys, and the queries that read them
    >>> graph = TokenGraph.from_edge_index(edges, 3)
    >>> graph.permutation(edges).tolist()
    [1, 2, 0]
    """
    edge_index = whole_numbers(edge_index, "edge_index")
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise GraphError(f"edge_index must have shape (2, edges), not {tuple(edge_index.shape)}.")
    order = torch.argsort(edge_index[0], stable=True)
    order = order[torch.argsort(edge_index[1, order], stable=True)]
    found = edge_index[:, order]
    same = (found.diff() == 0).all(0)
    if bool(same.any()) or not torch.equal(found, graph.edge_index.to(found.device)):
        first = int(same.nonzero()[0]) if bool(same.any()) else 0
        ends = sorted(order[first : first + 2].tolist())
        twice = f"the edges {ends[0]} and {ends[1]} are the same" if bool(same.any()) else ""
        raise GraphError(
            f"edge_index must hold each of the graph's {graph.num_edges} edges exactly once to "
            f"say which feature belongs to which; {twice or f'it has {found.shape[1]}'}."
        )
    return order


def arrange(
    graph: TokenGraph, edge_index: Tensor | ArrayLike, edge_features: Tensor | ArrayLike
) -> Tensor:
    """Bring features of the edges of `edge_index` into the order of ``graph.sorted()``.

    Raises
    ------
    GraphError
        As `permutation` does, or if there is not one row of features per edge.
    """
    features = as_tensor(edge_features, "edge_features")
    if not features.dim():
        raise GraphError("edge_features must have a row per edge, not shape ().")
    order = permutation(graph, edge_index)
    if len(features) != len(order):
        raise GraphError(f"There are {len(order)} edges, but {len(features)} features.")
    return features[order.to(features.device)]
