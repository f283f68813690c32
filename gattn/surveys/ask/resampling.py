"""Bootstrap intervals of many means at once: all heads share the resampled texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from gattn.errors import ShapeError

_WEIGHTS = 2**22
"""How many weights of texts to hold in memory at once, 8 bytes each."""
_FEWEST = 100
_ROUNDING = 1e-9
"""Means that differ by less than this share of a standard error count as equal."""


def means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the mean of each column, ignoring NaN; the mean of equal numbers is exact."""
    present = ~np.isnan(values)
    count = present.sum(0)
    sums = np.where(present, values, 0).sum(0)
    mean: NDArray[np.float64] = np.full(count.shape, np.nan)
    np.divide(sums, count, out=mean, where=count > 0)
    lowest = np.where(present, values, np.inf).min(0, initial=np.inf)
    is_constant = lowest == np.where(present, values, -np.inf).max(0, initial=-np.inf)
    mean[is_constant] = lowest[is_constant]
    return mean


def spreads(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the sample standard deviation of each column, ignoring NaN; NaN for one number."""
    count = (~np.isnan(values)).sum(0)
    squares = np.square(_deviations(values)).sum(0)
    variance = np.divide(squares, count - 1, out=np.full(count.shape, np.nan), where=count > 1)
    spread: NDArray[np.float64] = np.sqrt(variance)
    return spread


def mean_intervals(
    values: NDArray[np.float64], *, confidence: float, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bootstrap an interval of each column's mean, bias-corrected and accelerated (BCa).

    A resample draws as many rows as there are, the same ones for all columns, and ignores NaN. The
    parameters are those of `gattn.surveys.head_statistics`.

    Returns
    -------
    array, array (heads,)
        The lower and upper ends; NaN for fewer than two numbers.

    References
    ----------
    Efron (1987), Better bootstrap confidence intervals.
    """
    if not 0 < confidence < 1:
        raise ShapeError(
            f"confidence must be between 0 and 1, as in 0.95, not {confidence!r:.200}."
        )
    if resamples < _FEWEST:
        raise ShapeError(f"An interval takes at least {_FEWEST} resamples, not {resamples!r:.200}.")
    count = (~np.isnan(values)).sum(0)
    if not values.size:
        return np.full(count.shape, np.nan), np.full(count.shape, np.nan)
    shifts = _resampled(values, resamples, seed)
    shares = _shares(shifts, _deviations(values), count, confidence)
    ends = np.full((2, len(count)), np.nan)
    for column in np.flatnonzero(count > 1):
        ends[:, column] = np.nanquantile(shifts[:, column], shares[:, column])
    low, high = means(values) + ends
    return low, high


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract the column's mean, and put 0 in place of NaN."""
    deviations = values - means(values)
    deviations[np.isnan(deviations)] = 0
    return deviations


def _resampled(values: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Compute how far each resample moves the mean of each column."""
    random = np.random.default_rng(seed)
    texts = len(values)
    deviations, present = _deviations(values), ~np.isnan(values)
    gaps = np.flatnonzero(present.any(0) & ~present.all(0))
    holds = present[:, gaps].astype(np.float64)
    shifts = np.empty((resamples, values.shape[1]))
    step = max(1, _WEIGHTS // texts)
    for start in range(0, resamples, step):
        weights = np.empty((min(step, resamples - start), texts))
        for row in weights:
            row[:] = np.bincount(random.integers(texts, size=texts), minlength=texts)
        some = weights @ deviations / texts
        if len(gaps):
            shares = weights @ holds / texts
            some[:, gaps] = np.where(
                shares > 0, some[:, gaps] / np.where(shares, shares, 1), np.nan
            )
        shifts[start : start + step] = some
    return shifts


def _shares(
    shifts: NDArray[np.float64],
    deviations: NDArray[np.float64],
    count: NDArray[np.int64],
    confidence: float,
) -> NDArray[np.float64]:
    """Compute the quantiles of the resampled means at which each interval ends."""
    squares = np.einsum("ij,ij->j", deviations, deviations)
    cubes = np.einsum("ij,ij,ij->j", deviations, deviations, deviations)
    skew = np.divide(cubes, 6 * squares**1.5, out=np.zeros(len(cubes)), where=squares > 0)
    same = _ROUNDING * np.sqrt(squares) / np.maximum(count, 1)
    known = np.maximum((~np.isnan(shifts)).sum(0), 1)
    below = ((shifts < -same).sum(0) + 0.5 * (np.abs(shifts) <= same).sum(0)) / known
    bias = ndtri(np.clip(below, 1 / (known + 1), known / (known + 1)))
    tails = ndtri([[(1 - confidence) / 2], [(1 + confidence) / 2]])
    reach = bias + tails
    shares: NDArray[np.float64] = ndtr(bias + reach / np.maximum(1 - skew * reach, 1e-9))
    return shares
