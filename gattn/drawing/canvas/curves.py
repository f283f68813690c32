"""The curves of edges, as Bézier paths from arrays of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.path import Path
from numpy.typing import NDArray

Points: TypeAlias = NDArray[np.float64]

_KAPPA = 4 / 3 * (2**0.5 - 1)
"""How far a quarter ellipse's control points stand from its ends, in units of its radius."""


def half_ellipses(start: Points, end: Points) -> list[Path]:
    """Draw from start to end, upwards where that runs to the right and downwards otherwise.

    Parameters
    ----------
    start, end : array (edges, 2)
        Points on a horizontal line. Half ellipses are half as high as they are wide.
    """
    radius = (end - start)[:, :1] / 2
    middle = (start + end) / 2
    right, up = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    points = [
        start,
        start + radius * up * _KAPPA,
        middle + radius * (up - right * _KAPPA),
        middle + radius * up,
        middle + radius * (up + right * _KAPPA),
        end + radius * up * _KAPPA,
        end,
    ]
    return _cubic(points)


def loops(place: Points, direction: Points, size: tuple[float, float]) -> list[Path]:
    """Draw a small loop at each place that opens in a direction.

    Parameters
    ----------
    place, direction : array (edges, 2)
        The points, and unit vectors.
    size : (float, float)
        The breadth and the length of a loop.
    """
    across = direction[:, ::-1] * np.array([[1.0, -1.0]])
    reach, side = direction * size[1] * 4 / 3, across * size[0] * 3**0.5
    return _cubic([place, place + reach - side, place + reach + side, place])


def openings(place: Points, start: Points, end: Points) -> Points:
    """Find for each place the direction, a unit vector, in which the fewest edges lead.

    It is the middle of the widest angle between the edges that begin or end there; upwards where
    there are none, and rather upwards where several are as wide.

    Parameters
    ----------
    place : array (loops, 2)
        The places.
    start, end : array (edges, 2)
        Between which points edges lead.
    """
    found = np.tile([0.0, 1.0], (len(place), 1))
    here, there = np.concatenate([start, end]), np.concatenate([end, start])
    for n, own in enumerate(place):
        away = there[(here == own).all(axis=1)] - own
        turns = np.unique(np.arctan2(away[:, 0], away[:, 1]).round(6))  # from upwards
        if len(turns):
            gaps = np.diff(turns, append=turns[0] + math.tau)
            middles = (turns + gaps / 2 + math.pi) % math.tau - math.pi
            best = middles[np.lexsort([np.abs(middles), -gaps.round(6)])[0]]
            found[n] = math.sin(best), math.cos(best)
    return found


def bundles(start: Points, end: Points) -> list[Path]:
    """Draw from a left column to a right one, leaving and arriving horizontally."""
    half = (end - start) * np.array([[0.5, 0.0]])
    return _cubic([start, start + half, end - half, end])


def chords(start: Points, end: Points) -> list[Path]:
    """Draw from start to end on the unit circle, bent towards its centre: far ends more.

    Chords bend a little to the left too, so that an edge and its reverse stay apart.
    """
    return _quadratic([start, _chord_control(start, end), end])


def chord_arrivals(start: Points, end: Points) -> Points:
    """Return the directions in which `chords` arrive."""
    return end - _chord_control(start, end)


def _chord_control(start: Points, end: Points) -> Points:
    distance = np.linalg.norm(end - start, axis=1, keepdims=True)
    inwards: Points = (start + end) / 2 * (0.85 - 0.45 * np.minimum(distance, 1.0))
    return inwards + _to_the_left(start, end, 0.1)


def bows(start: Points, end: Points) -> list[Path]:
    """Draw from start to end, bent to the left, so that an edge and its reverse stay apart."""
    return _quadratic([start, _bow_control(start, end), end])


def bow_arrivals(start: Points, end: Points) -> Points:
    """Return the directions in which `bows` arrive."""
    return end - _bow_control(start, end)


def along(paths: Sequence[Path], count: int = 40) -> Points:
    """Return points on curves that have as many control points each (curves · count, 2)."""
    if not paths:
        return np.empty((0, 2))
    controls = np.stack([np.asarray(path.vertices) for path in paths])
    degree = controls.shape[1] - 1
    share = np.linspace(0, 1, count)
    weights = [
        math.comb(degree, k) * share**k * (1 - share) ** (degree - k) for k in range(degree + 1)
    ]
    points: Points = np.einsum("kt,ekx->etx", np.array(weights), controls).reshape(-1, 2)
    return points


def _bow_control(start: Points, end: Points) -> Points:
    return (start + end) / 2 + _to_the_left(start, end, 0.15)


def _to_the_left(start: Points, end: Points, share: float) -> Points:
    left: Points = (end - start)[:, ::-1] * np.array([[-share, share]])
    return left


def _cubic(points: Sequence[Points]) -> list[Path]:
    codes = [Path.MOVETO, *[Path.CURVE4] * (len(points) - 1)]
    return [Path(vertices, codes) for vertices in np.stack(points, axis=1)]


def _quadratic(points: Sequence[Points]) -> list[Path]:
    codes = [Path.MOVETO, *[Path.CURVE3] * (len(points) - 1)]
    return [Path(vertices, codes) for vertices in np.stack(points, axis=1)]
