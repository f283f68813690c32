"""Matrices of numbers as colours: from 0, around 0, or one colour per kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import (
    KINDS_OF_AREAS,
    REST_OF_KINDS,
    Scale,
    colour_map,
    hatched_in,
    ink_on,
)
from gattn.drawing.canvas.fitting import Fitting, fitted, pitch, points, rewritten
from gattn.drawing.canvas.frame import LARGEST
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.labels import in_digits, small_size, smallest, widest_of
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.drawing.matrices.arrays import ArrayCells, KindCells
from gattn.drawing.matrices.cells import Cells, Pool, Pooling, pooling_said
from gattn.drawing.matrices.images import CellsImage, add_cells
from gattn.drawing.matrices.minus import mark_negative

_CELL, _SHORTEST = 0.32, 2.2
"""Inches of a square cell, and of the longer side of a matrix of few, in a figure of its own."""
_HATCH, _HATCHED = "/////", "#8886"
"""What shows where there is no number: in grey, too, it is like no number's colour."""


def draw_heatmap(
    ax: Axes,
    values: NDArray[Any],
    name: str,
    cmap: str | Colormap | None = None,
    *,
    pool: Pool = "mean",
    **options: Any,
) -> None:
    """Draw a heatmap with its colour scale: from 0, or around 0 if there are negative numbers.

    If nine of ten numbers are below 1/20 of the largest, the scale is a square-root scale, as the
    colour bar says. Where pixels are fewer than cells, each shows the mean of its cells, or the
    largest, and the caption says so.
    """
    finite = values[np.isfinite(values)]
    sizes = np.abs(finite)
    signed = bool((finite < 0).any())
    top = float(sizes.max(initial=0)) or 1.0
    norm, how = Normalize(-top if signed else 0.0, top), ""
    if sizes.any() and "norm" not in options and np.quantile(sizes[sizes > 0], 0.9) < top / 20:
        norm, how = Scale(top, signed, widest=1).norm, "square-root scale"
    style: dict[str, Any] = {"cmap": colour_map(cmap, is_signed=signed, is_area=True), "norm": norm}
    cells = ArrayCells(values.astype(np.float64), pool)
    image = fill_axes(ax, cells, **(style | options))
    hatch_missing(ax, values)
    if signed:
        mark_negative(ax, cells, image)
    ticks = MaxNLocator(integer=True) if are_whole(values) else None
    add_colour_bar(image, name, ax, how=how, ticks=ticks)


def aspect_of(shape: tuple[int, ...]) -> Literal["equal", "auto"]:
    """Return whether cells are squares where both sides are alike: unless it is very narrow."""
    return "equal" if 1 / 3 < shape[0] / max(shape[1], 1) < 3 else "auto"


def size_of_squares(rows: int, columns: int) -> tuple[float, float]:
    """Return the inches of a figure on which square cells have room, with what stands around."""
    side = max(_CELL, _SHORTEST / max(rows, columns, 1))
    return min(LARGEST, 2.2 + side * columns), min(LARGEST, 1.6 + side * rows)


def fill_axes(
    ax: Axes,
    cells: Cells,
    *,
    shape: tuple[int, int] | None = None,
    aspect: Any = "auto",
    **style: Any,
) -> CellsImage:
    """Draw a matrix over the whole of axes, its first row on top; the caption says what is pooled.

    Its `shape` is by default that of the cells.
    """
    rows, columns = shape or cells.shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), aspect=aspect)
    image = add_cells(ax, cells, extent=(-0.5, columns - 0.5, rows - 0.5, -0.5), **style)
    image.set_clip_path(ax.patch)
    say_pooled(ax, (rows, columns), cells.pool)
    return image


def say_pooled(ax: Axes, shape: tuple[int, int], pool: Pooling) -> None:
    """Say in the caption what pixels show, if several rows or columns may share one."""

    def step() -> None:
        across, down = (size / POINTS_PER_INCH for size in points(ax))
        fitting = Fitting.of(ax)
        fitting.note("pooled", pooling_said(shape, (down, across), pool, fitting.dots))

    fitted(ax, step)


def hatch_missing(ax: Axes, values: NDArray[Any]) -> None:
    """Hatch the ground of a matrix, which shows where it has no number."""
    if not np.isfinite(values).all():
        ax.patch.set(hatch=_HATCH, linewidth=0, **hatched_in(_HATCHED))


def hatch_stretches(
    ax: Axes, stretches: Sequence[tuple[float, float]], rows: tuple[float, float]
) -> None:
    """Hatch some columns of a matrix, each from where it begins and so wide."""
    style: dict[str, Any] = {"facecolor": "none", "linewidth": 0, "gid": "gattn-gaps"}
    ax.broken_barh(stretches, rows, hatch=_HATCH, zorder=-1, **style, **hatched_in(_HATCHED))


def draw_kinds(ax: Axes, values: NDArray[Any]) -> None:
    """Draw a matrix of numbers that are labels: each has a colour, and is written where it fits.

    From the ninth on they share the last colour.
    """
    count = len(KINDS_OF_AREAS)
    shown = np.minimum(values, count).astype(np.float64)
    colours = ListedColormap([*KINDS_OF_AREAS, REST_OF_KINDS]).with_extremes(bad="none")
    norm = Normalize(-0.5, count + 0.5)
    fill_axes(ax, KindCells(shown), cmap=colours, norm=norm)
    hatch_missing(ax, values)
    write_cells(ax, values, colours(norm(np.ma.masked_invalid(shown))))


def write_cells(
    ax: Axes,
    values: NDArray[Any],
    painted: NDArray[Any],
    *,
    lift: float = 0.0,
    said: str = "",
) -> None:
    """Write numbers into the cells of a heatmap, in black or white, if there is room.

    Parameters
    ----------
    ax : Axes
        Where the matrix is drawn.
    values : array (rows, columns)
        The numbers; missing ones are left out.
    painted : array (rows, columns, 4)
        The colours of the cells.
    lift : float
        How far above the middle of their cells they stand, in cells.
    said : str
        What they are, for the caption if there is room for them.
    """

    def write() -> list[Text]:
        written = _written(ax, values, painted, lift)
        Fitting.of(ax).note("numbers", said * bool(written))
        return written

    rewritten(ax, write)


def _written(ax: Axes, values: NDArray[Any], painted: NDArray[Any], lift: float) -> list[Text]:
    rows, columns = values.shape
    down, across = pitch(ax, rows, "y"), pitch(ax, columns, "x")
    size = min(small_size(), (0.8 - lift) * down, across)
    if size < smallest():
        return []
    whole = [are_whole(column) for column in values.T]
    decimals = decimals_of(values)
    texts = {
        (i, j): in_digits(value, ".0f")
        if whole[j] and abs(value) < 1e6
        else cell_text(value, decimals)
        for (i, j), value in np.ndenumerate(values)
        if np.isfinite(value)
    }
    widest = widest_of(texts.values()) + 0.3
    size = min(size, across / widest)
    if size < smallest():
        return []
    return [
        ax.text(
            j,
            i - lift,
            text,
            ha="center",
            va="center",
            size=size,
            color=ink_on(painted[i, j]),
            gid="gattn-numbers",
        )
        for (i, j), text in texts.items()
    ]


_NEARLY_NONE, _MOST_DECIMALS = 0.02, 5


def are_whole(values: NDArray[np.float64]) -> bool:
    """Return whether all numbers are whole."""
    finite = values[np.isfinite(values)]
    return bool(finite.size) and bool((finite == np.round(finite)).all())


def decimals_of(values: NDArray[np.float64]) -> int:
    """Return how many decimals numbers have: 2, or more where all would be near to 0.00."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    return 1 - math.floor(math.log10(largest)) if 0 < largest < _NEARLY_NONE else 2


def cell_text(value: float, decimals: int = 2) -> str:
    """Write a number so that it fits a cell."""
    if decimals > _MOST_DECIMALS:
        return in_digits(value, ".0e") if value else "0"
    small = f".{decimals}f"
    return in_digits(value, small if abs(value) < 100 else ".0f" if abs(value) < 1e5 else ".1e")
