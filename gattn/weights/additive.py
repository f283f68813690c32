"""Additive scores: a small network per pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gattn.checks import finite_number
from gattn.weights.base import Pairs, Positions, Tree, WeightFunction
from gattn.weights.parameters import expect_features, learned


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
        return query @ self.query_matrix, key @ self.key_matrix

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
        return query @ self.query_matrix + self.bias[:, None], key @ self.key_matrix

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        hidden = nn.functional.leaky_relu(query + key, self.negative_slope)
        return (hidden * self.vector).sum(-1)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in self.query_matrix.shape)
