"""The Markov chains of heads: rows that sum to 1, what they lost, and their closed classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.reading.layers import Layers

_DENSE_UP_TO = 64
_RESTARTS = 50
"""After so many restarts of Arnoldi's method all eigenvalues are the quicker way."""


@dataclass(frozen=True)
class Chain:
    """The chains of one layer's heads.

    Parameters
    ----------
    step : Tensor (heads, tokens, tokens)
        The probability of going from a query to a key, in double precision: kept attention divided
        by its sum, and from a query that attends to nothing to any token alike.
    missing : Tensor (heads, tokens)
        An upper bound on the share of each query's attention that was not kept. The rows of `step`
        are at most twice that far from those of the whole attention, in the sum of absolute
        differences.
    empty : int
        How many queries attend to nothing.
    """

    step: Tensor
    missing: Tensor
    empty: int

    @classmethod
    def of(cls, layers: Layers, n: int) -> Chain:
        """Read the n-th layer that is there."""
        matrix = layers.read(n).double()
        mass, dropped = layers.mass[n].to(matrix), layers.dropped[n].to(matrix)
        missing = torch.where(mass > 0, dropped / mass, 0)
        kept = matrix.sum(-1, keepdim=True)
        step = torch.where(kept > 0, matrix / kept, 1 / matrix.shape[-1])
        return cls(step, missing, int((kept == 0).sum()))

    def is_causal(self) -> Tensor:
        """Say of each head whether all its walks go back in the text."""
        return ~self.step.triu(1).any(-1).any(-1)

    def closed_classes(self) -> list[list[NDArray[np.int64]]]:
        """List each head's sets of tokens that walks enter and never leave."""
        return [_closed(edges) for edges in (self.step > 0).cpu().numpy()]


def chain_notes(layers: Layers, empty: int) -> list[str]:
    """Return what stands in for attention that is missing."""
    notes = []
    if layers.mass_notes():
        notes.append("each query's attention to the text was divided by its sum")
    if empty:
        notes.append(f"{empty} queries attend to nothing: from there a walker goes anywhere alike")
    return notes


def second_eigenvalue(step: Tensor, is_causal: bool) -> float:
    """Find the second largest absolute eigenvalue of one head's chain."""
    if len(step) == 1:
        return 0.0
    if is_causal:
        sizes = step.diagonal()
    elif len(step) <= _DENSE_UP_TO or step.device.type != "cpu":
        sizes = torch.linalg.eigvals(step).abs()
    else:
        sizes = _two_largest(step)
    second = float(sizes.sort(descending=True).values[1])
    return 1.0 if second > 1 - 1e-12 else second


def _closed(edges: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    if edges.all():
        return [np.arange(len(edges))]
    count, label = connected_components(csr_array(edges.astype(np.int8)), connection="strong")
    query, key = np.nonzero(edges)
    left = label[query][label[query] != label[key]]
    return [np.flatnonzero(label == one) for one in np.setdiff1d(np.arange(count), left)]


def _two_largest(step: Tensor) -> Tensor:
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    start = np.random.default_rng(0).random(len(step))
    try:
        found = eigs(step.numpy(), k=2, v0=start, maxiter=_RESTARTS, return_eigenvectors=False)
    except ArpackNoConvergence:
        found = np.linalg.eigvals(step.numpy())
    return torch.from_numpy(np.abs(found))
