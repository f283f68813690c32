"""Dot products: what transformers use."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from gattn.weights.base import DotForm, Pairs, Tree, WeightFunction


class Dot(WeightFunction):
    r"""The dot product :math:`q \cdot k`."""

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        query, key = cast("Tensor", query), cast("Tensor", key)
        return (query * key).sum(-1)

    def dot_form(self, query: Tree, key: Tree) -> DotForm:
        """Be a dot product."""
        return DotForm(cast("Tensor", query), cast("Tensor", key))


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
        self.scale = scale

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return super().forward(query, key, pairs) * self._scale(cast("Tensor", query))

    def dot_form(self, query: Tree, key: Tree) -> DotForm:
        """Scale the query."""
        query = cast("Tensor", query)
        return DotForm(query * self._scale(query), cast("Tensor", key))

    def _scale(self, query: Tensor) -> float:
        return float(query.shape[-1] ** -0.5) if self.scale is None else self.scale
