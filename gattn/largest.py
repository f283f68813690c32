"""The largest numbers of each row, found quickly."""

from __future__ import annotations

from math import isqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

_FEW = (32, 256)
_LITTLE = 1 << 14  # fewer numbers than these are not worth several steps
_SORTED = 128  # rows of so many numbers, or twice as many, are sorted quickly
_COLUMNS = 64
_QUICK_SHARE = 64  # torch.topk is quick if rows are this many times as long as what it looks for


def flat_indices(chosen: Tensor) -> Tensor:
    """List the flat indices of what is True, rising."""
    if chosen.device.type == "cpu":  # NumPy is several times as fast.
        return torch.from_numpy(np.flatnonzero(chosen.numpy()))
    return chosen.flatten().nonzero()[:, 0]


def sorted_rows(numbers: Tensor) -> Tensor:
    """Sort rows of whole numbers."""
    if numbers.device.type == "cpu":
        return torch.from_numpy(np.sort(numbers.numpy(), axis=-1))
    return numbers.sort().values


def row_starts(rows: Tensor, slots: int) -> Tensor:
    """Return the flat index of the first slot of each row."""
    return torch.arange(rows.numel(), device=rows.device).view(rows.shape) * slots


def _largest(sizes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the `count` largest of each row, in falling order, and their slots.

    Each row is dealt out into groups; those with the `count` largest maxima hold them.
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


def largest_and_next(sizes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the `count` largest of each row, in any order, their slots, and the size after them.

    Rows must be longer than `count`. NumPy sorts short rows of whole numbers several times faster
    than torch finds their largest, so groups are sorted by their maxima, then the slots of the
    groups with the largest.
    """
    slots = sizes.shape[-1]
    width = min(-(-slots // _SORTED), 2 * _SORTED // (count + 1)) if slots > 2 * _SORTED else 1
    is_suited = sizes.dtype == torch.float32 and sizes.device.type == "cpu"
    is_suited &= sizes.numel() >= _LITTLE and slots // max(width, 1) > count
    if not is_suited or (width < 2 and slots > 2 * _SORTED):
        largest, slot = _largest(sizes, count + 1)
        return largest[..., :-1], slot[..., :-1], largest[..., -1]
    if width == 1:
        return _sorted_rows(sizes, count)
    groups = slots // width
    dealt = sizes[..., : groups * width].unflatten(-1, (width, groups))
    _, group, beyond = largest_and_next(_maxima(dealt), count)
    among = group[..., None, :].expand(*group.shape[:-1], width, count)
    held, rest = dealt.gather(-1, among).flatten(-2), sizes[..., groups * width :]
    held = torch.cat([held, rest], -1) if rest.shape[-1] else held
    largest, order, cut = _sorted_rows(held, count)
    within = order // count
    slot = group.gather(-1, order - within * count) + within * groups
    if rest.shape[-1]:
        slot = torch.where(within < width, slot, order - width * count + groups * width)
    return largest, slot, torch.maximum(cut, beyond)


def _maxima(dealt: Tensor) -> Tensor:
    """Return the largest of each column of (..., rows, columns).

    torch takes columns 64 at a time, and others one by one, which is many times slower: the last 64
    are taken again instead.
    """
    columns = dealt.shape[-1]
    left = columns % _COLUMNS
    if not left or columns < _COLUMNS:
        return dealt.amax(-2)
    most, last = dealt[..., : columns - left].amax(-2), dealt[..., -_COLUMNS:].amax(-2)
    return torch.cat([most, last[..., -left:]], -1)


def _sorted_rows(sizes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort rows of float32 with their slots: in 64 bits, sizes are the high half, slots the low."""
    codes = sizes.contiguous().view(torch.int32).long()
    codes <<= 32
    codes |= torch.arange(sizes.shape[-1], device="cpu")
    codes.numpy().sort(axis=-1)
    found = codes[..., -count - 1 :]
    largest = (found >> 32).int().view(torch.float32)
    return largest[..., 1:], (found & 0xFFFFFFFF)[..., 1:], largest[..., 0]


def shortest_runs(sizes: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of the largest of each row reach its goal, and which size comes next.

    Looks at a few of the largest, then at more, and sorts only the rows that need most of theirs.
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


# On an accelerator the same without looking at any number, which would make the host wait.


def shortest_sorted_runs(sizes: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Return which size comes after the largest of each row that reach its goal, and their number.

    Goals have the shape (..., rows) of the sizes (..., rows, slots).
    """
    largest = sizes.sort(-1, descending=True).values
    mass = largest.cumsum(-1, dtype=torch.float64)
    aim = torch.minimum(goal[..., None], mass[..., -1:])
    needed = torch.searchsorted(mass, aim) + (aim > 0)
    return pad(largest, (0, 1), value=-1.0).gather(-1, needed)[..., 0], needed[..., 0]


def down_to(sizes: Tensor, present: Tensor, cut: Tensor, wanted: Tensor | int) -> Tensor:
    """Mark each row's edges above its cut, and the first of this size up to `wanted` in all."""
    stronger, equal = sizes > cut[..., None], (sizes == cut[..., None]) & present
    lacking = wanted - stronger.sum(-1)
    return stronger | (equal & (equal.cumsum(-1, dtype=torch.int32) <= lacking[..., None]))


def first_equals(
    sizes: Tensor, present: Tensor, cut: Tensor, stronger: Tensor, wanted: Tensor | int
) -> Tensor:
    """Fill rows up to `wanted` edges with their first slots of size `cut`: give the flat indices.

    Looks from the left in ever wider pieces, and only at rows that still lack edges.
    """
    slots = sizes.shape[-1]
    start = row_starts(cut, slots)
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
