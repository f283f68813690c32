"""Axes with tokens along their sides, a title, and what to mind below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gattn.drawing.canvas.colours import given_map, is_dark
from gattn.drawing.canvas.frame import POINTS_PER_INCH, shown_text
from gattn.drawing.canvas.labels import fit, font_size, larger, text_style
from gattn.names.text import wrapped

LARGEST = 12.0
"""The longest side of a figure in inches, at the usual font size."""


_NARROW = 300.0
"""The width in points below which a figure is a column of a paper."""
_NARROW_LINES = 4


def new_axes(width: float, height: float) -> Axes:
    """Make axes in a new pyplot figure, in inches at the usual font size.

    With larger fonts it is larger.
    """
    size = (larger() * width, larger() * height)
    return plt.figure(figsize=size, layout="constrained").add_subplot()


def width_of_tokens(count: int) -> float:
    """Find a width in inches at which tokens along the side of axes have room."""
    return min(LARGEST, max(4.8, 2.2 + 0.32 * count))


def pitch(ax: Axes, count: int, side: str) -> tuple[float, float]:
    """Find how far apart in points `count` places along a side of axes lie, and its length."""
    box = ax.get_position()
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    inches = figure.get_size_inches()
    long = float(box.width * inches[0] if side == "x" else box.height * inches[1])
    return long * POINTS_PER_INCH / max(count, 1), long * POINTS_PER_INCH


def points_of_figure(ax: Axes) -> float:
    """Measure how wide the figure or subfigure of axes is, in points."""
    assert ax.figure is not None
    return float(ax.figure.bbox.width / ax.figure.dpi * POINTS_PER_INCH)


def label_tokens(
    ax: Axes, positions: Sequence[Any] | None, tokens: Sequence[str], side: str
) -> None:
    """Write tokens' texts along a side of axes, at 0, 1, 2 ..., as many as stay readable.

    Where not all do, they are numbered by their positions, unless they have none.
    """
    apart, _ = pitch(ax, len(tokens), side)
    named = dict(zip(range(len(tokens)) if positions is None else positions, tokens, strict=True))
    labels = fit(named, apart, rotations=[0, 45, 90] if side == "x" else [90])
    shown = [i for i, text in enumerate(labels.texts) if text]
    texts = [labels.texts[i] if positions is not None else shown_text(tokens[i]) for i in shown]
    style: dict[str, Any] = {"size": labels.size, **text_style(texts)}
    if side == "x":
        turned: dict[str, Any] = {"rotation": labels.rotation}
        if labels.rotation == 45:
            turned |= {"ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(shown, texts, **style, **turned)
    else:
        ax.set_yticks(shown, texts, **style)
    ax.tick_params(axis="x" if side == "x" else "y", length=0)


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a matrix, as many as stay readable."""
    texts = fit(dict(enumerate(names)), pitch(ax, len(names), "y")[0], rotations=[90])
    shown = [i for i, text in enumerate(texts.texts) if text]
    named = [shown_text(names[i]) for i in shown]
    ax.set_yticks(shown, named, size=texts.size, **text_style(named))
    ax.tick_params(axis="y", length=0)


def layer_colours(cmap: str | Colormap | None) -> Colormap:
    """Take the given colours of layers, or some that stand out from the style's background."""
    if cmap is not None:
        return given_map(cmap)
    some = np.linspace(0.3, 1.0, 256) if is_dark() else np.linspace(0.0, 0.88, 256)
    return ListedColormap(mpl.colormaps["viridis"](some))


def label_layers(ax: Axes, norm: Normalize, colours: Colormap) -> None:
    """Say which colours are which layers."""
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=ax, fraction=0.04, pad=0.02)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar.set_label("layer")
    bar.outline.set_visible(False)


def table_title(table: pd.DataFrame) -> str:
    """Name a table, and what it was computed from."""
    told = (str(table.attrs.get(fact, "")) for fact in ("name", "computed_from"))
    return " · ".join(filter(None, told))


def _shortened(title: str, most: int) -> str:
    """Shorten a title that would leave a narrow figure no room, but for saying "edited"."""
    if len(title) <= most:
        return title
    return f"{title[:most]}…" + " · edited" * ("edited by" in title[most - len("edited by") :])


def write_title(ax: Axes, title: str, notes: Sequence[str] = ()) -> None:
    """Write what was computed from what above axes, and under it in small what to mind."""
    size = font_size()
    long = max(0.9 * pitch(ax, 1, "x")[1], 200)  # a colour bar will take a part
    if (whole := points_of_figure(ax)) < _NARROW:  # tokens beside the axes take most of the rest
        long = 0.55 * whole
        title = _shortened(title, int(_NARROW_LINES * long / (0.5 * size)))
    lines = wrapped(shown_text(title, limit=400), long / (0.85 * size))
    small = wrapped(shown_text("; ".join(notes), limit=400), long / (0.7 * size))
    pad = 5 + size * (small.count("\n") + 1) if small else 5
    ax.set_title(lines, size=0.85 * size, loc="left", pad=pad, **text_style([lines]))
    if small:
        ax.annotate(
            small,
            (0, 1),
            (0, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            size=0.7 * size,
            alpha=0.75,
            va="bottom",
            **text_style([small]),
        )
