"""Minus signs on negative cells: in grey their colours are like those of positive numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import ink_on
from gattn.drawing.canvas.fitting import Fitting, pitch, rewritten
from gattn.drawing.canvas.labels import in_digits
from gattn.drawing.matrices.cells import Cells
from gattn.drawing.matrices.images import CellsImage

MARKED = 1.5
"""From how many points on cells have signs."""
_NEAR_ZERO = 0.05
"""The share of a scale that is near 0."""
_CORNERS = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
_CODES = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY]
_LONG, _THICK = 0.56, 0.24
"""How long and how thick a sign is, as shares of its cell."""
_LARGE = 9.0
"""From how many points on cells have signs of one size."""


def first_marked(top: float) -> float:
    """Return below which number cells are marked, on a scale that ends at `top`."""
    return -_NEAR_ZERO * top


def marked_said(top: float) -> str:
    """Say what is marked."""
    return f"marked −: below {in_digits(first_marked(top))}"


def minus_signs(
    values: NDArray[Any],
    top: float,
    paint: Callable[[NDArray[Any]], Any],
    apart: float,
    *,
    corner: tuple[float, float] = (-0.5, -0.5),
    size: tuple[float, float] = (1.0, 1.0),
) -> list[PathPatch]:
    """Make the signs of the negative cells of a matrix, one patch for each ink.

    Parameters
    ----------
    values : array (rows, columns)
        The numbers; missing ones have no sign.
    top : float
        The end of their scale.
    paint : callable
        Returns the colours of some numbers, on which signs must show.
    apart : float
        How many points cells are apart.
    corner, size : (float, float)
        Where the first cell begins, and how wide and high each is.
    """
    is_negative = np.nan_to_num(values) < first_marked(top)
    middles = np.asarray(corner) + (np.argwhere(is_negative)[:, ::-1] + 0.5) * size
    inks = np.array([ink_on(colour) for colour in paint(values[is_negative])], dtype=str)
    sign = _CORNERS * (_LONG, _THICK) * size * min(1.0, _LARGE / apart)
    found = []
    for ink in dict.fromkeys(inks.tolist()):
        corners = middles[inks == ink][:, None] + sign
        path = Path(corners.reshape(-1, 2), np.tile(_CODES, len(corners)))
        style: dict[str, Any] = {"linewidth": 0, "zorder": 2.5, "gid": "gattn-negative"}
        found.append(PathPatch(path, facecolor=ink, **style))
    return found


def mark_negative(ax: Axes, cells: Cells, image: CellsImage) -> None:
    """Mark the negative cells of a matrix that fills axes, where they are large enough.

    Numbers near 0, within a twentieth of the scale, have no sign, and none have where numbers
    are written in cells. The caption says below what number cells are marked.
    """
    top = float(np.max(image.norm.vmax or 1.0))

    def made(apart: float) -> list[PathPatch]:
        if any(text.get_gid() == "gattn-numbers" for text in ax.texts):
            return []
        return minus_signs(cells.at(*cells.shape), top, image.to_rgba, apart)

    mark_where_seen(ax, cells.shape, top, made)


def mark_where_seen(
    ax: Axes, shape: tuple[float, float], top: float, make: Callable[[float], list[PathPatch]]
) -> None:
    """Add signs whenever so many rows and columns on axes are far enough apart, and say so."""

    def mark() -> list[Patch]:
        rows, columns = shape
        apart = min(pitch(ax, rows, "y"), pitch(ax, columns, "x"))
        # Large matrices have no such cells: they are never looked at.
        found = make(apart) if apart >= MARKED else []
        Fitting.of(ax).note("marked", marked_said(top) * bool(found))
        return [ax.add_patch(patch) for patch in found]

    rewritten(ax, mark, last=True)  # numbers take their place where they have room
