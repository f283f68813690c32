"""Sets of keys: runs of positions, or lists of them."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Span: TypeAlias = tuple[Tensor, Tensor]
"""Each query's keys as [low, high)."""

Keys: TypeAlias = slice | Tensor
"""A set of keys: a run, or a sorted tensor without duplicates."""

FARTHEST = 1 << 40
"""No position is larger: graphs have fewer tokens, and a larger distance means all."""


def count_keys(keys: Keys) -> int:
    """Count keys."""
    return keys.stop - keys.start if isinstance(keys, slice) else keys.shape[-1]


def list_keys(keys: Keys, device: torch.device | None = None) -> Tensor:
    """List the keys of a run."""
    if isinstance(keys, Tensor):
        return keys
    return torch.arange(keys.start, keys.stop, device=device or "cpu")


def within(keys: Span, low: Tensor, high: Tensor) -> Span:
    """Cut [low, high) to each query's keys."""
    low = torch.maximum(low, keys[0])
    return low, torch.maximum(low, torch.minimum(high, keys[1]))


def ranges(start: Tensor, stop: Tensor) -> Tensor:
    """List the numbers of the runs start .. stop - 1, one run after another."""
    sizes = stop - start
    shift = start - sizes.cumsum(0) + sizes
    shifts = torch.repeat_interleave(shift, sizes)
    return shifts + torch.arange(len(shifts), device=start.device)


def between(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Count the sorted values in [low, high)."""
    return torch.searchsorted(values, high) - torch.searchsorted(values, low)


def run_of(low: int, high: int, num_keys: int) -> slice:
    """Cut [low, high) to the keys there are."""
    low = min(max(low, 0), num_keys)
    return slice(low, max(min(high, num_keys), low))


def as_run(keys: Tensor) -> Keys:
    """Return sorted keys as a slice if they are one run."""
    if not len(keys):
        return slice(0, 0)
    low, high = int(keys[0]), int(keys[-1]) + 1
    return slice(low, high) if high - low == len(keys) else keys


def every(stride: int, first: int, last: int, span: slice) -> Keys:
    """Find the keys of a span that are a multiple of `stride` away from any of first .. last."""
    rows, stride = last - first + 1, min(stride, FARTHEST)
    if rows >= stride:
        return span
    start = span.start - (span.start - first) % stride
    keys = torch.arange(start, span.stop, stride, device="cpu")[:, None] + torch.arange(
        rows, device="cpu"
    )
    keys = keys.flatten()
    return as_run(keys[(keys >= span.start) & (keys < span.stop)])


def union(left: Keys, right: Keys) -> Keys:
    """Join the keys of both."""
    if isinstance(left, Tensor):
        if isinstance(right, slice):
            return union(right, left)
        return as_run(torch.unique(torch.cat([left, right.to(left.device)])))
    if isinstance(right, slice):
        if not count_keys(left) or not count_keys(right):
            return left if count_keys(left) else right
        if max(left.start, right.start) <= min(left.stop, right.stop):
            return slice(min(left.start, right.start), max(left.stop, right.stop))
    others = list_keys(right)
    before, after = _cut(others, left)
    run = list_keys(left, others.device)
    return as_run(torch.cat([others[:before], run, others[after:]]))


def intersection(left: Keys, right: Keys) -> Keys:
    """Find the keys that are in both."""
    if isinstance(left, Tensor):
        if isinstance(right, slice):
            return intersection(right, left)
        return as_run(left[torch.isin(left, right.to(left.device))])
    if isinstance(right, slice):
        return run_of(max(left.start, right.start), min(left.stop, right.stop), right.stop)
    before, after = _cut(right, left)
    return as_run(right[before:after])


def _cut(keys: Tensor, run: slice) -> list[int]:
    """Find where a run of keys starts and stops in sorted keys."""
    ends = torch.tensor([run.start, run.stop], device=keys.device)
    found: list[int] = torch.searchsorted(keys, ends).tolist()
    return found


def shifted(keys: Keys, by: int) -> Keys:
    """Shift keys."""
    return slice(keys.start + by, keys.stop + by) if isinstance(keys, slice) else keys + by


def moved(keys: Keys, device: torch.device | None) -> Keys:
    """Move keys to a device, or to the CPU; a run needs no device."""
    return keys if isinstance(keys, slice) else keys.to(device or "cpu")
