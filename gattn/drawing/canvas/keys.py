"""What explains a picture's colours and widths: a colour bar, or a key beside the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, to_hex
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from gattn.drawing.canvas.frame import POINTS_PER_INCH, points
from gattn.drawing.canvas.labels import in_digits, small_size, text_style
from gattn.drawing.canvas.pen import DASHES, Pen
from gattn.names.text import wrapped

_EVEN, _ALIKE = 0.5, 0.01
Entry: TypeAlias = tuple[Any, str]
"""What a key shows, an artist or matplotlib's container of several, and how it names it."""


def begin_of(least: float, most: float) -> float:
    """Return where colours of numbers of one sign begin: at 0, or at the least of an even map.

    A map is even if all numbers are above half of the largest, though not equal within 1 %.
    """
    return least if most * _EVEN < least < most * (1 - _ALIKE) else 0.0


def range_said(begin: float, end: float) -> str:
    """Say what colours run from, if that is not 0."""
    ends = f"{in_digits(begin)} to {in_digits(end)}"
    return f"colours run from {ends}, not from 0" if begin else ""


def add_colour_bar(
    mappable: ScalarMappable, name: str, ax: Axes, *, ticks: Any = None, inside: bool = False
) -> None:
    """Explain colours by a bar beside `ax`, or all over it where `ax` is `inside` the picture."""
    assert ax.figure is not None
    place: dict[str, Any] = {"cax": ax} if inside else {"ax": ax, "shrink": 0.7}
    size, long = small_size(), points(ax)[1] * (1.0 if inside else 0.7)
    if not inside:
        place |= {"aspect": 22, "pad": 0.03}
    bar = ax.figure.colorbar(mappable, ticks=ticks, **place)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=size, length=2)
    bar.ax.yaxis.set_major_formatter(lambda value, _: in_digits(value))
    text = wrapped(name.replace("_", " "), max(long, 60) / size)
    bar.set_label(text, size=size, **text_style([text]))
    for label in bar.ax.get_yticklabels():
        label.set_usetex(False)


def label_layers(ax: Axes, norm: Normalize, colours: Colormap) -> None:
    """Explain which colours are which layers."""
    ticks = MaxNLocator(integer=True)
    add_colour_bar(ScalarMappable(norm, colours), "layer", ax, ticks=ticks)


def add_key(
    ax: Axes, entries: Sequence[Entry], title: str = "", *, beyond: float = 0.0, **place: Any
) -> Legend:
    """Explain lines or areas, right of the axes and `beyond` by that many points, or at `place`."""
    assert ax.figure is not None
    moved = ScaledTranslation(beyond / POINTS_PER_INCH, 0, ax.figure.dpi_scale_trans)
    size = small_size()
    plain: dict[str, Any] = {"fontsize": size, "title_fontsize": size}
    plain |= {"frameon": False, "alignment": "left"}
    right: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (1.0, 1.0),
        "bbox_transform": ax.transAxes + moved,
        "borderaxespad": 0.2,
        "handlelength": 1.6,
    }
    key = ax.legend(
        [artist for artist, _ in entries],
        list(map(str, range(len(entries)))),  # names that begin with "_" would be left out
        title=title,
        **plain | (place or right),
    )
    names = [title, *(name for _, name in entries)]
    for text, name in zip([key.get_title(), *key.get_texts()], names, strict=True):
        text.set(text=name, **text_style([name]))
    return key


def add_line_key(ax: Axes, pen: Pen, *more: Entry, beyond: float = 0.0) -> None:
    """Explain which line stands for which number, and what `more` lines mean."""
    ticks = [tick for tick in pen.scale.ticks if tick][::-1]
    caps: dict[str, Any] = {"solid_capstyle": "butt", "dash_capstyle": "butt"}
    lines: list[Entry] = []
    for tick, colour in zip(ticks, pen.colours(ticks), strict=True):
        width = float(pen.scale.widths(np.array(tick)))
        style: Any = DASHES if tick < 0 else "solid"
        line = Line2D([], [], color=colour, linewidth=width, linestyle=style, **caps)
        lines.append((line, in_digits(tick)))
    add_key(ax, [*lines, *more], pen.name, beyond=beyond)


def add_area_key(
    ax: Axes, cmap: Colormap, norm: Normalize, ticks: Sequence[float], name: str
) -> None:
    """Explain which colour stands for which number."""
    colours = np.asarray(cmap(norm(ticks)))
    patches = [Patch(facecolor=to_hex(colour)) for colour in colours]
    names = [in_digits(tick) for tick in ticks]
    add_key(ax, list(zip(patches, names, strict=True)), name.replace("_", " "))
