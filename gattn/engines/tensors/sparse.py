"""Products over the edges of a graph, all heads at once, with gradients of any order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag

from gattn.graph.rules.neighbourhoods import Neighbourhoods

GROUPED_EDGES = 1 << 20
"""How many edges of all copies together are listed side by side."""


def edge_products(query: Tensor, key: Tensor, edges: Neighbourhoods) -> Tensor:
    r"""Multiply the vectors at both ends of each edge, :math:`q_i \cdot k_j`.

    Parameters
    ----------
    query, key : Tensor
        Shape (M, queries, D) and (M, keys, D), float32 or float64.
    edges : Neighbourhoods
        The E edges.

    Returns
    -------
    Tensor
        Shape (M, E).
    """
    return cast("Tensor", _EdgeProducts.apply(query, key, edges))  # type: ignore[no-untyped-call]


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
    def forward(ctx: Any, query: Tensor, key: Tensor, edges: Neighbourhoods) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.edges = edges
        return _sampled(query, key, edges)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        query, key = ctx.saved_tensors
        to_query = to_key = None
        if ctx.needs_input_grad[0]:
            to_query = neighbour_sums(gradient, key, ctx.edges)
        if ctx.needs_input_grad[1]:
            edges = ctx.edges.reversed
            to_key = neighbour_sums(_reordered(gradient, edges), query, edges)
        return to_query, to_key, None


class _NeighbourSums(Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, value: Tensor, edges: Neighbourhoods) -> Tensor:
        ctx.save_for_backward(share, value)
        ctx.edges = edges
        return _summed(share, value, edges)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        share, value = ctx.saved_tensors
        to_share = to_value = None
        if ctx.needs_input_grad[0]:
            to_share = edge_products(gradient, value, ctx.edges)
        if ctx.needs_input_grad[1]:
            edges = ctx.edges.reversed
            to_value = neighbour_sums(_reordered(share, edges), gradient, edges)
        return to_share, to_value, None


def _sampled(query: Tensor, key: Tensor, edges: Neighbourhoods) -> Tensor:
    _let_torch_warn_of_its_sparse_tensors()
    copies, queries, dim = query.shape
    if edges.num_edges > queries * edges.num_keys:  # doubled edges: more than such a matrix holds
        return (query @ key.transpose(-2, -1))[:, edges.query, edges.key]
    values = query.new_zeros(copies, edges.num_edges)
    if not values.numel() or not dim:
        return values
    for some in _groups(copies, edges):
        start, column = edges.repeated(some.stop - some.start)
        left, right = query[some].reshape(-1, dim), key[some].reshape(-1, dim)
        matrix = torch.sparse_csr_tensor(
            start, column, values[some].view(-1), (len(left), len(right)), check_invariants=False
        )
        # Written into the values themselves: otherwise torch would copy the indices as well.
        torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0, out=matrix)
    return values


def _summed(share: Tensor, value: Tensor, edges: Neighbourhoods) -> Tensor:
    copies, _, dim = value.shape
    summed = value.new_zeros(copies, edges.num_queries, dim)
    if not share.numel() or not dim:
        return summed
    for some in _groups(copies, edges):
        start, column = edges.repeated(some.stop - some.start)
        # A bag of embeddings is a row of a sparse product, and torch's kernel for it is faster.
        bags = embedding_bag(
            column,
            value[some].detach().reshape(-1, dim).contiguous(),
            start,
            mode="sum",
            per_sample_weights=share[some].detach().reshape(-1),
            include_last_offset=True,
        )
        summed[some] = bags.view(-1, edges.num_queries, dim)
    return summed


def _groups(copies: int, edges: Neighbourhoods) -> Iterator[slice]:
    """Group copies: small graphs side by side in one call, large ones by themselves."""
    size = max(GROUPED_EDGES // edges.num_edges, 1)
    for first in range(0, copies, size):
        yield slice(first, min(first + size, copies))


def _reordered(numbers: Tensor, edges: Neighbourhoods) -> Tensor:
    assert edges.order is not None
    return numbers.gather(1, edges.order.expand(len(numbers), -1))


@cache
def _let_torch_warn_of_its_sparse_tensors() -> None:
    """Trigger and drop torch's warning, once, that compressed sparse tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()
