"""Attention over the edges of all heads at once, in few passes, with gradients of any order.

Each function reads tensors (batch, heads, tokens, dim) as `HeadEdges` number them, and numbers of
edges, (E,), in their order. Gradients of gradients come from products over edges.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from gattn.engines.tensors.sparse import (
    edge_products,
    neighbour_sums,
    reordered,
    sampled,
    summed,
)
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.rules.per_head import HeadEdges, differentiable


def head_products(query: Tensor, key: Tensor, scale: float, edges: HeadEdges) -> Tensor:
    r"""Multiply the vectors at both ends of each edge, :math:`s \, q_i \cdot k_j`.

    Parameters
    ----------
    query, key : Tensor
        Shape (B, H, queries, D) and (B, H, keys, D), float32 or float64.
    scale : float
        The factor s.
    edges : HeadEdges
        The E edges of B H heads.

    Returns
    -------
    Tensor
        Shape (E,).
    """
    return cast("Tensor", _HeadProducts.apply(query, key, scale, edges))  # type: ignore[no-untyped-call]


def softmax_sums(scores: Tensor, value: Tensor, edges: HeadEdges) -> Tensor:
    r"""Sum values by a softmax, :math:`\sum_j e^{s_{ij}} v_j / \sum_j e^{s_{ij}}` over N(i).

    Parameters
    ----------
    scores : Tensor
        One number per edge, shape (E,), float32 or float64; -inf is no edge.
    value : Tensor
        Shape (B, H, keys, D), of the same dtype.
    edges : HeadEdges
        The E edges of B H heads.

    Returns
    -------
    Tensor
        Shape (B, H, queries, D).
    """
    return cast("Tensor", _SoftmaxSums.apply(scores, value, edges))  # type: ignore[no-untyped-call]


def ragged_softmax(scores: Tensor, edges: Neighbourhoods) -> Tensor:
    """Normalize the scores (E,) of each query."""
    return cast("Tensor", _RaggedSoftmax.apply(scores, edges))  # type: ignore[no-untyped-call]


def nodes(tokens: Tensor) -> Tensor:
    """Lay (B, H, N, D) out as `HeadEdges` number them: (1, N B H, D)."""
    return tokens.permute(2, 0, 1, 3).reshape(1, -1, tokens.shape[-1])


def tokens_of(rows: Tensor, like: Tensor) -> Tensor:
    """Read (1, N B H, D) as (B, H, N, D), with the batch and heads of `like`."""
    batch, heads = like.shape[:2]
    return rows.view(-1, batch, heads, rows.shape[-1]).permute(1, 2, 0, 3)


class _HeadProducts(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float, edges: HeadEdges) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.scale, ctx.edges = scale, edges
        return sampled(nodes(query) * scale, nodes(key), edges)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (query, key), scale, edges = ctx.saved_tensors, ctx.scale, ctx.edges
        needed = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():

            def again(query: Tensor, key: Tensor) -> Tensor:
                return edge_products(nodes(query) * scale, nodes(key), edges)[0]

            return (*differentiable(again, (query, key), needed, gradient), None, None)
        to_query = to_key = None
        gradient = gradient[None] * scale
        if needed[0]:
            to_query = tokens_of(summed(gradient, nodes(key), edges), query)
        if needed[1]:
            back = edges.reversed
            to_key = tokens_of(summed(reordered(gradient, back), nodes(query), back), key)
        return to_query, to_key, None, None


class _SoftmaxSums(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, edges: HeadEdges) -> Tensor:
        attention = _softmax(scores, edges)
        ctx.save_for_backward(scores, value, attention)
        ctx.edges = edges
        return tokens_of(summed(attention[None], nodes(value), edges), value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (scores, value, attention), edges = ctx.saved_tensors, ctx.edges
        needed = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():

            def again(scores: Tensor, value: Tensor) -> Tensor:
                attention = ragged_softmax(scores, edges)[None]
                return tokens_of(neighbour_sums(attention, nodes(value), edges), value)

            return (*differentiable(again, (scores, value), needed, gradient), None)
        to_scores = to_value = None
        gradient = nodes(gradient)
        if needed[0]:
            to_attention = sampled(gradient, nodes(value), edges)[0]
            to_scores = _softmax_gradient(attention, to_attention, edges)
        if needed[1]:
            back = edges.reversed
            to_value = tokens_of(summed(reordered(attention[None], back), gradient, back), value)
        return to_scores, to_value, None


class _RaggedSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, edges: Neighbourhoods) -> Tensor:
        attention = _softmax(scores, edges)
        ctx.save_for_backward(attention)
        ctx.edges = edges
        return attention

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (attention,), edges = ctx.saved_tensors, ctx.edges
        if not torch.is_grad_enabled():
            return _softmax_gradient(attention, gradient, edges), None
        weighed = gradient * attention
        sums = weighed.new_zeros(edges.num_queries).index_add(0, edges.query, weighed)
        return weighed - attention * sums.index_select(0, edges.query), None


def _softmax(scores: Tensor, edges: Neighbourhoods) -> Tensor:
    pointer, query = edges.pointer, edges.query
    top = torch.segment_reduce(scores, "max", offsets=pointer, unsafe=True)
    top.clamp_min_(torch.finfo(scores.dtype).min)  # where all scores are -inf
    attention = torch.sub(scores, top.index_select(0, query)).exp_()
    total = torch.segment_reduce(attention, "sum", offsets=pointer, unsafe=True)
    total.clamp_min_(1.0)  # the largest score alone gives 1, so less is 0
    return attention.div_(total.index_select(0, query))


def _softmax_gradient(attention: Tensor, gradient: Tensor, edges: Neighbourhoods) -> Tensor:
    weighed = gradient * attention
    sums = torch.segment_reduce(weighed, "sum", offsets=edges.pointer, unsafe=True)
    return weighed.addcmul_(attention, sums.index_select(0, edges.query), value=-1)
