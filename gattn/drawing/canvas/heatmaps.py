"""Matrices of numbers as colours: from 0, around 0, or one colour per kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import KINDS, NO_NUMBER, Scale, colour_map, ink_on
from gattn.drawing.canvas.frame import pitch
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.labels import in_digits, small_size
from gattn.names.text import width


def draw_heatmap(
    ax: Axes,
    values: NDArray[Any],
    name: str,
    cmap: str | Colormap | None = None,
    **options: Any,
) -> None:
    """Draw a heatmap with its colour scale: from 0, or around 0 if there are negative numbers.

    If nine of ten numbers are below 1/20 of the largest, the scale is a square-root scale; if cells
    would be smaller than a pixel, the largest of a block stands for them. The colour bar says so.
    """
    blocks = [_block(ax, count, side) for count, side in zip(values.shape, "yx", strict=True)]
    if max(blocks) > 1:
        name = f"{name}, largest of {blocks[0]} × {blocks[1]} cells"
    finite = values[np.isfinite(values)]
    sizes = np.abs(finite)
    signed = bool((finite < 0).any())
    top = float(sizes.max(initial=0)) or 1.0
    norm = Normalize(-top if signed else 0.0, top)
    if sizes.any() and "norm" not in options and np.quantile(sizes[sizes > 0], 0.9) < top / 20:
        norm, name = Scale(top, signed, widest=1).norm, f"{name}, square-root scale"
    colours = colour_map(cmap, is_signed=signed, is_area=True)
    shown: dict[str, Any] = {"norm": norm, "aspect": "auto", "interpolation": "nearest"}
    colours = colours.with_extremes(bad=NO_NUMBER)
    pooled = np.ma.masked_invalid(_pooled(values, *blocks))
    rows, columns = (size * block for size, block in zip(pooled.shape, blocks, strict=True))
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    image = ax.imshow(pooled, cmap=colours, extent=extent, **(shown | options))
    ax.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    add_colour_bar(image, name, ax, ticks=MaxNLocator(integer=True) if are_whole(values) else None)


def _block(ax: Axes, count: int, side: str) -> int:
    """Return how many cells along a side share a pixel and a half at 100 dots per inch."""
    return int(np.ceil(count * 1.5 * 72 / (100 * pitch(ax, 1, side))))


def _pooled(values: NDArray[Any], rows: int, columns: int) -> NDArray[np.float64]:
    """Take the number of the largest size in each block; NaN if there is none."""
    if rows == columns == 1:
        return values.astype(np.float64)
    missing = [
        (0, -size % block) for size, block in zip(values.shape, (rows, columns), strict=True)
    ]
    padded = np.pad(values.astype(np.float64), missing, constant_values=np.nan)
    high, wide = padded.shape[0] // rows, padded.shape[1] // columns
    blocks = padded.reshape(high, rows, wide, columns).transpose(0, 2, 1, 3).reshape(high, wide, -1)
    largest = np.argmax(np.nan_to_num(np.abs(blocks), nan=-1.0), axis=-1, keepdims=True)
    found: NDArray[np.float64] = np.take_along_axis(blocks, largest, axis=-1)[..., 0]
    return found


def draw_kinds(ax: Axes, values: NDArray[Any]) -> None:
    """Draw a matrix of numbers that are labels: each has a colour, and is written where it fits.

    From the ninth on they share the last colour.
    """
    shown = np.ma.masked_invalid(np.minimum(values, len(KINDS)).astype(np.float64))
    colours = ListedColormap([*KINDS, "#8c8c8c"]).with_extremes(bad=NO_NUMBER)
    norm = Normalize(-0.5, len(KINDS) + 0.5)
    ax.imshow(shown, cmap=colours, norm=norm, interpolation="nearest", aspect="auto")
    write_cells(ax, values, colours(norm(shown)))


def write_cells(
    ax: Axes, values: NDArray[Any], painted: NDArray[Any], *, lift: float = 0.0
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
    """
    rows, columns = values.shape
    down, across = pitch(ax, rows, "y"), pitch(ax, columns, "x")
    size = min(small_size(), (0.8 - lift) * down, across)
    if size < 5:
        return
    whole = [are_whole(column) for column in values.T]
    texts = {
        (i, j): in_digits(value, ".0f") if whole[j] and abs(value) < 1e6 else cell_text(value)
        for (i, j), value in np.ndenumerate(values)
        if np.isfinite(value)
    }
    widest = max(map(width, texts.values()), default=0.0) + 0.3
    size = min(size, across / widest)
    if size < 5:
        return
    for (i, j), text in texts.items():
        ink = ink_on(painted[i, j])
        ax.text(j, i - lift, text, ha="center", va="center", size=size, color=ink)


def are_whole(values: NDArray[np.float64]) -> bool:
    """Return whether all numbers are whole."""
    finite = values[np.isfinite(values)]
    return bool(finite.size) and bool((finite == np.round(finite)).all())


def cell_text(value: float) -> str:
    """Write a number so that it fits a cell."""
    return in_digits(value, ".2f" if abs(value) < 100 else ".0f" if abs(value) < 1e5 else ".1e")
