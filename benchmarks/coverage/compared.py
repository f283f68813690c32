"""Compares captured attention with a model's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Heads = NDArray[np.floating[Any]]
Captured = dict[tuple[str, int], list[Heads]]

TOLERANCE = 1e-5


class WrongError(Exception):
    """Gattn was wrong about a model."""


def compare(
    captured: Captured,
    given: list[Heads | None],
    inputs: dict[str, Any],
    is_routed: bool,
    beside: int = 0,
) -> float:
    """Find each of the model's attentions among those captured, and no others.

    Models that do not route their attention may return only some of it, and `beside` are modules
    of torch's own attention, which models never return: theirs is dropped from what was captured.
    """
    if len(captured) < len(given) or (is_routed and len(captured) > len(given) + beside):
        raise WrongError(f"{len(captured)} layers were captured, and the model has {len(given)}")
    left, largest = dict(captured), 0.0
    for number, own in enumerate(given):
        if own is None:  # Some eager functions return no weights: gattn's own check must do.
            continue
        errors = {place: error_of(seen, own, inputs) for place, seen in left.items()}
        place = min(errors, key=lambda place: errors[place])
        if not errors[place] < TOLERANCE:
            shapes = {place: seen[0].shape for place, seen in left.items()}
            raise WrongError(
                f"attention {number} of the model, {own.shape}, is not among those captured: "
                f"the nearest, {place}, is off by {errors[place]:.1e}; {shapes}"
            )
        largest = max(largest, errors[place])
        del left[place]
    for place in left if is_routed else ():  # Nothing may come after a head that pools.
        del captured[place]
    return largest


def error_of(seen: list[Heads], own: Heads, inputs: dict[str, Any]) -> float:
    """Return the largest difference over the real tokens of all sequences and their windows."""
    if len(own) == 1 < len(seen):  # The images of several texts, packed into one sequence.
        seen = [_diagonal(seen)]
    windows = len(own) // len(seen)
    if len(own) % len(seen) or seen[0].shape[0] != own.shape[1]:
        return float("inf")
    largest = 0.0
    for number, mine in enumerate(seen):
        whole = _block_diagonal(own[number * windows : (number + 1) * windows])
        if not np.ptp(whole, axis=0).any():  # It returns the mean over heads.
            mine = np.repeat(mine.mean(0, keepdims=True), len(mine), axis=0)
        queries, keys = mine.shape[1:]
        if queries == keys > whole.shape[1] == whole.shape[2]:  # Without a prompt of its own.
            mine = mine[:, -whole.shape[1] :, -whole.shape[2] :]
            queries, keys = mine.shape[1:]
        if queries > whole.shape[1] or keys > whole.shape[2]:
            return float("inf")
        if not _may_be(queries, whole.shape[1], number, inputs):
            return float("inf")
        rows, columns = np.arange(queries), np.arange(keys)
        read = whole.any((0, 1)).nonzero()[0]
        if keys == len(read):  # Padding need not be on the right.
            columns = read
            rows = read if queries == keys and whole.shape[1] == whole.shape[2] else rows
        own_rows = whole[:, rows]
        rest = np.abs(np.delete(own_rows, columns, axis=2)).sum(-1)
        difference = np.abs(own_rows[:, :, columns] - mine)
        if _leaves_out_sinks(own_rows, mine):
            shares = mine / np.maximum(mine.sum(-1, keepdims=True), 1e-12)
            difference = np.abs(own_rows[:, :, columns] - shares)
        largest = max(largest, difference.max(initial=0), rest.max(initial=0))
    return float(largest)


def _leaves_out_sinks(own: Heads, mine: Heads) -> bool:
    """Return whether an eager function returns its weights before a sink takes its share."""
    full, less = own.sum(-1), mine.sum(-1)
    return bool(np.allclose(full, 1, atol=TOLERANCE) and (less < 0.999).any() and less.all())


def _may_be(real: int, length: int, number: int, inputs: dict[str, Any]) -> bool:
    """Return whether there can be `real` tokens: all, or as many as an input's mask says."""
    masks = [x for name, x in inputs.items() if name.endswith("attention_mask") and x is not None]
    known = [mask for mask in masks if mask.shape[1] == length]
    return real == length or not known or any(real == int(mask[number].sum()) for mask in known)


def _block_diagonal(windows: Heads) -> Heads:
    """Put the windows (windows, heads, queries, keys) of a sequence on a diagonal."""
    return _diagonal(list(windows))


def _diagonal(blocks: list[Heads]) -> Heads:
    """Put blocks (heads, queries, keys) on a diagonal."""
    heads, rows, columns = (sum(block.shape[n] for block in blocks) for n in range(3))
    whole = np.zeros((heads // len(blocks), rows, columns), blocks[0].dtype)
    row = column = 0
    for block in blocks:
        whole[:, row : row + block.shape[1], column : column + block.shape[2]] = block
        row, column = row + block.shape[1], column + block.shape[2]
    return whole
