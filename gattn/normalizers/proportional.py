"""Attention in proportion to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.normalizers.base import Normalizer, neighbourhood_sums, on_each_edge, widened


class Proportional(Normalizer):
    r"""Scores over their sum: :math:`A_{ij} = w_{ij} / \sum_{k \in N(i)} w_{ik}`.

    Meant for positive weight functions such as `KernelFeatures`: together they are linear
    attention. Negative scores give negative attention, and a row whose scores sum to 0 gets 0.

    References
    ----------
    Katharopoulos et al. (2020), Transformers are RNNs.
    """

    is_distribution = True
    is_signed = True

    def forward(self, scores: Tensor) -> Tensor:
        """Normalize rows."""
        wide = _edges_only(scores)
        return _shares(wide, wide.sum(-1, keepdim=True)).to(scores.dtype)

    def on_edges(self, scores: Tensor, query: Tensor, num_queries: int) -> Tensor:
        """Normalize by segment sums."""
        wide = _edges_only(scores)
        total = neighbourhood_sums(wide, query, num_queries)
        return _shares(wide, on_each_edge(total, query)).to(scores.dtype)


def _edges_only(scores: Tensor) -> Tensor:
    wide = widened(scores)
    return wide.masked_fill(wide == -torch.inf, 0.0)


def _shares(wide: Tensor, total: Tensor) -> Tensor:
    lost = total == 0
    return (wide / total.masked_fill(lost, 1.0)).masked_fill(lost, 0.0)
