"""What every picture has around it: a figure of fitting size, title, caption and key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation, Transform

from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.labels import font_size, larger, small_size, text_style
from gattn.edit_records import Edits, between, in_words
from gattn.heads.head import AttentionGraph
from gattn.names.text import visible, wrapped

POINTS_PER_INCH = 72
KEY_WIDTH = 5.2
"""The width of the key of lines, in font sizes."""


LARGEST = 12.0
"""The longest side of a figure in inches, at the usual font size."""
_TITLE = 1.2
"""About how large a title is, in font sizes."""


def new_axes(width: float, height: float) -> Axes:
    """Make axes in a new pyplot figure, in inches at the usual font size.

    With larger fonts it is larger.
    """
    size = (larger() * width, larger() * height)
    return plt.figure(figsize=size, layout="constrained").add_subplot()


def width_of_tokens(count: int) -> float:
    """Find a width in inches at which tokens along the side of axes have room."""
    return min(LARGEST, max(4.8, 2.2 + 0.32 * count))


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
    """Make a figure of `add_axes` higher if its caption has more than two lines."""
    figure = ax.figure
    caption = next((text for text in ax.texts if text.get_gid() == "gattn-caption"), None)
    if caption is None:
        return
    more = (caption.get_text().count("\n") - 1) * 1.3 * small_size()
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


def pitch(ax: Axes, count: int, side: str) -> float:
    """Find how far apart `count` places along a side of axes lie, in points."""
    return points(ax)[side == "y"] / max(count, 1)


def remove(ax: Axes, gid: str) -> None:
    """Remove the texts of a kind."""
    for text in [text for text in ax.texts if text.get_gid() == gid]:
        text.remove()


def settle(ax: Axes) -> None:
    """Let the figure's layout engine, if it has one, give the axes their room among all texts."""
    assert ax.figure is not None
    engine = ax.figure.get_layout_engine()
    if engine is not None:
        engine.execute(ax.figure.figure)


def lifted(ax: Axes, rise: float, right: float = 0.0) -> Transform:
    """Move data coordinates up, and to the right, by some points."""
    assert ax.figure is not None
    moved = right / POINTS_PER_INCH, rise / POINTS_PER_INCH
    return ax.transData + ScaledTranslation(*moved, ax.figure.dpi_scale_trans)


def write_texts(ax: Axes, title: str, caption: str, below: Artist | None = None) -> None:
    """Write the title above, and in small the caption below the axes or `below` what is there."""
    wide, size = max(points(ax)[0], 160), small_size()
    title = wrapped(title, wide / (_TITLE * font_size()))
    ax.set_title(title, **text_style([title]))
    if not caption:
        return
    text = wrapped(caption, wide / size)
    ax.annotate(
        text,
        (0.5, 0.0),
        (0, -4),
        xycoords=("axes fraction", below or (ax.xaxis.label if ax.axison else "axes fraction")),
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


def name_side(ax: Axes, side: str, text: str) -> None:
    """Name the side "x" or "y" of axes, in lines that are no longer than it."""
    lines = wrapped(text, max(points(ax)[side == "y"], 100) / font_size())
    axis = ax.xaxis if side == "x" else ax.yaxis
    axis.set_label_text(lines, **text_style([lines]))


def describe(
    ax: Axes,
    facts: Mapping[Any, Any],
    title: str = "",
    notes: Iterable[str] = (),
    *,
    below: Artist | None = None,
) -> None:
    """Write a result's title, and below it what it was computed from and what to mind.

    Parameters
    ----------
    ax : Axes
        The axes.
    facts : mapping
        What a result says of itself: its name, `computed_from`, `edits` and notes.
    title : str
        The title; by default the result's name.
    notes : iterable of str
        What this picture shows, hides or marks; the result's own notes follow.
    below : Artist, optional
        What the caption must stand below, where that is not the axes.
    """
    own = facts.get("notes", ())
    own = own.splitlines() if isinstance(own, str) else own
    told = [str(facts.get("computed_from", "")), *notes, *own]
    caption = "; ".join(shown_text(text, limit=400) for text in told if text)
    name = shown_text(title or str(facts.get("name", "")), limit=120)
    write_texts(ax, marked_edited(name, facts.get("edits")), caption, below)


def marked_edited(title: str, edits: object) -> str:
    """Add "edited" to a title if the model was."""
    return " · ".join(filter(None, [title, "edited" if edits else ""]))


def head_title(head: AttentionGraph) -> str:
    """Name a head: "layer 1 · head 3", and say whether the model was edited."""
    return marked_edited(" · ".join(head.place()), head.edits)


def heads_title(heads: Sequence[AttentionGraph]) -> str:
    """Name a head, or several whose mean is shown: "layer 1 · mean of heads 0, 2"."""
    if len(heads) == 1:
        return " · ".join(heads[0].place())
    layers = {head.layer for head in heads}
    if len(layers) > 1 or None in layers:
        return f"mean of {len(heads)} heads"
    numbers = [str(head.head) for head in heads]
    which = f"heads {', '.join(numbers)}" if len(numbers) <= 8 else f"{len(numbers)} heads"
    return f"layer {layers.pop()} · mean of {which}"


def edits_said(edits: Iterable[object]) -> str:
    """Say for a caption which edits a model ran with; "" if it had none."""
    return shown_text(in_words(edits), limit=200)


def edits_between(before: Edits, after: Edits, said: str = "") -> str:
    """Return which edits two runs had; `said` are a caller's words for what lies between them."""
    if said and not before:
        return said
    return "; ".join(filter(None, [said, between(before, after)]))


def width_left(ax: Axes, width: float, *, legend: bool) -> float:
    """Estimate the width in points that a layout engine will leave the axes beside the key."""
    figure, place = ax.figure, ax.get_subplotspec()
    if figure is None or place is None or figure.get_layout_engine() is None:
        return width
    share = figure.bbox.width / figure.dpi * POINTS_PER_INCH * len(place.colspan)
    left = share / place.get_gridspec().ncols - KEY_WIDTH * font_size() * legend - 6
    return float(max(min(width, left), 0.3 * width))


def note_style(ax: Axes) -> dict[str, Any]:
    """Style a small note, placed in fractions of the axes."""
    return {"transform": ax.transAxes, "size": small_size(), "alpha": 0.75} | text_style("→←")


def shown_text(text: str, *, limit: int = 48) -> str:
    """Write any text, such as a model's name, so that every font can show it; "" stays empty."""
    return text and visible(text, limit=limit, has_glyph=fonts.has_glyph)
