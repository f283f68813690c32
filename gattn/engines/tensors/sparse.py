"""Products over the edges of a graph, all heads at once, with gradients of any order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from gattn.graph.rules.neighbourhoods import Neighbourhoods

GROUPED_EDGES = 1 << 20
"""How many edges of all copies together are listed side by side."""

_FEW_NUMBERS = 1 << 16
"""So few are faster gathered and multiplied than handed to a kernel as a sparse matrix."""


def edge_products(query: Tensor, key: Tensor, edges: Neighbourhoods, scale: float = 1.0) -> Tensor:
    r"""Multiply the vectors at both ends of each edge, :math:`c\, q_i \cdot k_j`.

    Parameters
    ----------
    query, key : Tensor
        Shape (M, queries, D) and (M, keys, D), float32 or float64.
    edges : Neighbourhoods
        The E edges.
    scale : float
        The factor c, which scaled queries would need a copy of all tokens for.

    Returns
    -------
    Tensor
        Shape (M, E).
    """
    return cast("Tensor", _EdgeProducts.apply(query, key, edges, scale))  # type: ignore[no-untyped-call]


def neighbour_sums(share: Tensor, value: Tensor, edges: Neighbourhoods) -> Tensor:
    r"""Add up the vectors of each query's keys, :math:`\sum_{j \in N(i)} a_{ij} v_j`.

    Parameters
    ----------
    share : Tensor
        One number per edge, shape (M, E), float32 or float64.
    value : Tensor
        Shape (M, keys, D).
    edges : Neighbourhoods
        The E edges.

    Returns
    -------
    Tensor
        Shape (M, queries, D).
    """
    return cast("Tensor", _NeighbourSums.apply(share, value, edges))  # type: ignore[no-untyped-call]


# Each is the other's gradient, so gradients of gradients come for free.


class _EdgeProducts(Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, edges: Neighbourhoods, scale: float
    ) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.edges, ctx.scale = edges, scale
        return sampled(query, key, edges, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        query, key = ctx.saved_tensors
        to_query = to_key = None
        if ctx.needs_input_grad[0]:
            to_query = _times(neighbour_sums(gradient, key, ctx.edges), ctx.scale)
        if ctx.needs_input_grad[1]:
            to_key = _times(_sums_to_keys(gradient, query, ctx.edges), ctx.scale)
        return to_query, to_key, None, None


class _NeighbourSums(Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, value: Tensor, edges: Neighbourhoods) -> Tensor:
        ctx.save_for_backward(share, value)
        ctx.edges = edges
        return summed(share, value, edges)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        share, value = ctx.saved_tensors
        to_share = to_value = None
        if ctx.needs_input_grad[0]:
            to_share = edge_products(gradient, value, ctx.edges)
        if ctx.needs_input_grad[1]:
            to_value = _sums_to_keys(share, gradient, ctx.edges)
        return to_share, to_value, None


def sampled(query: Tensor, key: Tensor, edges: Neighbourhoods, scale: float = 1.0) -> Tensor:
    """Compute `edge_products`, without a gradient."""
    _let_torch_warn_of_its_sparse_tensors()
    copies, queries, dim = query.shape
    if edges.num_edges > queries * edges.num_keys:  # doubled edges: more than such a matrix holds
        return (query @ key.transpose(-2, -1))[:, edges.query, edges.key] * scale
    if copies == 1 and edges.num_edges * dim <= _FEW_NUMBERS:
        ends = query[0].index_select(0, edges.query), key[0].index_select(0, edges.key)
        products = ends[0].mul_(ends[1]).sum(-1)[None]
        return products if scale == 1 else products.mul_(scale)
    values = query.new_zeros(copies, edges.num_edges)
    if not values.numel() or not dim:
        return values
    for some in _groups(copies, edges):
        start, column = edges.repeated(some.stop - some.start)
        left, right = query[some].reshape(-1, dim), key[some].reshape(-1, dim)
        matrix = torch.sparse_csr_tensor(
            start,
            column,
            values[some].view(-1),
            (left.shape[0], right.shape[0]),
            check_invariants=False,
        )
        # Written into the values themselves: otherwise torch would copy the indices as well.
        torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0, alpha=scale, out=matrix)
    return values


def _times(tokens: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return tokens
    return tokens * scale if torch.is_grad_enabled() else tokens.mul_(scale)


def _sums_to_keys(share: Tensor, query: Tensor, edges: Neighbourhoods) -> Tensor:
    """Add up the vectors of each key's queries: (M, E), (M, queries, D) -> (M, keys, D)."""
    back = edges.reversed
    if torch.is_grad_enabled():
        return neighbour_sums(reordered(share, back), query, back)
    return summed(share, query, back, back.order)


def summed(
    share: Tensor, value: Tensor, edges: Neighbourhoods, order: Tensor | None = None
) -> Tensor:
    """Compute `neighbour_sums`, without a gradient; `order` tells where the edges' shares stand."""
    copies, _, dim = value.shape
    if not share.numel() or not dim:
        return value.new_zeros(copies, edges.num_queries, dim)
    if copies * edges.num_edges <= GROUPED_EDGES:
        return _bags(share if order is None else share.index_select(1, order), value, edges)
    whole = value.new_empty(copies, edges.num_queries, dim)
    for some in _groups(copies, edges):
        part = share[some] if order is None else share[some].index_select(1, order)
        whole[some] = _bags(part, value[some], edges)
    return whole


def _bags(share: Tensor, value: Tensor, edges: Neighbourhoods) -> Tensor:
    """Sum as bags of embeddings: rows of a sparse product, for which this kernel is faster."""
    copies, _, dim = value.shape
    start, column = edges.repeated(copies)
    table, share = value.detach().reshape(-1, dim).contiguous(), share.detach().reshape(-1)
    bags, *_ = torch.embedding_bag(
        table, column, start, per_sample_weights=share, include_last_offset=True
    )
    return bags.view(copies, edges.num_queries, dim)


def _groups(copies: int, edges: Neighbourhoods) -> Iterator[slice]:
    """Group copies: small graphs side by side in one call, large ones by themselves."""
    size = max(GROUPED_EDGES // edges.num_edges, 1)
    for first in range(0, copies, size):
        yield slice(first, min(first + size, copies))


def reordered(numbers: Tensor, edges: Neighbourhoods) -> Tensor:
    """Bring numbers (M, E) into the order of edges that say which of them each one is."""
    assert edges.order is not None
    return numbers.index_select(1, edges.order)


@cache
def _let_torch_warn_of_its_sparse_tensors() -> None:
    """Trigger and drop torch's warning, once, that compressed sparse tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1, device="cpu").to_sparse_csr()
