"""Reach: through how many layers, on how many walks and past which bottlenecks information gets."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.propagation.layered import Edges, Layered, Passages, check_number
from gattn.analysis.reading.results import Array, array
from gattn.progress import walk

_BLOCK_BYTES = 1 << 21
"""Blocks that fit the cache."""
_FULL = 0.1
"""The share of pairs from which on dense matrices multiply faster than sparse ones."""


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
    there = _packed(np.eye(size, dtype=bool))
    seen = there.copy()
    found = np.full((size, size), np.inf, dtype=np.float32)
    np.fill_diagonal(found, 0)
    depths = range(len(stack.layers)) if stack.layers else range(size)
    before, left = {_digest(there)}, size * (size - 1)
    for depth in walk(depths, "reach", "layer", progress=progress):
        there = _gathered(there, stack.passing(depth))
        new = there & ~seen
        if new.any():
            pairs = np.unpackbits(new.view(np.uint8), axis=1, count=size).view(bool)
            found[pairs] = depth + 1
            left -= int(pairs.sum())
            seen |= new
        digest = _digest(there)
        if not left or (len(stack.edges) == 1 and digest in before):
            break  # nothing is left to be seen, or all goes on as before
        before.add(digest)
    return _by_pairs("reach", found, stack)


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
    count, is_full = len(stack.layers), stack.passing(0).nnz > _FULL * len(stack) ** 2
    with np.errstate(over="ignore", invalid="ignore"):
        if is_full and len(stack.edges) == 1:
            alike = stack.passing(0).toarray().astype(np.float64)
            found: NDArray[np.float64] = np.linalg.matrix_power(alike, count)
        else:
            found = np.eye(len(stack))
            for depth in walk(range(count), "walks", "layer", progress=progress):
                step = stack.passing(depth).astype(np.float64)
                found = (step.toarray() if is_full else step) @ found
    check_number(found, count)
    notes = ["rounded to 16 digits"] if found.max() > 2**53 else []
    return _by_pairs("walks", found, stack, *notes)


def _packed(there: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack rows of booleans, 64 a number."""
    bits = np.packbits(there, axis=1)
    return np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64)


def _digest(bits: NDArray[np.uint64]) -> bytes:
    return blake2b(bits.tobytes(), digest_size=16).digest()


def _gathered(bits: NDArray[np.uint64], step: Edges) -> NDArray[np.uint64]:
    """Give each query the bits of all its keys, a few queries at a time."""
    found = np.zeros_like(bits)
    most = max(_BLOCK_BYTES // bits[0].nbytes, 1)
    starts, stops = step.indptr[:-1], step.indptr[1:]
    first = 0
    while first < len(bits):
        last = max(int(np.searchsorted(stops, starts[first] + most, "right")), first + 1)
        rows = np.flatnonzero(starts[first:last] < stops[first:last]) + first
        if len(rows):
            keys = step.indices[starts[first] : stops[last - 1]]
            found[rows] = np.bitwise_or.reduceat(bits[keys], starts[rows] - starts[first], axis=0)
        first = last
    return found


def _by_pairs(name: str, values: NDArray[Any], stack: Layered, *notes: str) -> Array:
    return array(
        values,
        {"query": stack.positions, "key": stack.positions},
        name=name,
        computed_from=stack.source,
        edits=stack.edits,
        notes=[*stack.notes, *notes],
        tokens={"query": stack.tokens, "key": stack.tokens},
        residual=stack.residual,
    )
