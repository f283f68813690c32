"""Additive scores: a small network per pair."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from gattn.checks import finite_number
from gattn.graph.rules.per_head import HeadEdges, differentiable
from gattn.weights.base import Tree, WeightFunction
from gattn.weights.pairs import Pairs, Positions
from gattn.weights.parameters import expect_features, learned, transformed


class Additive(WeightFunction):
    r"""The additive score :math:`v_h \cdot \tanh(W_h^q q + W_h^k k)`.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    dim : int
        Features of each head's query and key.
    hidden : int
        Hidden features of the network.

    References
    ----------
    Bahdanau et al. (2015), Neural machine translation by jointly learning to align and translate.
    """

    def __init__(self, num_heads: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.query_matrix = learned(num_heads, dim, hidden, fan_in=dim)
        self.key_matrix = learned(num_heads, dim, hidden, fan_in=dim)
        self.vector = learned(num_heads, hidden, fan_in=hidden)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Project both sides to the hidden features."""
        for side, tokens in (("query", query), ("key", key)):
            expect_features(self, side, tokens, self.query_matrix.shape[:2])
        return transformed(query, self.query_matrix), transformed(key, self.key_matrix)

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return (torch.tanh(query + key) * self.vector).sum(-1)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in self.query_matrix.shape)


class GAT(WeightFunction):
    r"""The score of graph attention networks, :math:`\mathrm{LeakyReLU}(a^s_h k + a^d_h q)`.

    The key is the edge's source, the query its destination.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    dim : int
        Features of each head's query and key.
    negative_slope : float
        LeakyReLU's slope below 0.

    References
    ----------
    Velickovic et al. (2018), Graph attention networks.
    """

    def __init__(self, num_heads: int, dim: int, negative_slope: float = 0.2) -> None:
        super().__init__()
        self.query_vector = learned(num_heads, dim, fan_in=dim)
        self.key_vector = learned(num_heads, dim, fan_in=dim)
        self.negative_slope = finite_number("negative_slope", negative_slope)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Reduce each side to one number per token."""
        for side, tokens in (("query", query), ("key", key)):
            expect_features(self, side, tokens, self.query_vector.shape)
        return query @ self.query_vector[..., None], key @ self.key_vector[..., None]

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return nn.functional.leaky_relu((query + key)[..., 0], self.negative_slope)

    def on_edges(self, query: Tensor, key: Tensor, edges: HeadEdges) -> Tensor | None:
        """Score edges from one number per token."""
        if type(self).forward is not GAT.forward:
            return None
        ones = query.new_ones(query.shape[1], 1)
        return _leaky_scores(query, key, ones, self.negative_slope, edges)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in self.query_vector.shape)


class GATv2(WeightFunction):
    r"""The score of GATv2, :math:`a_h \cdot \mathrm{LeakyReLU}(W_h^l k + W_h^r q + b_h)`.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    dim : int
        Features of each head's query and key.
    hidden : int
        Hidden features per head.
    negative_slope : float
        LeakyReLU's slope below 0.

    References
    ----------
    Brody et al. (2022), How attentive are graph attention networks?
    """

    def __init__(self, num_heads: int, dim: int, hidden: int, negative_slope: float = 0.2) -> None:
        super().__init__()
        self.query_matrix = learned(num_heads, dim, hidden, fan_in=dim)
        self.key_matrix = learned(num_heads, dim, hidden, fan_in=dim)
        self.bias = nn.Parameter(torch.zeros(num_heads, hidden))
        self.vector = learned(num_heads, hidden, fan_in=hidden)
        self.negative_slope = finite_number("negative_slope", negative_slope)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Project both sides to the hidden features."""
        for side, tokens in (("query", query), ("key", key)):
            expect_features(self, side, tokens, self.query_matrix.shape[:2])
        left = transformed(query, self.query_matrix, self.bias)
        return left, transformed(key, self.key_matrix)

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        hidden = nn.functional.leaky_relu(query + key, self.negative_slope)
        return (hidden * self.vector).sum(-1)

    def on_edges(self, query: Tensor, key: Tensor, edges: HeadEdges) -> Tensor | None:
        """Score edges, and keep their hidden features for the gradient."""
        if type(self).forward is not GATv2.forward:
            return None
        return _leaky_scores(query, key, self.vector, self.negative_slope, edges)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in self.query_matrix.shape)


_MOST_HIDDEN = 1 << 22
"""How many hidden features are kept for the gradient; of more, `forward` keeps fewer."""

_PIECE_HIDDEN = 1 << 18
"""How many are computed at once: they should stay in the cache."""


def _leaky_scores(
    query: Tensor, key: Tensor, vector: Tensor, slope: float, edges: HeadEdges
) -> Tensor | None:
    r"""Score edges by :math:`a_h \cdot \mathrm{LeakyReLU}(q_i + k_j)`.

    (B, H, Q, D), (B, H, K, D) and (H, D) -> (E,), or None if that does not suit.
    """
    is_small = edges.num_edges * query.shape[-1] <= _MOST_HIDDEN
    are_wide = {x.dtype for x in (query, key, vector)} in ({torch.float32}, {torch.float64})
    if not is_small or not are_wide or slope < 0:
        return None
    return cast("Tensor", _LeakyScores.apply(query, key, vector, slope, edges))  # type: ignore[no-untyped-call]


class _LeakyScores(Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, vector: Tensor, slope: float, edges: HeadEdges
    ) -> Tensor:
        left, right, base = _rows(query), _rows(key), edges.base
        factor = _of_heads(vector, query)
        hidden = left.index_select(0, base.query)
        scores = left.new_empty(base.num_edges, factor.shape[0])
        for part, its_scores, its_keys in _pieces(hidden, scores, base.key):
            part += right.index_select(0, its_keys)
            nn.functional.leaky_relu_(part, slope)
            its_scores.copy_(torch.bmm(_each_head(part, factor), factor[..., None])[..., 0].T)
        ctx.save_for_backward(query, key, vector, hidden)
        ctx.slope, ctx.edges = slope, edges
        return scores.view(-1).index_select(0, edges.source)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, vector, hidden = ctx.saved_tensors
        slope, edges, needed = ctx.slope, ctx.edges, ctx.needs_input_grad[:3]
        base, factor = edges.base, _of_heads(vector, query)
        if torch.is_grad_enabled():

            def again(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
                pairs = _rows(query)[base.query] + _rows(key)[base.key]
                pairs = nn.functional.leaky_relu(pairs, slope).unflatten(1, factor.shape)
                found: Tensor = (pairs * _of_heads(vector, query)).sum(-1)
                return found.flatten()[edges.source]

            return (*differentiable(again, (query, key, vector), needed, gradient), None, None)
        share = gradient.index_select(0, edges.place.view(-1)).view(-1, len(factor), 1)
        passed, to_factor = torch.empty_like(hidden), torch.zeros_like(factor)[:, None]
        for some, its_passed, shares in _pieces(hidden, passed, share):
            part = some.view(-1, *factor.shape)
            if needed[2]:
                to_factor.baddbmm_(shares.permute(1, 2, 0), _each_head(some, factor))
            torch.ops.aten.leaky_relu_backward.grad_input(
                shares.expand_as(part), part, slope, True, grad_input=its_passed.view_as(part)
            )
        each, back = torch.arange(base.num_edges, device=passed.device), base.reversed
        to_query = _sums(passed, each, base.pointer)
        to_key = _sums(passed, back.order, back.pointer)
        to_vector = to_factor[:, 0]
        if query.shape[0] != 1:
            to_vector = to_vector.view(query.shape[0], *vector.shape).sum(0)
        return _tokens(to_query, factor, query), _tokens(to_key, factor, key), to_vector, None, None


def _sums(rows: Tensor, index: Tensor, pointer: Tensor) -> Tensor:
    """Sum up rows, as bags of embeddings: `pointer` cuts their indices into sums."""
    bags, *_ = torch.embedding_bag(rows, index, pointer, include_last_offset=True)
    return bags


def _of_heads(vector: Tensor, tokens: Tensor) -> Tensor:
    """Give each head in the batch its vector: (H, D) -> (B H, D)."""
    return vector if tokens.shape[0] == 1 else vector.repeat(len(tokens), 1)


def _each_head(rows: Tensor, factor: Tensor) -> Tensor:
    """Read the hidden features (E, B H D) head by head: (B H, E, D)."""
    return rows.view(-1, *factor.shape).transpose(0, 1)


def _tokens(rows: Tensor, factor: Tensor, like: Tensor) -> Tensor:
    """Scale the rows of tokens by each head's factors, and lay them out as (B, H, N, D)."""
    batch, heads, tokens, dim = like.shape
    return (rows * factor.view(-1)).view(tokens, batch, heads, dim).permute(1, 2, 0, 3)


def _rows(tokens: Tensor) -> Tensor:
    """Lay (B, H, N, D) out token by token: (N, B H D)."""
    return tokens.permute(2, 0, 1, 3).reshape(tokens.shape[2], -1)


def _pieces(*numbers: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cut numbers of edges, hidden features (E, any) first, into pieces."""
    size = max(_PIECE_HIDDEN // max(numbers[0].shape[1], 1), 1)
    if numbers[0].shape[0] <= size:
        return [numbers]
    return zip(*(x.split(size) for x in numbers), strict=True)
