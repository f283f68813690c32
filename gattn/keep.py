"""Keep: which edges of a head are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gattn.errors import GraphError


class Keep(ABC):
    """Chooses edges row by row. What it drops is counted by `AttentionGraph`."""

    @abstractmethod
    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Say which edges of some rows stay.

        Parameters
        ----------
        attention : Tensor
            Rows of attention, shape (..., rows, slots), the slots in the order of their keys.
        present : Tensor
            Where a slot is an edge, booleans that broadcast to the same shape.

        Returns
        -------
        Tensor
            Booleans (..., rows, slots), True where an edge stays.
        """


def as_keep(keep: Any) -> Keep:
    """Take a keep, and refuse anything else."""
    if not isinstance(keep, Keep):
        raise GraphError(
            "A keep says which edges stay: All(), Threshold(t), TopK(k) or TopMass(p), as in "
            f"keep=TopK(8); not {keep!r}."
        )
    return keep


@dataclass(frozen=True)
class All(Keep):
    """Keep every edge."""

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Keep what is there."""
        return present.expand(attention.shape)

    def __str__(self) -> str:
        return "All()"


@dataclass(frozen=True)
class Threshold(Keep):
    """Keep the edges with attention of at least `t`; of signed attention, its size.

    A softmax head keeps at most 1 / t edges a query.
    """

    t: float

    def __post_init__(self) -> None:
        if not 0 <= self.t < float("inf"):
            raise GraphError(f"Threshold(t) takes a number t >= 0, not {self.t!r}.")

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Compare each edge."""
        return present & (attention.abs() >= self.t)

    def __str__(self) -> str:
        return f"Threshold({self.t:g})"


@dataclass(frozen=True)
class TopK(Keep):
    """Keep each query's `k` strongest edges; of equals, the smaller key stays."""

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise GraphError(f"TopK(k) takes a whole number k >= 1, not {self.k!r}.")

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Rank each row."""
        order, _ = _ranked(attention, present)
        kept = torch.zeros_like(order, dtype=torch.bool)
        kept.scatter_(-1, order[..., : self.k], True)
        return kept & present

    def __str__(self) -> str:
        return f"TopK({self.k})"


@dataclass(frozen=True)
class TopMass(Keep):
    """Keep each query's shortest descending run of edges that reaches the share `p` of its mass.

    The mass of a row is its own sum over the edges, a sink outside the sequence excluded.
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise GraphError(f"TopMass(p) takes a share 0 < p <= 1, not {self.p!r}.")

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Add up each row from its strongest edge."""
        order, size = _ranked(attention, present)
        mass = size.gather(-1, order).double().clamp_min(0)
        before = mass.cumsum(-1) - mass
        wanted = before < self.p * mass.sum(-1, keepdim=True) * (1 - 1e-12)
        kept = torch.zeros_like(wanted).scatter(-1, order, wanted)
        return kept & present

    def __str__(self) -> str:
        return f"TopMass({self.p:g})"


def _ranked(attention: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Order slots by falling size, absent ones last, ties by key; give the order and the sizes."""
    size = attention.abs().masked_fill(~present, -1.0)
    return torch.sort(size, dim=-1, descending=True, stable=True).indices, size
