"""The cells of arrays of numbers, kinds or colours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.matrices.cells import Pool, Pooling, averages, check_pool, overlaps

_ANY_NUMBER = 1 << 20
"""Into how many columns stretches of several lengths are divided at most."""


@dataclass(frozen=True)
class ArrayCells:
    """A matrix of numbers, of which some may be missing.

    Parameters
    ----------
    values : array (rows, columns)
        The numbers, NaN where there is none.
    pool : {"mean", "max"}
        What a cell shows that stands for several: their mean, or the one of the largest size.
    edges : array (columns + 1,), optional
        Where columns begin and end, if they are not equally wide.
    """

    values: NDArray[np.float64]
    pool: Pool = "mean"
    edges: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_pool(self.pool)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are, any number if these are not equally wide."""
        rows, columns = self.values.shape
        return rows, columns if self._is_even else _ANY_NUMBER

    @property
    def _is_even(self) -> bool:
        return self.edges is None or bool(np.ptp(wide := np.diff(self.edges)) <= 1e-6 * wide.max())

    def at(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Return the matrix in so many rows and columns at most, NaN where there is no number."""
        rows, columns = (min(pair) for pair in zip((rows, columns), self.shape, strict=True))
        if (rows, columns) == self.values.shape and self._is_even:
            return self.values
        high, wide = self.values.shape
        edges = np.arange(wide + 1.0) if self.edges is None else self.edges
        if self.pool == "max":
            thin = _largest(self.values, edges, columns)
            return _largest(thin.T, np.arange(high + 1.0), rows).T
        down, across = overlaps(np.arange(high + 1.0), rows), overlaps(edges, columns)
        present = down.T @ np.isfinite(self.values).astype(np.float64) @ across
        return averages(down.T @ np.nan_to_num(self.values) @ across, present, present > 1e-9)


@dataclass(frozen=True)
class PairCells:
    """A matrix of pairs of tokens, empty where none is an edge; with others these count as 0.

    Parameters
    ----------
    values : ArrayCells
        The numbers, 0 where there is no edge.
    is_edge : array (rows, columns)
        1 where there is an edge, 0 where there is none.
    """

    values: ArrayCells
    is_edge: NDArray[np.float64]

    @property
    def pool(self) -> Pooling:
        """What a cell shows that stands for several."""
        return self.values.pool

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are."""
        return self.values.shape

    def at(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Return the matrix in so many rows and columns at most, NaN where there is no edge."""
        edges = replace(self.values, values=self.is_edge).at(rows, columns)
        return np.where(edges > 0, self.values.at(rows, columns), np.nan)


def _largest(
    values: NDArray[np.float64], edges: NDArray[np.float64], parts: int
) -> NDArray[np.float64]:
    """Find the number of the largest size of the columns in each part of all, NaN if none."""
    ends = np.linspace(edges[0], edges[-1], parts + 1)
    little = 1e-9 * (edges[-1] - edges[0])
    first = np.searchsorted(edges[1:], ends[:-1] + little, side="right")
    stop = np.searchsorted(edges[:-1], ends[1:] - little, side="left")
    padded = np.pad(values, [(0, 0), (0, 1)], constant_values=np.nan)
    slices = np.stack([first, stop], axis=1).ravel()
    most, least = (some.reduceat(padded, slices, axis=1)[:, ::2] for some in (np.fmax, np.fmin))
    return np.where(np.abs(most) >= np.abs(least), most, least)


@dataclass(frozen=True)
class KindCells:
    """A matrix of kinds, numbered from 0, of which some may be missing.

    Parameters
    ----------
    values : array (rows, columns)
        The kinds, NaN where there is none.
    """

    values: NDArray[np.float64]

    @property
    def pool(self) -> Pooling:
        """Of several kinds the most frequent is shown."""
        return "most"

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are."""
        return self.values.shape[0], self.values.shape[1]

    def at(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Return the most frequent kind of each cell, NaN where there is none."""
        kinds = np.unique(self.values[np.isfinite(self.values)])
        if not len(kinds):
            return ArrayCells(self.values).at(rows, columns)
        is_known = np.isfinite(self.values)
        shares = [
            ArrayCells(np.where(is_known, self.values == kind, np.nan)).at(rows, columns)
            for kind in kinds
        ]
        most = np.argmax(np.nan_to_num(shares), axis=0)
        return np.where(np.isfinite(shares[0]), kinds[most], np.nan)


@dataclass(frozen=True)
class ColourCells:
    """A matrix of colours.

    Parameters
    ----------
    values : array (rows, columns, 4)
        The colours, with their opacity.
    """

    values: NDArray[np.float64]

    @property
    def pool(self) -> Pooling:
        """Of several colours the mean is shown."""
        return "mean"

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are."""
        return self.values.shape[0], self.values.shape[1]

    def at(self, rows: int, columns: int) -> NDArray[Any]:
        """Return the mean colours of so many rows and columns at most."""
        opacity = self.values[..., 3]
        red, green, blue, solid = (
            ArrayCells(part * weight).at(rows, columns)
            for part, weight in zip(
                np.moveaxis(self.values, -1, 0), (opacity, opacity, opacity, 1.0), strict=True
            )
        )
        inks = (averages(ink, solid, solid > 0) for ink in (red, green, blue))
        return np.nan_to_num(np.stack([*inks, solid], axis=-1))
