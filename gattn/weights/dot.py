"""Dot products: what transformers use."""

from __future__ import annotations

from torch import Tensor

from gattn.checks import finite_number
from gattn.errors import ShapeError
from gattn.weights.base import Tree, WeightFunction
from gattn.weights.pairs import DotForm, Pairs, Positions
from gattn.weights.parameters import expect_features, learned


class Dot(WeightFunction):
    r"""The dot product :math:`q \cdot k`."""

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Check that queries and keys have the same dim."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{self} needs queries and keys of one dim, got {query.shape[-1]} and "
                f"{key.shape[-1]}; Bilinear joins different ones."
            )
        return query, key

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return (query * key).sum(-1)

    def dot_form(self, query: Tensor, key: Tensor) -> DotForm:
        """Be a dot product."""
        return DotForm(query, key)


class ScaledDotProduct(Dot):
    r"""The scaled dot product :math:`q \cdot k \; s`, with :math:`s = 1/\sqrt{d}` by default.

    Parameters
    ----------
    scale : float, optional
        The factor s.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need.
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else finite_number("scale", scale)

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return super().forward(query, key, pairs) * self._scale(query)

    def dot_form(self, query: Tensor, key: Tensor) -> DotForm:
        """Be a dot product with a scale."""
        return DotForm(query, key, scale=self._scale(query))

    def _scale(self, query: Tensor) -> float:
        return float(query.shape[-1] ** -0.5) if self.scale is None else self.scale

    def extra_repr(self) -> str:
        """Show a scale that was given."""
        return "" if self.scale is None else f"scale={self.scale}"


class Bilinear(Dot):
    r"""The bilinear form :math:`q^\top W_h k`, with a learned matrix per head.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    query_dim : int
        Features of each head's query.
    key_dim : int, optional
        Features of each head's key; `query_dim` by default.

    References
    ----------
    Luong et al. (2015), Effective approaches to attention-based neural machine translation.
    """

    def __init__(self, num_heads: int, query_dim: int, key_dim: int | None = None) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        self.matrix = learned(num_heads, query_dim, key_dim, fan_in=query_dim * key_dim)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Bring the query to the key's features."""
        heads, query_dim, key_dim = self.matrix.shape
        expect_features(self, "query", query, (heads, query_dim))
        expect_features(self, "key", key, (heads, key_dim))
        return query @ self.matrix, key

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in self.matrix.shape)
