"""Reach: through how many layers, on how many walks and past which bottlenecks information gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.propagation.layered import Layered, Passages, check_number
from gattn.analysis.propagation.runs import Runs
from gattn.analysis.reading.results import Array, array
from gattn.progress import walk

_KEYS = 512
"""How many keys reach takes at a time, and eight times as many as walks: they fit the cache."""
_FULL = 0.1
"""The additions per pair from which on dense matrices multiply faster."""


def reach(
    given: Passages,
    *,
    tokens: Sequence[str] = (),
    depth: int | None = None,
    residual: bool = True,
    progress: bool = True,
) -> Array:
    """Count the layers until information can travel from each token to each other.

    Parameters
    ----------
    given : Attention, TokenGraph or sequence of TokenGraph
        Attention: information passes along the kept edges of any head of a layer that are not 0;
        or a token graph that all layers have; or one per layer.
    tokens : sequence of str
        The texts of an array's tokens.
    depth : int, optional
        How many layers a token graph stands for; by default as many as it takes.
    residual : bool
        Whether the residual stream carries on what a token has. Without it, information is at a
        token only if the last layer brought it.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Array (query, key)
        The smallest number of layers after which information from key j can be at query i: 0 for
        itself, infinity if it never gets there.

    Raises
    ------
    SelectionError
        If queries and keys are different tokens, layers are missing, `depth` is not a number of
        layers or given along with several, or `residual` is neither True nor False.

    References
    ----------
    Beltagy et al. (2020), Longformer: a window of w reaches w more tokens in each layer.
    """
    stack = Layered.of(given, tokens, depth, residual)
    size = len(stack)
    found = np.empty((size, size), dtype=np.float32)
    runs = [Runs(stack.passing(depth)) for depth in range(len(stack.edges))]
    most = len(stack.layers) or size
    for block in walk(_blocks(size, _KEYS), "reach", "block of keys", progress=progress):
        found[:, block] = _layers_until(block, runs, most, size)
    return _by_pairs("reach", found, stack, units="layers")


def walks(
    given: Passages,
    *,
    tokens: Sequence[str] = (),
    depth: int | None = None,
    residual: bool = True,
    progress: bool = True,
) -> Array:
    """Count the walks on which information travels from each token to each other.

    Parameters
    ----------
    given, tokens, progress
        As in `reach`.
    depth : int, optional
        How many layers a token graph stands for.
    residual : bool
        Whether tokens keep what they have in each layer. A token that also attends to itself has
        one such step, not two.

    Returns
    -------
    Array (query, key)
        The number of walks, one step per layer, from the input of key j to the output of query i,
        in double precision. In L causal layers it is the binomial C(i - j + L - 1, L - 1).

    Raises
    ------
    SelectionError
        As in `reach`; also if there are too many walks for double precision (over 1e308).
    """
    stack = Layered.of(given, tokens, depth, residual).counted()
    count, size = len(stack.layers), len(stack)
    runs = [Runs(stack.passing(depth)) for depth in range(len(stack.edges))]
    is_full = sum(one.additions for one in runs) > _FULL * size**2 * len(runs)
    found = np.eye(size)
    with np.errstate(over="ignore", invalid="ignore"):
        if is_full and len(runs) == 1:
            found = np.linalg.matrix_power(_dense(stack, 0), count)
        elif is_full:
            for depth in walk(range(count), "walks", "layer", progress=progress):
                found = _dense(stack, depth) @ found
        else:
            for block in walk(_blocks(size, _KEYS // 8), "walks", "keys", progress=progress):
                some = np.ascontiguousarray(found[:, block])
                for depth in range(count):
                    some = runs[depth % len(runs)].summed(some)
                found[:, block] = some
    check_number(found, count)
    notes = ["rounded to 16 digits"] if found.max() > 2**53 else []
    return _by_pairs("walks", found, stack, *notes)


def _dense(stack: Layered, depth: int) -> NDArray[np.float64]:
    step: NDArray[np.float64] = stack.passing(depth).toarray().astype(np.float64)
    return step


def _blocks(size: int, keys: int) -> list[slice]:
    return [slice(first, min(first + keys, size)) for first in range(0, size, keys)]


def _layers_until(block: slice, runs: Sequence[Runs], most: int, size: int) -> NDArray[np.float32]:
    """Count the layers until what some keys have is at each query, (queries, keys)."""
    there = _packed(np.eye(size, dtype=bool)[:, block])
    seen, digits = there.copy(), list[NDArray[np.uint64]]()
    for layers in range(1, most + 1):
        there = runs[(layers - 1) % len(runs)].united(there)
        new = there & ~seen
        if len(runs) == 1:  # only what is new can bring anything new
            if not new.any():
                break
            there = new
        seen |= new
        while layers >> len(digits):
            digits.append(np.zeros_like(seen))
        for place, digit in enumerate(digits):
            if layers >> place & 1:
                digit |= new
    count = block.stop - block.start
    found = np.where(_unpacked(seen, count), np.float32(0), np.float32(np.inf))
    for place, digit in enumerate(digits):
        found += _unpacked(digit, count) * np.float32(1 << place)
    return found


def _packed(there: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack rows of booleans, 64 a number."""
    bits = np.packbits(there, axis=1)
    return np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64)


def _unpacked(bits: NDArray[np.uint64], count: int) -> NDArray[np.uint8]:
    return np.unpackbits(bits.view(np.uint8), axis=1, count=count)


def _by_pairs(name: str, values: NDArray[Any], stack: Layered, *notes: str, **facts: Any) -> Array:
    return array(
        values,
        {"query": stack.positions, "key": stack.positions},
        name=name,
        computed_from=stack.source,
        edits=stack.edits,
        notes=[*stack.notes, *notes],
        tokens={"query": stack.tokens, "key": stack.tokens},
        residual=stack.residual,
        **facts,
    )
