"""The contrastive covariance of queries and keys, as running sums over texts."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.analysis.subspaces.labelled_edges import LabelledEdges

_AT_ONCE = 1 << 16  # edges


class Contrast:
    r"""Sums of :math:`q k^\top` over edges of either label, and over shuffled labels.

    Memory is that of a few matrices (dim, dim), however many tokens, edges and texts there are.

    Parameters
    ----------
    shuffles : int
        For how many shuffles of the labels.
    """

    def __init__(self, shuffles: int) -> None:
        self._shuffles = shuffles
        self._all: Tensor | None = None
        self._positive = torch.empty(0, device="cpu")
        self.positive = self.negative = 0

    def add(self, query: Tensor, key: Tensor, edges: LabelledEdges, labels: Tensor) -> None:
        """Add a text: vectors (tokens, dim), and the labels (1 + shuffles, edges), own first."""
        if self._all is None:
            self._all = query.new_zeros(query.shape[1], key.shape[1])
            self._positive = self._all.new_zeros(1 + self._shuffles, *self._all.shape)
        self._all += _product(query, key, edges, torch.ones_like(edges.label))
        for n, some in enumerate(labels):
            self._positive[n] += _product(query, key, edges, some)
        self.positive += int(edges.label.sum())
        self.negative += int((~edges.label).sum())

    def matrices(self) -> Tensor:
        """Return mean over positive edges minus mean over negative ones: (1 + shuffles, d, d)."""
        assert self._all is not None
        rest = self._all - self._positive
        return self._positive / max(self.positive, 1) - rest / max(self.negative, 1)


def _product(query: Tensor, key: Tensor, edges: LabelledEdges, chosen: Tensor) -> Tensor:
    """Sum the products of chosen edges, first over the keys of each query."""
    summed = torch.zeros(len(query), key.shape[1], dtype=key.dtype, device="cpu")
    for some in chosen.nonzero()[:, 0].split(_AT_ONCE):
        summed.index_add_(0, edges.query[some], key[edges.key[some]])
    return query.T @ summed
