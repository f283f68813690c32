"""Stripes on negative cells: in grey their colours are like those of positive numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox, BboxTransformTo
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import hatched_in, ink_on
from gattn.drawing.canvas.fitting import Fitting, pitch, rewritten
from gattn.drawing.canvas.labels import in_digits
from gattn.drawing.matrices.cells import Cells
from gattn.drawing.matrices.images import CellsImage

STRIPED = 5.0
"""From how many points on cells have stripes."""
_NEAR_ZERO = 0.05
"""The share of a scale that is near 0."""


def first_striped(top: float) -> float:
    """Return below which number cells are striped, on a scale that ends at `top`."""
    return -_NEAR_ZERO * top


def striped_said(top: float) -> str:
    """Say what stripes are."""
    return f"striped: negative, below {in_digits(first_striped(top))}"


def stripes(
    values: NDArray[Any],
    top: float,
    paint: Callable[[NDArray[Any]], Any],
    *,
    corner: tuple[float, float] = (-0.5, -0.5),
    size: tuple[float, float] = (1.0, 1.0),
) -> list[PathPatch]:
    """Make the stripes of the negative cells of a matrix, one patch for each ink.

    Parameters
    ----------
    values : array (rows, columns)
        The numbers; missing ones have no stripes.
    top : float
        The end of their scale.
    paint : callable
        Returns the colours of some numbers, on which stripes must show.
    corner, size : (float, float)
        Where the first cell begins, and how wide and high each is.
    """
    is_negative = np.nan_to_num(values) < first_striped(top)
    cells = np.argwhere(is_negative)
    inks = [ink_on(colour) for colour in paint(values[is_negative])]
    (x, y), (wide, high) = corner, size
    found = []
    for ink in dict.fromkeys(inks):
        own = [cell for cell, one in zip(cells, inks, strict=True) if one == ink]
        boxes = [Bbox.from_bounds(x + j * wide, y + i * high, wide, high) for i, j in own]
        whole = Path.make_compound_path(*map(_box_path, boxes))
        style: dict[str, Any] = {
            "fill": False,
            "linewidth": 0,
            "alpha": 0.6,
            "hatch": "---",
            "zorder": 2.5,
        }
        found.append(PathPatch(whole, gid="gattn-negative", **style, **hatched_in(ink)))
    return found


def mark_negative(ax: Axes, cells: Cells, image: CellsImage) -> None:
    """Stripe the negative cells of a matrix that fills axes, where they are large enough.

    Numbers near 0, within a twentieth of the scale, have no stripes, and none have where numbers
    are written in cells. The caption says below what number cells are striped.
    """
    top = float(np.max(image.norm.vmax or 1.0))

    def made() -> list[PathPatch]:
        if any(text.get_gid() == "gattn-numbers" for text in ax.texts):
            return []
        return stripes(cells.at(*cells.shape), top, image.to_rgba)

    mark_where_seen(ax, cells.shape, top, made)


def mark_where_seen(
    ax: Axes, shape: tuple[float, float], top: float, make: Callable[[], list[PathPatch]]
) -> None:
    """Add stripes whenever so many rows and columns on axes are far enough apart, and say so."""

    def mark() -> list[Patch]:
        rows, columns = shape
        apart = min(pitch(ax, rows, "y"), pitch(ax, columns, "x"))
        # Large matrices have no such cells: they are never looked at.
        found = make() if apart >= STRIPED else []
        Fitting.of(ax).note("striped", striped_said(top) * bool(found))
        return [ax.add_patch(patch) for patch in found]

    rewritten(ax, mark)


def _box_path(box: Bbox) -> Path:
    return Path.unit_rectangle().transformed(BboxTransformTo(box))
