"""What every picture has around it: a figure of fitting size, title, caption and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform

from gattn.drawing import fonts
from gattn.drawing.colours import Scale
from gattn.drawing.labels import font_size, text_style
from gattn.drawing.text import visible, wrapped
from gattn.head import AttentionGraph

POINTS_PER_INCH = 72
KEY_WIDTH = 5.2
"""The width of the key of lines, in font sizes."""


@dataclass(frozen=True)
class Look:
    """How a picture is drawn.

    Parameters
    ----------
    scale : Scale
        From attention to colour and width.
    cmap : Colormap
        The colours.
    labels, legend : bool
        Whether to draw the tokens' labels, and the key of colours.
    values : str
        Which of a head's `edge_values`.
    """

    scale: Scale
    cmap: Colormap
    labels: bool
    legend: bool
    values: str = "attention"


def add_axes(figure: Figure, *, legend: bool) -> Axes:
    """Add Axes that fill a figure, but for the title, the caption and the key of lines."""
    width, height = figure.get_size_inches() * POINTS_PER_INCH
    line = font_size()
    figure.subplots_adjust(
        left=10 / width,
        right=1 - (10 + KEY_WIDTH * line * legend) / width,
        bottom=(8 + 2 * line) / height,
        top=1 - (12 + 1.5 * line) / height,
    )
    return figure.add_subplot()


def points(ax: Axes) -> tuple[float, float]:
    """Measure the width and height of Axes in points."""
    ax.apply_aspect()
    box, dpi = ax.bbox, ax.figure.dpi
    return float(box.width / dpi * POINTS_PER_INCH), float(box.height / dpi * POINTS_PER_INCH)


def add_texts(ax: Axes, head: AttentionGraph, caption: str) -> None:
    """Write the head's place as the title, and below the picture the caption in small."""
    size = 0.75 * font_size()
    text = wrapped(caption, max(points(ax)[0], 160) / size)
    ax.annotate(
        text,
        (0.5, 0.0),
        (0, -4),
        xycoords=ax.xaxis.label if ax.axison else "axes fraction",
        textcoords="offset points",
        ha="center",
        va="top",
        size=size,
        alpha=0.75,
        linespacing=1.3,
        annotation_clip=False,
        gid="gattn-caption",
        **text_style([text]),
    )
    title = title_of(head)
    ax.set_title(title, **text_style([title]))


def title_of(head: AttentionGraph) -> str:
    """Name a head: "layer 1 · head 3"."""
    return " · ".join(head.place())


def add_line_key(ax: Axes, look: Look, beyond: float = 0.0) -> None:
    """Show beside the axes, some points beyond, which line stands for how much attention."""
    ticks = [tick for tick in look.scale.ticks if tick]
    widths = look.scale.widths(np.array(ticks))
    colours = look.cmap(look.scale.norm(ticks))
    lines = [
        Line2D([], [], color=colour, linewidth=width, solid_capstyle="butt")
        for colour, width in zip(colours, widths, strict=True)
    ]
    ax.legend(
        lines[::-1],
        [f"{tick:.3g}".replace("-", "−") for tick in ticks[::-1]],
        title="attention",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        bbox_transform=ax.transAxes + _moved_right(ax, beyond),
        borderaxespad=0.2,
        frameon=False,
        fontsize=0.75 * font_size(),
        title_fontsize=0.75 * font_size(),
        handlelength=1.6,
        alignment="left",
    )


def _moved_right(ax: Axes, distance: float) -> Transform:
    assert ax.figure is not None
    return ScaledTranslation(distance / POINTS_PER_INCH, 0, ax.figure.dpi_scale_trans)


def note_style(ax: Axes) -> dict[str, Any]:
    """Style a small note, placed in fractions of the axes."""
    return {"transform": ax.transAxes, "size": 0.75 * font_size(), "alpha": 0.75} | text_style("→←")


def shown_text(text: str, *, limit: int = 48) -> str:
    """Write a model's name or the like so that any font can show it; "" stays as it is."""
    return text and visible(text, limit=limit, has_glyph=fonts.has_glyph)


def add_colour_bar(
    mappable: ScalarMappable, ticks: list[float] | None, name: str = "attention", **place: Any
) -> None:
    """Label the colours; `place` is ``cax=`` or ``ax=`` of matplotlib's colour bar."""
    where = place.get("cax") or place["ax"]
    size = 0.75 * font_size()
    bar = where.figure.colorbar(mappable, ticks=ticks, **place)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=size, length=2)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}".replace("-", "−"))
    bar.set_label(name, size=size)
