"""Matrices of numbers as colours: from 0, around 0, or one colour a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from gattn.drawing.axes import pitch
from gattn.drawing.colours import colour_map
from gattn.drawing.labels import font_size, text_style
from gattn.drawing.text import wrapped

NONE = "#8884"
"""The colour where there is no number, on light and dark backgrounds."""
KINDS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89a00", "#7b5ea7")
"""Colours without an order, which everyone can tell apart."""


def draw_matrix(
    ax: Axes,
    values: NDArray[Any],
    name: str,
    cmap: str | Colormap | None = None,
    **options: Any,
) -> None:
    """Draw a matrix with its colour scale: from 0, or around 0 where there are negative numbers."""
    finite = values[np.isfinite(values)]
    signed = bool((finite < 0).any())
    top = float(np.abs(finite).max()) if finite.size else 1.0
    norm = Normalize(-top if signed else 0.0, top or 1.0)
    colours = colour_map(cmap, is_signed=signed, is_area=True)
    shown: dict[str, Any] = {"norm": norm, "interpolation": "nearest", "aspect": "auto"} | options
    colours = colours.with_extremes(bad=NONE)
    image = ax.imshow(np.ma.masked_invalid(values), cmap=colours, **shown)
    figure = ax.get_figure()
    assert figure is not None
    ticks = MaxNLocator(integer=True) if are_whole(values) else None
    bar = figure.colorbar(image, ax=ax, fraction=0.05, pad=0.02, ticks=ticks)
    text = wrapped(name.replace("_", " "), max(pitch(ax, 1, "y")[1], 60) / font_size())
    bar.set_label(text, **text_style([text]))
    bar.outline.set_visible(False)


def draw_kinds(ax: Axes, values: NDArray[Any]) -> None:
    """Draw a matrix of numbers that are names: a colour each, and the numbers where they fit.

    From the ninth on they share the last colour.
    """
    shown = np.ma.masked_invalid(np.minimum(values, len(KINDS)).astype(np.float64))
    colours = ListedColormap([*KINDS, "#8c8c8c"]).with_extremes(bad=NONE)
    norm = Normalize(-0.5, len(KINDS) + 0.5)
    ax.imshow(shown, cmap=colours, norm=norm, interpolation="nearest", aspect="auto")
    write_cells(ax, values, colours(norm(shown)))


def write_cells(ax: Axes, values: NDArray[Any], painted: NDArray[Any]) -> None:
    """Write numbers into the cells of a matrix, in black or white, where there is room.

    Parameters
    ----------
    ax : Axes
        Where the matrix is drawn.
    values : array (rows, columns)
        The numbers; what has none is left out.
    painted : array (rows, columns, 4)
        The colours of the cells.
    """
    rows, columns = values.shape
    down, across = pitch(ax, rows, "y")[0], pitch(ax, columns, "x")[0]
    whole = [are_whole(column) for column in values.T]
    widest = 2.6 if not all(whole) else 1.6
    size = min(0.75 * font_size(), 0.8 * down, across / widest)
    if size < 5:
        return
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = _ink(painted[i, j])
            text = f"{value:.0f}" if whole[j] and abs(value) < 1e6 else _short(value)
            ax.text(j, i, text, ha="center", va="center", size=size, color=ink)


def are_whole(values: NDArray[np.float64]) -> bool:
    """Say whether all numbers are whole."""
    finite = values[np.isfinite(values)]
    return bool(finite.size) and bool((finite == np.round(finite)).all())


def _short(value: float) -> str:
    digits = 2 if abs(value) < 100 else 0
    text = f"{abs(value):.{digits}f}" if abs(value) < 1e5 else f"{abs(value):.1e}"
    sign = "−" if value < 0 and text != "0.00" else ""
    return sign + (text.removeprefix("0") if text.startswith("0.") else text)


def _ink(colour: Sequence[float] | NDArray[Any]) -> str:
    red, green, blue = (float(part) for part in colour[:3])
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
