"""Keep: which edges of a head are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gattn.checks import warn, whole
from gattn.errors import GraphError
from gattn.largest import (
    down_to,
    first_equals,
    flat_indices,
    largest_and_next,
    row_starts,
    shortest_runs,
    shortest_sorted_runs,
    sorted_rows,
)

_CHUNK = 128


class Keep(ABC):
    """Which edges of a head are kept, row by row. `AttentionGraph` counts what is dropped.

    A subclass writes `select`; the other methods are faster paths with a default. A frozen
    dataclass can be compared and shows its numbers.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class AboveAverage(Keep):
    ...     def select(self, attention, present):
    ...         mean = attention.sum(-1, keepdim=True) / present.sum(-1, keepdim=True)
    ...         return present & (attention > mean)
    >>> q = torch.randn(1, 5, 4)
    >>> head, = gattn.attention_graphs(q, q, gattn.TokenGraph.causal(5), keep=AboveAverage())
    """

    @abstractmethod
    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Return which edges stay.

        Parameters
        ----------
        attention : Tensor
            Rows of attention, shape (..., rows, slots), the slots in the order of their keys.
        present : Tensor
            Whether a slot is an edge, booleans that broadcast to the same shape.

        Returns
        -------
        Tensor
            Booleans (..., rows, slots), True where an edge stays.
        """

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """List the edges that stay; by default those that `select` chooses.

        Parameters
        ----------
        attention, present : Tensor
            As in `select`; a slot that is not an edge must hold attention 0.

        Returns
        -------
        Tensor
            The flat index into `attention` of each edge that stays, int64, rising.
        """
        return flat_indices(self.select(attention, present).expand(attention.shape))

    def capacity(self, degree: Tensor) -> int | None:
        """Bound how many edges rows of `degree` edges can keep, or give None."""
        return None


def as_keep(keep: object) -> Keep:
    """Check that `keep` is one, and warn of one that keeps nothing of a softmax."""
    if not isinstance(keep, Keep):
        raise GraphError(
            "A keep says which edges stay: All(), Threshold(t), TopK(k) or TopMass(p), as in "
            f"keep=TopK(8); not {keep!r}."
        )
    if isinstance(keep, Threshold) and keep.t > 1:
        warn(
            f"{keep} keeps no edge of a softmax, whose attention is at most 1. For {keep.t:g} % "
            f"write Threshold({keep.t / 100:g})."
        )
    return keep


@dataclass(frozen=True)
class All(Keep):
    """Keep every edge."""

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Keep every edge."""
        return present.expand(attention.shape)

    def capacity(self, degree: Tensor) -> int:
        """Count all edges."""
        return int(degree.sum())

    def __str__(self) -> str:
        return "All()"


@dataclass(frozen=True)
class Threshold(Keep):
    """Keep the edges with attention of at least `t`, in absolute value.

    A softmax head keeps at most 1 / t edges per query; a threshold above 1 brings a warning.

    Parameters
    ----------
    t : float
        The least attention, 0 or more.

    Raises
    ------
    GraphError
        If `t` is no such number.
    """

    t: float

    def __post_init__(self) -> None:
        if not _is_number(self.t) or not 0 <= self.t < float("inf"):
            raise GraphError(f"Threshold(t) takes a number t ≥ 0, not {self.t!r}.")

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Compare each edge."""
        return present & (attention.abs() >= self.t)

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Compare the largest of each chunk, and each edge only where that one stays."""
        is_of_all = self.t < torch.finfo(attention.dtype).tiny  # as good as 0, as absent pairs have
        if is_of_all or attention.device.type != "cpu":
            return super().places(attention, present)
        sizes = sizes_of(attention).flatten()
        full = len(sizes) // _CHUNK * _CHUNK
        chunks = sizes[:full].view(-1, _CHUNK)
        hit = flat_indices(chunks.amax(1) >= self.t)
        if 4 * len(hit) > len(chunks):
            return flat_indices(sizes >= self.t)
        place = flat_indices(chunks[hit] >= self.t)
        place = hit[place // _CHUNK] * _CHUNK + place % _CHUNK
        return torch.cat([place, flat_indices(sizes[full:] >= self.t) + full])

    def __str__(self) -> str:
        return f"Threshold({float(self.t)!r})"


@dataclass(frozen=True)
class TopK(Keep):
    """Keep each query's `k` strongest edges; ties go to the smaller key.

    Parameters
    ----------
    k : int
        How many edges, 1 or more.

    Raises
    ------
    GraphError
        If `k` is no such number.
    """

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("The k of TopK(k)", self.k, 1, GraphError))

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Mark the places."""
        if attention.shape[-1] <= self.k:
            return present.expand(attention.shape)
        if attention.device.type == "cpu":
            return _marked(self, attention, present)
        sizes = attention.abs().masked_fill(~present, 0)
        cut = sizes.topk(self.k, sorted=False).values.amin(-1)
        return down_to(sizes, present, cut, self.k)

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Find the k + 1 largest of each row, and search further only if the last two tie."""
        slots = attention.shape[-1]
        if slots <= self.k or attention.device.type != "cpu":
            return super().places(attention, present)
        sizes = sizes_of(attention)
        largest, slot, cut = largest_and_next(sizes, self.k)
        place = slot + row_starts(cut, slots)[..., None]
        stronger = largest > cut[..., None]
        if bool(stronger.all()):
            return sorted_rows(place).flatten()
        equals = first_equals(sizes, present, cut, stronger.sum(-1), self.k)
        return torch.cat([place[stronger], equals]).sort().values

    def capacity(self, degree: Tensor) -> int:
        """Count `k` edges per row, or all."""
        return int(degree.clamp_max(min(self.k, torch.iinfo(degree.dtype).max)).sum())

    def __str__(self) -> str:
        return f"TopK({self.k})"


@dataclass(frozen=True)
class TopMass(Keep):
    """Keep each query's strongest edges, as few as hold the share `p` of its mass.

    A row's mass is the sum of `|attention|` over its edges, without a sink outside the sequence.

    Parameters
    ----------
    p : float
        The share, above 0 and at most 1.

    Raises
    ------
    GraphError
        If `p` is no such number.
    """

    p: float

    def __post_init__(self) -> None:
        if not _is_number(self.p) or not 0 < self.p <= 1:
            raise GraphError(f"TopMass(p) takes a share 0 < p <= 1, not {self.p!r}.")

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Mark the places."""
        if attention.device.type == "cpu":
            return _marked(self, attention, present)
        sizes = attention.abs().masked_fill(~present, 0)
        return down_to(sizes, present, *shortest_sorted_runs(sizes, self._goal(sizes)))

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Find the first size of each row that is not needed, and what is above it."""
        if not attention.numel():
            return attention.new_zeros(0, dtype=torch.long)
        if attention.device.type != "cpu":
            return super().places(attention, present)
        sizes = sizes_of(attention)
        goal = self._goal(sizes)
        rows = sizes.flatten(0, -2)
        count, cut = (one.view(goal.shape) for one in shortest_runs(rows, goal.flatten()))
        stronger = sizes > cut[..., None]
        equals = first_equals(sizes, present, cut, stronger.sum(-1), count)
        return torch.cat([flat_indices(stronger), equals]).sort().values

    def _goal(self, sizes: Tensor) -> Tensor:
        return self.p * sizes.sum(-1, dtype=torch.float64) * (1 - 1e-12)

    def __str__(self) -> str:
        return f"TopMass({float(self.p)!r})"


def _is_number(given: Any) -> bool:
    try:
        float(given)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(given, (str, bytes))


def sizes_of(attention: Tensor) -> Tensor:
    """Return |A|: the same tensor, not a copy, if nothing is negative; a copy on other devices."""
    is_on_host = attention.device.type == "cpu"
    if not attention.numel() or (is_on_host and bool(attention.amin() >= 0)):
        return attention
    return attention.abs()


def _marked(keep: Keep, attention: Tensor, present: Tensor) -> Tensor:
    """Mark what `keep.places` lists, whatever the slots that are not edges hold."""
    kept = torch.zeros(attention.numel(), dtype=torch.bool, device=attention.device)
    kept[keep.places(attention.masked_fill(~present, 0), present)] = True
    return kept.view(attention.shape)
