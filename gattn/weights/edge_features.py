"""Scores that read the edges' features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gattn.errors import ShapeError
from gattn.weights.base import Tree, WeightFunction, map_tree
from gattn.weights.pairs import Pairs, Positions
from gattn.weights.parameters import expect_features, learned
from gattn.weights.position import PositionWeight


class EdgeBias(PositionWeight):
    r"""A linear map of an edge's features to one score per head, :math:`b_h \cdot e_{ij}`.

    With one-hot shortest-path distances as features it is Graphormer's spatial bias.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    features : int
        The number of features per edge.

    References
    ----------
    Ying et al. (2021), Do transformers really perform badly for graph representation?
    """

    def __init__(self, num_heads: int, features: int) -> None:
        super().__init__()
        self.matrix = learned(features, num_heads, fan_in=features)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return _features(self, pairs, self.matrix) @ self.matrix

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in reversed(self.matrix.shape))


class EdgeProduct(WeightFunction):
    r"""A product with edge features, :math:`\sum_c q_c k_c (W_h e_{ij})_c / \sqrt d`.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    dim : int
        d, the features of each head's query and key.
    features : int
        The number of features per edge.

    References
    ----------
    Shirzad et al. (2023), Exphormer.
    """

    def __init__(self, num_heads: int, dim: int, features: int) -> None:
        super().__init__()
        self.matrix = learned(features, num_heads, dim, fan_in=features)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Scale the query."""
        for side, tokens in (("query", query), ("key", key)):
            expect_features(self, side, tokens, self.matrix.shape[1:])
        return query * query.shape[-1] ** -0.5, key

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        projected = _features(self, pairs, self.matrix) @ self.matrix.flatten(1)
        edge: Tensor = projected.unflatten(-1, self.matrix.shape[1:])
        return (query * key * edge).sum(-1)

    def extra_repr(self) -> str:
        """Show the sizes."""
        features, heads, dim = self.matrix.shape
        return f"{heads}, {dim}, {features}"


class WithEdges(WeightFunction):
    r"""The score of a key that its edge is added to, :math:`w(q_i, k_j + W e_{ij})`.

    Parameters
    ----------
    weight : WeightFunction
        w, which also reads the edges' features themselves.
    project : nn.Module
        W, from an edge's features to the dims of all heads, one after another.
    """

    def __init__(self, weight: WeightFunction, project: nn.Module) -> None:
        super().__init__()
        self.weight, self.project = weight, project

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs: each has a key of its own, so `prepare` gets a token for each."""
        assert pairs.features is not None
        edge: Tensor = self.project(pairs.features)
        key = key + edge.unflatten(-1, key.shape[-2:])
        lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])

        def one_by_one(x: Tensor, ends: int) -> Tensor:
            kept = x.shape[x.dim() - ends :]
            return x.expand(*lead, *kept).reshape(-1, *kept)

        positions = Positions(one_by_one(pairs.query[..., 0], 0), one_by_one(pairs.key[..., 0], 0))
        query, key = (one_by_one(side, 2).transpose(0, 1)[None] for side in (query, key))
        prepared = self.weight.prepare(query, key, positions)
        ends = (map_tree(lambda x: x[0].transpose(0, 1), side) for side in prepared)
        features = one_by_one(pairs.features, 1)
        each = Pairs(positions.query[:, None], positions.key[:, None], features)
        scores: Tensor = self.weight(*ends, each).unflatten(0, lead)
        return scores

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.weight!r})"


def _features(weight: WeightFunction, pairs: Pairs, matrix: Tensor) -> Tensor:
    found = None if pairs.features is None else pairs.features.shape[-1]
    if pairs.features is None or found != len(matrix):
        raise ShapeError(
            f"{weight} reads {len(matrix)} features per edge; it got {found}. Give edge_features "
            f"of shape (edges, {len(matrix)}) or (queries, keys, {len(matrix)})."
        )
    return pairs.features.to(matrix.dtype)
