"""Where boxes of labels, nodes and straight lines meet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.curves import Points


def directions(count: int) -> Points:
    """Return evenly spread directions, the first one upwards."""
    angles = np.arange(count) * (2 * np.pi / count)
    return np.stack([np.sin(angles), np.cos(angles)], axis=1)


def around(half: NDArray[np.float64], gap: float, count: int) -> Points:
    """Return where boxes around a node stand, from its middle, with a gap to it."""
    towards = directions(count)
    return np.asarray(towards * gap + towards / np.abs(towards).max(1, keepdims=True) * half)


def distances(nodes: Points, places: Points, half: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each box (boxes, nodes) is from each node."""
    away = np.maximum(np.abs(places[:, None] - nodes) - half, 0)
    return np.asarray(np.hypot(away[..., 0], away[..., 1]))


def to_lines(lines: Points, nodes: Points) -> NDArray[np.float64]:
    """Return how far each line (lines, nodes) is from each node."""
    begins, along = lines[:, None, 0], lines[:, None, 1] - lines[:, None, 0]
    away = nodes - begins
    share = (away * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12)
    off = away - np.clip(share, 0, 1)[..., None] * along
    return np.asarray(np.hypot(off[..., 0], off[..., 1]))


def meet(lines: Points, middles: Points, halves: Points) -> NDArray[np.bool_]:
    """Return which lines (lines, boxes) begin or end in a box, or cross it."""
    corners = np.broadcast_to(halves, middles.shape)
    met = (np.abs(lines[:, None] - middles[:, None]) < corners[:, None]).all(-1).any(-1)
    for turned in (corners, corners * [1.0, -1.0]):
        diagonals = np.stack([middles - turned, middles + turned], axis=1)
        met |= cross(lines, diagonals)
    return np.asarray(met)


def cross(lines: Points, others: Points) -> NDArray[np.bool_]:
    """Return which lines (lines, others) cross which others."""
    a, b = (lines[:, None, end] for end in (0, 1))
    c, d = (others[None, :, end] for end in (0, 1))
    return np.asarray(
        (_turn(a, b, c) * _turn(a, b, d) <= 0) & (_turn(c, d, a) * _turn(c, d, b) <= 0)
    )


def _turn(a: Points, b: Points, c: Points) -> NDArray[np.float64]:
    """Return on which side of the line from a to b a point c lies."""
    ab, ac = b - a, c - a
    return np.asarray(ab[..., 0] * ac[..., 1] - ab[..., 1] * ac[..., 0])
