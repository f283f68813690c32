"""Lines around the patches that have a number, where others have none: pale ones are seen, too."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import is_dark
from gattn.drawing.canvas.fitting import pitch, rewritten

Segment: TypeAlias = "list[tuple[float, float]]"
SEEN = 3.0
"""The size of patches in points from which they have borders."""


def borders_of(values: NDArray[np.float64]) -> list[Segment]:
    """Return the lines, as (column, row), between patches with a number and those without.

    There are none where all have one, or none has.
    """
    has_number = np.isfinite(values)
    if has_number.all() or not has_number.any():
        return []
    padded = np.pad(has_number, 1).astype(int)
    upright = np.argwhere(np.diff(padded[1:-1], axis=1)).tolist()
    level = np.argwhere(np.diff(padded[:, 1:-1], axis=0)).tolist()
    found: list[Segment] = [[(column, row), (column, row + 1)] for row, column in upright]
    return found + [[(column, row), (column + 1, row)] for row, column in level]


def border_style() -> dict[str, Any]:
    """Return how borders look: neutral, and thinner than what is asked about."""
    return {"colors": "0.8" if is_dark() else "0.25", "linewidths": 0.6, "zorder": 2.6}


def draw_borders(ax: Axes, values: NDArray[np.float64], size: tuple[float, float]) -> None:
    """Draw borders over an image of so many patches down and across, if these are large enough."""
    found, (down, across) = borders_of(values), size

    def draw() -> list[LineCollection]:
        if not found or min(pitch(ax, down, "y"), pitch(ax, across, "x")) < SEEN:
            return []
        lines = LineCollection(found, gid="gattn-borders", capstyle="projecting", **border_style())
        ax.add_collection(lines, autolim=False)
        return [lines]

    rewritten(ax, draw)
