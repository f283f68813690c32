"""On which side of its node a label has room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.curves import Points

_ABOVE, _BELOW = (0, 1), (0, -1)
_BESIDE = ((1, 0), (-1, 0))
_CORNERS = ((1, 1), (-1, 1), (1, -1), (-1, -1))
MANY = 200
"""From how many nodes on labels stand on four sides only."""
_FURTHER = 6.0
"""How much further from its node a label may stand, in points."""


class Sides:
    """Places labels where they meet neither one before nor the edge, and no node if they can.

    Parameters
    ----------
    nodes : array (nodes, 2)
        Where all nodes lie, in points from the lower left corner.
    room : (float, float)
        The width and height in points.
    gap : float
        How far a label stays from its node.
    """

    def __init__(self, nodes: Points, room: tuple[float, float], gap: float) -> None:
        self._nodes, self._room, self._gap = nodes, np.array(room), gap

    def placed(
        self, own: Points, half: Points, above: Sequence[bool]
    ) -> list[NDArray[np.float64] | None]:
        """Return how far each label's middle lies from its node; None if it has no room.

        Parameters
        ----------
        own : array (labels, 2)
            The nodes that have labels.
        half : array (labels, 2)
            Half the width and height of each label.
        above : sequence of bool
            Whether a label would rather stand above its node than below.
        """
        middles, written = np.zeros_like(own), np.zeros(len(own), dtype=bool)
        found: list[NDArray[np.float64] | None] = []
        for i, node in enumerate(own):
            offsets = self._offsets(half[i], above=above[i])
            places = node + offsets
            inside = ((places >= half[i]) & (places <= self._room - half[i])).all(1)
            apart = half[written] + half[i]
            free = inside & _clear(places, middles[written], apart)
            others = self._nodes[(self._nodes != node).any(1)]
            clear = free & _clear(places, others, half[i] + self._gap / 2)
            chosen = clear if clear.any() else free
            if not chosen.any():
                found.append(None)
                continue
            best = int(np.argmax(chosen))
            middles[i], written[i] = places[best], True
            found.append(offsets[best])
        return found

    def _offsets(self, half: NDArray[np.float64], *, above: bool) -> Points:
        """Return where a label may stand, from its node, the best place first."""
        first = (_ABOVE, _BELOW) if above else (_BELOW, _ABOVE)
        sides = np.array([*first, *_BESIDE], dtype=float)
        near = sides * (self._gap + half)
        if len(self._nodes) > MANY:
            return near
        corners = np.array(_CORNERS, dtype=float) * (0.5 * self._gap + half)
        return np.concatenate([near, corners, near + sides * _FURTHER])


def _clear(
    places: Points, others: Points, apart: Points | NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which places are so far from all others, in one direction at least."""
    away = np.abs(places[:, None] - others[None]) >= apart
    return np.asarray(away.any(-1).all(-1))
