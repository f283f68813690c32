"""Keep: which edges of a head are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gattn.checks import whole
from gattn.errors import GraphError

_CHUNK = 128
_FEW = (32, 256)
_LITTLE = 1 << 14  # fewer numbers than these are not worth several steps
_SORTED = 128  # rows of so many numbers are sorted in registers, where the processor can
_QUICK_SHARE = 64  # torch.topk is quick where rows are this many times as long as what it looks for


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

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Say the same by number: a faster path, with `select` as its default.

        Parameters
        ----------
        attention, present : Tensor
            As in `select`; a slot that is no edge must hold attention 0.

        Returns
        -------
        Tensor
            The flat index into `attention` of each edge that stays, int64, rising.
        """
        return _flat(self.select(attention, present).expand(attention.shape))

    def capacity(self, degree: Tensor) -> int | None:
        """Bound how many edges stay of rows that have `degree` edges; None where nothing does."""
        return None


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

    def capacity(self, degree: Tensor) -> int:
        """Count what is there."""
        return int(degree.sum())

    def __str__(self) -> str:
        return "All()"


@dataclass(frozen=True)
class Threshold(Keep):
    """Keep the edges with attention of at least `t`; of signed attention, its size.

    A softmax head keeps at most 1 / t edges per query.
    """

    t: float

    def __post_init__(self) -> None:
        if not 0 <= self.t < float("inf"):
            raise GraphError(f"Threshold(t) takes a number t >= 0, not {self.t!r}.")

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Compare each edge."""
        return present & (attention.abs() >= self.t)

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Compare the largest of each chunk, and each edge only where that one stays."""
        if self.t < torch.finfo(attention.dtype).tiny:  # as good as 0, which absent pairs have
            return super().places(attention, present)
        sizes = sizes_of(attention).flatten()
        full = len(sizes) // _CHUNK * _CHUNK
        chunks = sizes[:full].view(-1, _CHUNK)
        hit = _flat(chunks.amax(1) >= self.t)
        if 4 * len(hit) > len(chunks):
            return _flat(sizes >= self.t)
        place = _flat(chunks[hit] >= self.t)
        place = hit[place // _CHUNK] * _CHUNK + place % _CHUNK
        return torch.cat([place, _flat(sizes[full:] >= self.t) + full])

    def __str__(self) -> str:
        return f"Threshold({float(self.t)!r})"


@dataclass(frozen=True)
class TopK(Keep):
    """Keep each query's `k` strongest edges; of equals, the smaller key stays."""

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("The k of TopK(k)", self.k, 1, GraphError))

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        """Mark the places."""
        return _marked(self, attention, present)

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Find the k + 1 largest of each row, and search further only where the last two tie."""
        slots = attention.shape[-1]
        if slots <= self.k:
            return _flat(present.expand(attention.shape))
        sizes = sizes_of(attention)
        largest, slot, cut = _largest_and_next(sizes, self.k)
        place = slot + _row_starts(cut, slots)[..., None]
        stronger = largest > cut[..., None]
        if bool(stronger.all()):
            return place.sort().values.flatten()
        equals = _first_equals(sizes, present, cut, stronger.sum(-1), self.k)
        return torch.cat([place[stronger], equals]).sort().values

    def capacity(self, degree: Tensor) -> int:
        """Count `k` edges per row, or all."""
        return int(degree.clamp_max(min(self.k, torch.iinfo(degree.dtype).max)).sum())

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
        """Mark the places."""
        return _marked(self, attention, present)

    def places(self, attention: Tensor, present: Tensor) -> Tensor:
        """Find the first size of each row that is not needed, and what is above it."""
        if not attention.numel():
            return attention.new_zeros(0, dtype=torch.long)
        sizes = sizes_of(attention)
        goal = self.p * sizes.sum(-1, dtype=torch.float64) * (1 - 1e-12)
        rows = sizes.flatten(0, -2)
        count, cut = (one.view(goal.shape) for one in _shortest_runs(rows, goal.flatten()))
        stronger = sizes > cut[..., None]
        equals = _first_equals(sizes, present, cut, stronger.sum(-1), count)
        return torch.cat([_flat(stronger), equals]).sort().values

    def __str__(self) -> str:
        return f"TopMass({float(self.p)!r})"


def sizes_of(attention: Tensor) -> Tensor:
    """Give |A|: the same tensor, not a copy, where nothing is negative."""
    if not attention.numel() or bool(attention.amin() >= 0):
        return attention
    return attention.abs()


def _marked(keep: Keep, attention: Tensor, present: Tensor) -> Tensor:
    """Say by booleans what `keep` says by places, whatever slots hold that are no edges."""
    kept = torch.zeros(attention.numel(), dtype=torch.bool, device=attention.device)
    kept[keep.places(attention.masked_fill(~present, 0), present)] = True
    return kept.view(attention.shape)


def _flat(chosen: Tensor) -> Tensor:
    return chosen.flatten().nonzero()[:, 0]


def _row_starts(rows: Tensor, slots: int) -> Tensor:
    """Give the flat index of the first slot of each row."""
    return torch.arange(rows.numel(), device=rows.device).view(rows.shape) * slots


def _largest(sizes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the `count` largest of each row, falling, and their slots.

    Of the groups into which a row is dealt out, those with the `count` largest maxima hold them.
    """
    slots = sizes.shape[-1]
    if count == slots:
        return torch.sort(sizes, descending=True)
    width = slots // (_QUICK_SHARE * count) or isqrt(slots // count)
    if width < 3 or sizes.numel() < _LITTLE:
        return torch.topk(sizes, count)
    groups = slots // width
    maxima = sizes[..., : groups * width].unflatten(-1, (width, groups)).amax(-2)
    group = torch.topk(maxima, count, sorted=False).indices[..., None]
    within = torch.arange(width, device=sizes.device) * groups
    rest = torch.arange(groups * width, slots, device=sizes.device)
    slot = torch.cat([(group + within).flatten(-2), rest.expand(*sizes.shape[:-1], -1)], -1)
    largest, order = torch.topk(sizes.gather(-1, slot), count)
    return largest, slot.gather(-1, order)


def _largest_and_next(sizes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the `count` largest of each row, in any order, their slots, and the size next to them.

    Rows must be longer than `count`. NumPy sorts short rows of whole numbers several times faster
    than torch finds their largest: so groups are sorted by their maxima, then the slots of those
    with the largest.
    """
    slots = sizes.shape[-1]
    width = min(-(-slots // _SORTED), 2 * _SORTED // (count + 1))
    is_suited = sizes.dtype == torch.float32 and sizes.device.type == "cpu"
    is_suited &= sizes.numel() >= _LITTLE and slots // max(width, 1) > count
    if not is_suited or width < min(slots / _SORTED, 2):
        largest, slot = _largest(sizes, count + 1)
        return largest[..., :-1], slot[..., :-1], largest[..., -1]
    if width == 1:
        return _sorted_rows(sizes, count)
    groups = slots // width
    maxima = sizes[..., : groups * width].unflatten(-1, (width, groups)).amax(-2)
    _, group, beyond = _largest_and_next(maxima, count)
    within = torch.arange(width) * groups
    rest = torch.arange(groups * width, slots).expand(*sizes.shape[:-1], -1)
    slot = torch.cat([(group[..., None] + within).flatten(-2), rest], -1)
    largest, order, cut = _sorted_rows(sizes.gather(-1, slot), count)
    return largest, slot.gather(-1, order), torch.maximum(cut, beyond)


def _sorted_rows(sizes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort rows of float32 with their slots: one as the high, one as the low half of 64 bits."""
    codes = sizes.contiguous().view(torch.int32).long()
    codes <<= 32
    codes |= torch.arange(sizes.shape[-1])
    codes.numpy().sort(axis=-1)
    found = codes[..., -count - 1 :]
    largest = (found >> 32).int().view(torch.float32)
    return largest[..., 1:], (found & 0xFFFFFFFF)[..., 1:], largest[..., 0]


def _shortest_runs(sizes: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Say how many of the largest of each row reach its goal, and which size comes next.

    Looks at a few of the largest, then at more, and sorts only rows that no few fill.
    """
    slots = sizes.shape[-1]
    count, cut = torch.zeros_like(goal, dtype=torch.long), torch.zeros_like(goal, dtype=sizes.dtype)
    left = torch.arange(len(goal), device=goal.device)
    for many in (*(few for few in _FEW if 8 * few <= slots), slots):
        largest = _falling(sizes[left], many)
        mass = largest.cumsum(-1, dtype=torch.float64)
        aim = torch.minimum(goal[left, None], mass[:, -1:])
        needed = torch.searchsorted(mass, aim) + (aim > 0)
        count[left] = needed[:, 0]
        cut[left] = pad(largest, (0, 1), value=-1.0).gather(-1, needed)[:, 0]
        left = left[needed[:, 0] == many]
    return count, cut


def _falling(sizes: Tensor, count: int) -> Tensor:
    """Sort the `count` largest of each row."""
    if count < sizes.shape[-1] or sizes.device.type != "cpu":
        return _largest(sizes, count)[0]
    sizes = sizes.neg()
    sizes.numpy().sort(axis=-1)
    return sizes.neg_()


def _first_equals(
    sizes: Tensor, present: Tensor, cut: Tensor, stronger: Tensor, wanted: Tensor | int
) -> Tensor:
    """Fill rows up to `wanted` edges with their first slots of size `cut`: give the flat indices.

    Looks from the left in ever wider pieces, only at the rows that still lack edges.
    """
    slots = sizes.shape[-1]
    start = _row_starts(cut, slots)
    found, low, high = [start.new_zeros(0)], 0, 64
    lacking = wanted - stronger
    if bool((lacking > 0).any()):
        present = present.expand(*present.shape[:-1], slots)
        lacking = torch.minimum(lacking, present.sum(-1) - stronger)
    while low < slots and bool((lacking > 0).any()):
        rows = (lacking > 0).nonzero(as_tuple=True)
        here = present.expand(sizes.shape)[..., low:high][rows]
        equal = (sizes[..., low:high][rows] == cut[rows][:, None]) & here
        equal &= equal.cumsum(-1, dtype=torch.int32) <= lacking[rows][:, None]
        row, slot = equal.nonzero(as_tuple=True)
        found.append(start[rows][row] + low + slot)
        lacking[rows] -= equal.sum(-1)
        low, high = high, 4 * high
    return torch.cat(found)
