"""What every picture has around it: a figure of fitting size, title, caption and key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation, Transform

from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.colours import Scale
from gattn.drawing.canvas.labels import font_size, in_digits, text_style
from gattn.edit_records import Edits, between, in_words
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.names.text import visible, wrapped

POINTS_PER_INCH = 72
KEY_WIDTH = 5.2
"""The width of the key of lines, in font sizes."""


DASHES = (0, (2.5, 1.2))
"""The dashes of negative attention, which colours alone do not tell in grey."""
OPTIONS = {
    "attention": "",
    "score": "scores=True",
    "contribution": "contributions=True",
    "value_norm": "contributions='value'",
}
"""What areas can show, and what asks for it as a graph is computed."""


@dataclass(frozen=True)
class Names:
    """What a picture of edges calls them.

    Parameters
    ----------
    rightward, leftward : str
        What lies on the left and what on the right of an edge, and the way it runs.
    weight : str
        What its width and colour mean.
    """

    rightward: str = "key → query"
    leftward: str = "query ← key"
    weight: str = "attention"


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
    names : Names
        What edges are called.
    """

    scale: Scale
    cmap: Colormap
    labels: bool
    legend: bool
    values: str = "attention"
    names: Names = Names()


def check_values(head: AttentionGraph, values: str) -> None:
    """Refuse values that there are none of, or that a head lacks."""
    if values not in OPTIONS:
        known = ", ".join(map(repr, OPTIONS))
        raise SelectionError(f"values is one of {known}, not {values!r}.")
    if values not in head.edge_values:
        raise SelectionError(
            f"This head has no {values}; compute its graph with {OPTIONS[values]}."
        )


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


def make_room(ax: Axes) -> None:
    """Make a figure that `add_axes` filled higher, where its caption has more than two lines."""
    figure = ax.figure
    caption = next(text for text in ax.texts if text.get_gid() == "gattn-caption")
    more = (caption.get_text().count("\n") - 1) * 1.3 * 0.75 * font_size()
    if not isinstance(figure, Figure) or more <= 0:
        return
    width, height = figure.get_size_inches() * POINTS_PER_INCH
    margins, whole = figure.subplotpars, height + more
    figure.set_size_inches(width / POINTS_PER_INCH, whole / POINTS_PER_INCH)
    figure.subplots_adjust(
        bottom=(margins.bottom * height + more) / whole,
        top=1 - (1 - margins.top) * height / whole,
    )


def clear(ax: Axes) -> None:
    """Take away the axes' frame, and ticks that would only be measured."""
    ax.set(xticks=[], yticks=[])
    ax.set_axis_off()


def points(ax: Axes) -> tuple[float, float]:
    """Measure the width and height of Axes in points."""
    ax.apply_aspect()
    box, dpi = ax.bbox, ax.figure.dpi
    return float(box.width / dpi * POINTS_PER_INCH), float(box.height / dpi * POINTS_PER_INCH)


def add_texts(ax: Axes, title: str, caption: str) -> None:
    """Write the title, and below the picture the caption in small."""
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
    ax.set_title(title, **text_style([title]))


def head_title(head: AttentionGraph) -> str:
    """Name a head: "layer 1 · head 3", and say whether the model was edited."""
    return " · ".join([*head.place(), *(["edited"] if head.edits else [])])


def edits_said(edits: Iterable[object]) -> str:
    """Say for a caption which edits a model ran with; "" where it ran without."""
    return shown_text(in_words(edits), limit=200)


def edits_between(before: Edits, after: Edits, said: str = "") -> str:
    """Say which edits two runs had; `said` are a caller's words for what lies between them."""
    if said and not before:
        return said
    return "; ".join(filter(None, [said, between(before, after)]))


def add_line_key(ax: Axes, look: Look, beyond: float = 0.0) -> None:
    """Show beside the axes, some points beyond, which line stands for how much attention."""
    ticks = [tick for tick in look.scale.ticks if tick][::-1]
    widths = look.scale.widths(np.array(ticks))
    colours = look.cmap(look.scale.norm(ticks))
    styles: list[Any] = [DASHES if tick < 0 else "solid" for tick in ticks]
    caps: dict[str, Any] = {"solid_capstyle": "butt", "dash_capstyle": "butt"}
    lines = [
        Line2D([], [], color=colour, linewidth=width, linestyle=style, **caps)
        for colour, width, style in zip(colours, widths, styles, strict=True)
    ]
    _add_key(ax, lines, ticks, look.names.weight, beyond)


def add_area_key(ax: Axes, look: Look, norm: Normalize) -> None:
    """Show beside the axes which colour stands for how much."""
    ticks = look.scale.ticks[::-1]
    if look.values != "attention":
        ticks = np.linspace(norm.vmax or 0.0, norm.vmin or 0.0, 4).tolist()
    patches = [Patch(facecolor=to_hex(colour)) for colour in np.asarray(look.cmap(norm(ticks)))]
    _add_key(ax, patches, ticks, look.values.replace("_", " "), 0.0)


def _add_key(
    ax: Axes, handles: Sequence[Artist], ticks: Sequence[float], name: str, beyond: float
) -> None:
    key = ax.legend(
        handles,
        [in_digits(tick) for tick in ticks],
        title=name,
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
    for text in (key.get_title(), *key.get_texts()):
        text.set_usetex(False)


def _moved_right(ax: Axes, distance: float) -> Transform:
    assert ax.figure is not None
    return ScaledTranslation(distance / POINTS_PER_INCH, 0, ax.figure.dpi_scale_trans)


def width_left(ax: Axes, width: float, *, legend: bool) -> float:
    """Guess what a layout engine will leave of the axes' width, in points, beside the key."""
    figure, place = ax.figure, ax.get_subplotspec()
    if figure is None or place is None or figure.get_layout_engine() is None:
        return width
    share = figure.bbox.width / figure.dpi * POINTS_PER_INCH * len(place.colspan)
    left = share / place.get_gridspec().ncols - KEY_WIDTH * font_size() * legend - 6
    return float(max(min(width, left), 0.3 * width))


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
    bar.ax.yaxis.set_major_formatter(lambda value, _: in_digits(value))
    bar.set_label(name, size=size, usetex=False)
    for label in bar.ax.get_yticklabels():
        label.set_usetex(False)
