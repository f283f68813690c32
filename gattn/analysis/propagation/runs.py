"""A layer's edges as runs of consecutive keys, which are combined by doubling."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_BLOCK_BYTES = 1 << 21
"""Blocks that fit the cache."""

Rows: TypeAlias = NDArray[np.intp]
Pieces: TypeAlias = "csr_array[Any, tuple[int, int]]"
N = TypeVar("N", np.uint64, np.float64)


class Runs:
    r"""What each query's keys have, together: their sum, or the union of their bits.

    A neighbourhood is cut into runs of consecutive keys, and a run into pieces of :math:`2^l` keys,
    one for each binary digit of its length. What :math:`2^l` keys from each key on have together,
    :math:`x^{(l)}_j = x^{(l - 1)}_j + x^{(l - 1)}_{j + 2^{l - 1}}`, is computed once for all
    queries. So a window of w keys takes :math:`\log_2 w` additions a query instead of w, and where
    no keys are consecutive, nothing is lost. No difference is taken, so no digit is cancelled.

    Parameters
    ----------
    edges : csr_array (queries, keys)
        The edges; their numbers are not looked at.
    """

    def __init__(self, edges: Pieces) -> None:
        edges.sort_indices()
        query = np.repeat(np.arange(edges.shape[0]), np.diff(edges.indptr))
        key = edges.indices
        begins = np.ones(len(key), dtype=bool)
        begins[1:] = (key[1:] != key[:-1] + 1) | (query[1:] != query[:-1])
        first = np.flatnonzero(begins)
        query, key = query[first], key[first].astype(np.intp)
        length = np.diff(first, append=len(begins))
        self._levels: list[tuple[Rows, Pieces]] = []
        for level in range(int(length.max(initial=0)).bit_length()):
            has = (length >> level & 1).astype(bool)
            self._levels.append(_of_rows(query[has], key[has], edges.shape[1]))
            key += has << level

    @property
    def additions(self) -> int:
        """How many rows of numbers are added to others."""
        return sum(pieces.nnz + pieces.shape[1] for _, pieces in self._levels)

    def summed(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Give each query the sum of the numbers of its keys, (keys, anything)."""
        found = np.zeros_like(numbers)
        for level, (rows, pieces) in enumerate(self._levels):
            if level:
                numbers = _doubled(numbers, 1 << level - 1, np.add)
            found[rows] += pieces @ numbers
        return found

    def united(self, bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Give each query the bits of all its keys, (keys, anything)."""
        found = np.zeros_like(bits)
        for level, (rows, pieces) in enumerate(self._levels):
            if level:
                bits = _doubled(bits, 1 << level - 1, np.bitwise_or)
            found[rows] |= _united(bits, pieces)
        return found


def _of_rows(query: Rows, key: Rows, size: int) -> tuple[Rows, Pieces]:
    """List the queries that have pieces, and which."""
    rows, starts = np.unique(query, return_index=True)
    pointer = np.append(starts, len(key))
    return rows, csr_array((np.ones(len(key)), key, pointer), shape=(len(rows), size))


def _doubled(one: NDArray[N], far: int, combine: np.ufunc) -> NDArray[N]:
    """Combine each row with the one that is `far` below; the last ones are of no run."""
    other = np.empty_like(one)
    combine(one[:-far], one[far:], out=other[:-far])
    other[-far:] = one[-far:]
    return other


def _united(bits: NDArray[np.uint64], pieces: Pieces) -> NDArray[np.uint64]:
    """Unite the bits of each row's pieces, a few rows at a time."""
    found = np.empty((pieces.shape[0], bits.shape[1]), dtype=bits.dtype)
    most = max(_BLOCK_BYTES // bits[0].nbytes, 1)
    starts, stops = pieces.indptr[:-1], pieces.indptr[1:]
    first = 0
    while first < len(found):
        begin = starts[first]
        last = max(int(np.searchsorted(stops, begin + most, "right")), first + 1)
        there = bits[pieces.indices[begin : stops[last - 1]]]
        found[first:last] = np.bitwise_or.reduceat(there, starts[first:last] - begin, axis=0)
        first = last
    return found
