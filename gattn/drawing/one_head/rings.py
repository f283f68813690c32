"""The largest circle of labelled points that has room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.curves import Points

_HALVINGS = 30
_HEIGHT = 1.1
"""How high a line of text is, in font sizes."""
_APART = 1.0
"""The least distance between labels, in points."""


@dataclass(frozen=True)
class Ring:
    """A circle in a rectangle, in points.

    Parameters
    ----------
    radius : float
        The radius.
    middle : (float, float)
        How far right of, and above, the middle of the rectangle its centre lies.
    is_apart : bool
        Whether no two labels touch.
    """

    radius: float
    middle: tuple[float, float]
    is_apart: bool


def largest_ring(
    places: Points,
    gaps: NDArray[np.float64],
    widths: NDArray[np.float64],
    size: float,
    rectangle: tuple[float, float],
    *,
    radial: bool,
) -> Ring:
    """Find the largest circle whose labels stay in a rectangle.

    Parameters
    ----------
    places : array (labels, 2)
        The directions of the labels, unit vectors.
    gaps, widths : array (labels,)
        How far from the circle each begins, and how long it is, in points.
    size : float
        The font size of the labels.
    rectangle : (float, float)
        Width and height in points.
    radial : bool
        Whether labels run along the radius.
    """
    low, high = _radial(places, widths, size) if radial else _upright(places, widths, size)
    low, high = low + places * gaps[:, None], high + places * gaps[:, None]
    shown = widths > 0
    bare = gaps[:, None]
    low, high = np.where(shown[:, None], low, -bare), np.where(shown[:, None], high, bare)
    least, most = 0.1 * min(rectangle), max(rectangle)
    for _ in range(_HALVINGS):
        radius = (least + most) / 2
        reach = _reach(places, low, high, radius)
        fits = bool((reach[1] - reach[0] <= rectangle).all())
        least, most = (radius, most) if fits else (least, radius)
    reach = _reach(places, low, high, least)
    x, y = (-(reach[0] + reach[1]) / 2).tolist()
    boxes = np.concatenate([places * least + low, places * least + high], axis=1)[shown]
    return Ring(float(least), (x, y), radial or _are_apart(boxes))


def _upright(places: Points, widths: NDArray[np.float64], size: float) -> tuple[Points, Points]:
    """Return the corners of labels, from where they begin: as `node_link._upright` aligns them."""
    x, y = places.T
    across = np.where(np.abs(x) < 0.05, -0.5, np.where(x < 0, -1.0, 0.0))
    down = np.where(np.abs(y) < 0.5, -0.5, np.where(y < 0, -1.0, 0.0))
    boxes = np.stack([widths, np.full_like(widths, _HEIGHT * size)], axis=1)
    low = np.stack([across, down], axis=1) * boxes
    return low, low + boxes


def _radial(places: Points, widths: NDArray[np.float64], size: float) -> tuple[Points, Points]:
    along = places * widths[:, None]
    beside = np.abs(places[:, ::-1]) * _HEIGHT * size / 2
    return np.minimum(along, 0) - beside, np.maximum(along, 0) + beside


def _reach(places: Points, low: Points, high: Points, radius: float) -> Points:
    """Return the lowest and the highest point of all, from the centre."""
    if not len(places):
        return np.array([[-radius, -radius], [radius, radius]])
    on = places * radius
    lowest, highest = np.minimum(on + low, -radius), np.maximum(on + high, radius)
    return np.stack([lowest.min(0), highest.max(0)])


def _are_apart(boxes: NDArray[np.float64]) -> bool:
    """Return whether no two boxes (left, low, right, high) touch."""
    for at, box in enumerate(boxes):
        others = boxes[at + 1 :]
        meets = (others[:, :2] < box[2:] + _APART).all(1) & (others[:, 2:] > box[:2] - _APART).all(
            1
        )
        if meets.any():
            return False
    return True
