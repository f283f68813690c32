"""Scores that read the edges' features."""

from __future__ import annotations

from torch import Tensor

from gattn.errors import ShapeError
from gattn.weights.base import Pairs, Positions, PositionWeight, Tree, WeightFunction
from gattn.weights.parameters import expect_features, learned


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


def _features(weight: WeightFunction, pairs: Pairs, matrix: Tensor) -> Tensor:
    found = None if pairs.features is None else pairs.features.shape[-1]
    if pairs.features is None or found != len(matrix):
        raise ShapeError(
            f"{weight} reads {len(matrix)} features per edge; it got {found}. Give edge_features "
            f"of shape (edges, {len(matrix)}) or (queries, keys, {len(matrix)})."
        )
    return pairs.features.to(matrix.dtype)
