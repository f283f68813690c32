"""Normalizers that look at one edge at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.checks import finite_number
from gattn.normalizers.base import Normalizer, neighbourhood_sums, on_each_edge, widened


class Identity(Normalizer):
    """Attention is the score itself: signed and unbounded."""

    is_signed = True

    def forward(self, scores: Tensor) -> Tensor:
        """Pass rows on."""
        return scores.masked_fill(scores == -torch.inf, 0.0)

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Pass edges on."""
        return self.forward(scores)


class ReLU(Normalizer):
    """The scores' positive part: attention is unbounded.

    References
    ----------
    Wortsman et al. (2023), Replacing softmax with ReLU in vision transformers.
    """

    def forward(self, scores: Tensor) -> Tensor:
        """Cut each score at 0."""
        return torch.relu(scores)

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Cut each score at 0."""
        return self.forward(scores)


class Sigmoid(Normalizer):
    r"""The logistic function :math:`A_{ij} = \sigma(w_{ij} + b)`; rows need not sum to 1.

    Parameters
    ----------
    bias : float, optional
        b; by default :math:`-\ln |N(i)|`, with which scores of 0 sum to less than 1.

    References
    ----------
    Ramapuram et al. (2024), Theory, analysis, and best practices for sigmoid self-attention.
    """

    def __init__(self, bias: float | None = None) -> None:
        super().__init__()
        self.bias = None if bias is None else finite_number("bias", bias)

    def forward(self, scores: Tensor) -> Tensor:
        """Squash each score."""
        wide = widened(scores)
        size = (scores != -torch.inf).sum(-1, keepdim=True)
        return self._squash(wide, size).to(scores.dtype)

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Squash each score."""
        wide = widened(scores)
        size = neighbourhood_sums((scores != -torch.inf).to(wide.dtype), query, num_queries)
        return self._squash(wide, on_each_edge(size, query)).to(scores.dtype)

    def _squash(self, wide: Tensor, size: Tensor) -> Tensor:
        bias = -size.clamp_min(1).to(wide.dtype).log() if self.bias is None else self.bias
        return torch.sigmoid(wide + bias)

    def extra_repr(self) -> str:
        """Show a bias that was given."""
        return "" if self.bias is None else f"bias={self.bias}"
