"""The cells of a matrix of edges, pooled where there are more than can be shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph, Ints

Pool: TypeAlias = Literal["mean", "max"]
Pooling: TypeAlias = Literal[Pool, "most"]
COARSE = 72
"""The pixels per inch of the coarsest pictures."""
_THINNEST = 40
"""How many times as wide as its sink's column a matrix is at most."""


class Cells(Protocol):
    """A matrix that can be shown in fewer cells than it has."""

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are."""

    @property
    def pool(self) -> Pooling:
        """What a cell shows that stands for several."""

    def at(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Return the matrix in so many rows and columns at most, NaN where there is nothing."""


@dataclass(frozen=True)
class EdgeCells:
    """A matrix of edges, queries as rows and keys as columns; where there is no edge it is empty.

    Parameters
    ----------
    shape : (int, int)
        How many rows and columns there are, those of a sink among them.
    row, column : array of int (edges,)
        Where the edges are.
    values : array (edges,)
        Their numbers.
    pool : {"mean", "max"}
        What a cell shows that stands for several: their mean, or the one of the largest size.
    fills : bool
        Whether pairs without an edge count as 0 in a mean, as of attention they do.
    """

    shape: tuple[int, int]
    row: Ints
    column: Ints
    values: NDArray[np.float64]
    pool: Pool = "mean"
    fills: bool = True

    @classmethod
    def of(
        cls,
        head: AttentionGraph,
        edges: Ints | None = None,
        values: str = "attention",
        *,
        sinks: Ints | None = None,
        pool: Pool = "mean",
    ) -> EdgeCells:
        """Lay out some edges of a head, by default all, and of some queries the sink's."""
        check_pool(pool)
        chosen = slice(None) if edges is None else edges
        row, column = head.query[chosen], head.key[chosen]
        numbers = head.edge_values[values][chosen].astype(np.float64)
        size = max(head.graph.num_queries, 1), max(head.graph.num_keys, 1)
        if head.sink is not None:
            wide, first = sink_columns(head), head.graph.num_keys + sink_columns(head)
            if values == "attention":
                rows = np.arange(len(head.sink)) if sinks is None else sinks
                row = np.concatenate([row, np.repeat(rows, wide)])
                column = np.concatenate([column, np.tile(first + np.arange(wide), len(rows))])
                numbers = np.concatenate([numbers, np.repeat(head.sink[rows], wide)])
            size = size[0], first + wide
        return cls(size, row, column, numbers, pool, fills=values != "score")

    def at(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Return the matrix in so many rows and columns at most, NaN where there is no edge."""
        rows, columns = (min(pair) for pair in zip((rows, columns), self.shape, strict=True))
        if (rows, columns) == self.shape or self.pool == "max":
            return self._largest(rows, columns)
        return self._mean(rows, columns)

    def _largest(self, rows: int, columns: int) -> NDArray[np.float64]:
        found = np.full((rows, columns), np.nan)
        order = np.argsort(np.abs(self.values), kind="stable")
        row = self.row[order] * rows // self.shape[0]
        column = self.column[order] * columns // self.shape[1]
        found[row, column] = self.values[order]
        return found

    def _mean(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Average over the area of each cell, in which tokens may lie in part."""
        down, across = (
            overlaps(np.arange(size + 1.0), parts)
            for size, parts in zip(self.shape, (rows, columns), strict=True)
        )
        where = (self.row, self.column)

        def summed(numbers: Any) -> NDArray[np.float64]:
            whole = csr_array((numbers, where), shape=self.shape)
            return np.asarray((down.T @ whole @ across).toarray())

        present = summed(np.ones(len(self.values)))
        area = self.shape[0] * self.shape[1] / (rows * columns)
        whole = np.full_like(present, area) if self.fills else present
        return averages(summed(self.values), whole, present > 1e-9 * area)


def check_pool(pool: Any) -> None:
    """Refuse any other way to pool."""
    if pool not in ("mean", "max"):
        raise SelectionError(f"pool is 'mean' or 'max', not {pool!r:.80}.")


def averages(sums: Any, whole: Any, present: Any) -> NDArray[np.float64]:
    """Divide sums by what they are sums of; NaN where nothing is."""
    found: NDArray[np.float64] = np.full(sums.shape, np.nan)
    np.divide(sums, whole, out=found, where=present)
    return found


def overlaps(edges: NDArray[np.float64], parts: int) -> csr_array[Any, tuple[int, int]]:
    """Say how much of each stretch between two edges lies in each of some equal parts of all."""
    ends = np.linspace(edges[0], edges[-1], parts + 1)
    cuts = np.unique(np.concatenate([edges, ends]))
    middle = (cuts[1:] + cuts[:-1]) / 2
    where = [np.searchsorted(some, middle, side="right") - 1 for some in (edges, ends)]
    return csr_array((np.diff(cuts), where), shape=(len(edges) - 1, parts))


def sink_columns(head: AttentionGraph) -> int:
    """Return how many columns wide a sink, and the gap before it, are drawn; 0 without a sink."""
    return 0 if head.sink is None else -(-head.graph.num_keys // _THINNEST)


_SAID = {
    "mean": "cells smaller than a pixel are averaged",
    "max": "of cells smaller than a pixel the largest is shown",
    "most": "of cells smaller than a pixel the most frequent is shown",
}


def pooling_said(
    shape: tuple[int, int],
    inches: tuple[float, float],
    pool: Pooling,
    dots: float = COARSE,
) -> str:
    """Say what pixels show if several of so many rows and columns share one; "" if none do.

    There are so many `dots` per inch.
    """
    pixels = (max(1, round(dots * size)) for size in inches)
    is_coarse = any(count > few for count, few in zip(shape, pixels, strict=True))
    return _SAID[pool] if is_coarse else ""
