"""How well subspaces separate the labels of edges that did not find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from gattn.analysis.subspaces.contrast import Contrast
from gattn.analysis.subspaces.labelled_edges import LabelledEdges


@dataclass(frozen=True, eq=False)
class Directions:
    """Singular vectors of queries and of keys, (dim, rank) each."""

    query: Tensor
    key: Tensor

    def score(self, query: Tensor, key: Tensor, edges: LabelledEdges) -> Tensor:
        """Return the product of what both vectors of each edge have in the subspaces: (edges,)."""
        within = query @ self.query @ (self.query.T @ self.key)
        found: Tensor = (within[edges.query] * (key @ self.key)[edges.key]).sum(-1)
        return found

    def products(self, query: Tensor, key: Tensor, edges: LabelledEdges) -> Tensor:
        """Return each component's product of coordinates: (edges, rank)."""
        found: Tensor = (query @ self.query)[edges.query] * (key @ self.key)[edges.key]
        return found


class HeldOut:
    """Numbers of held-out edges: a few for each, no vectors.

    Parameters
    ----------
    directions : sequence of Directions
        Those of the labels, then those of shuffled labels.
    """

    def __init__(self, directions: Sequence[Directions]) -> None:
        self.directions, self.contrast = directions, Contrast(0)
        self._labels: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._wholes: list[Tensor] = []
        self._products: list[Tensor] = []

    def add(self, query: Tensor, key: Tensor, edges: LabelledEdges, labels: Tensor) -> None:
        """Add a text, as in `Contrast.add`."""
        self.contrast.add(query, key, edges, labels[:1])
        self._labels.append(labels)
        self._wholes.append((query[edges.query] * key[edges.key]).sum(-1))
        scores = [one.score(query, key, edges) for one in self.directions]
        self._scores.append(torch.stack(scores))
        self._products.append(self.directions[0].products(query, key, edges))

    def separation(self) -> dict[str, list[float]]:
        """Say how far the scores of either label are apart: in the subspaces, the rest, and all."""
        labels, whole = torch.cat(self._labels, 1).numpy(), torch.cat(self._wholes).numpy()
        scores = torch.cat(self._scores, 1).numpy()
        rows = []
        for values in (scores, whole - scores, np.broadcast_to(whole, scores.shape)):
            own = labels[0]
            positive, negative = values[0][own].mean(), values[0][~own].mean()
            areas = [auc(*both) for both in zip(values, labels, strict=True)]
            rows.append(
                {
                    "positive": positive,
                    "negative": negative,
                    "difference": positive - negative,
                    "auc": areas[0],
                    "shuffled_low": min(areas[1:]),
                    "shuffled_high": max(areas[1:]),
                }
            )
        return {name: [float(row[name]) for row in rows] for name in rows[0]}

    def areas(self) -> list[float]:
        """Return the AUC of each component."""
        labels = torch.cat(self._labels, 1)[0].numpy()
        return [auc(one, labels) for one in torch.cat(self._products).T.numpy()]


def auc(values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Return how often a positive edge has a larger number than a negative one, ties half."""
    positive = int(labels.sum())
    pairs = positive * (len(labels) - positive)
    total = float(rankdata(values)[labels].sum())
    return (total - positive * (positive + 1) / 2) / pairs
