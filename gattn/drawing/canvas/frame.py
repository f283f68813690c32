"""What every picture has around it: a figure of fitting size, title, caption and key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.captions import TitleAndCaption
from gattn.drawing.canvas.fitting import Fitting, fitted, points
from gattn.drawing.canvas.labels import (
    font_size,
    larger,
    small_size,
    text_style,
    width_of,
    with_powers,
)
from gattn.drawing.canvas.least import lacks_room
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.drawing.styles.figures import new_figure, within_page
from gattn.edit_records import Edits, between, in_words
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.names.text import placed, visible, wrapped

KEY_WIDTH = 5.2
"""The width of the key of lines, in font sizes."""


LARGEST = 12.0
"""The longest side of a figure in inches, at the usual font size."""


def new_axes(width: float, height: float) -> Axes:
    """Make axes in a new pyplot figure, in inches at the usual font size.

    With larger fonts it is larger, but no larger than a page.
    """
    size = within_page(larger() * width, larger() * height)
    return new_figure(size, "constrained").add_subplot()


def given_axes(ax: Axes | None, figsize: tuple[float, float] | None) -> Axes | None:
    """Return the axes that a user gave, or those of a new figure of a given size, if either was.

    Raises
    ------
    SelectionError
        If both were given, or the size is not one.
    """
    check_one_place(ax, figsize)
    return ax if figsize is None else new_figure(figsize, "constrained").add_subplot()


def check_one_place(ax: Axes | None, figsize: object) -> None:
    """Refuse both axes and the size of a new figure."""
    if ax is not None and figsize is not None:
        raise SelectionError(
            "Give ax= or figsize=, not both: axes have the size that their figure gives them."
        )


def width_of_tokens(count: int) -> float:
    """Find a width in inches at which tokens along the side of axes have room."""
    return min(LARGEST, max(4.8, 2.2 + 0.32 * count))


def add_axes(figure: Figure, *, legend: bool) -> Axes:
    """Add Axes that fill a figure, but for the title, the caption and the key of lines."""
    width, height = figure.get_size_inches() * POINTS_PER_INCH
    line = font_size()
    sides = 10, 10 + KEY_WIDTH * line * legend
    ends = 8 + 2 * line, 12 + 1.5 * line
    if width <= sum(sides) or height <= sum(ends):
        raise lacks_room(figure)
    figure.subplots_adjust(
        left=sides[0] / width,
        right=1 - sides[1] / width,
        bottom=ends[0] / height,
        top=1 - ends[1] / height,
    )
    return figure.add_subplot()


def make_room(ax: Axes) -> None:
    """Make a figure of `add_axes` higher by what its texts took from the axes."""
    figure, fitting = ax.figure, Fitting.of(ax)
    if not isinstance(figure, Figure):
        return
    width, height = figure.get_size_inches()
    low = (fitting.box.y0 - fitting.slot.y0) * height
    high = (fitting.slot.y1 - fitting.box.y1) * height
    if low + high < 1e-6:
        return
    margins, whole = figure.subplotpars, height + low + high
    figure.set_size_inches(width, whole)
    figure.subplots_adjust(
        bottom=(margins.bottom * height + low) / whole,
        top=1 - ((1 - margins.top) * height + high) / whole,
    )
    fitting.renew()


def clear(ax: Axes) -> None:
    """Take away the axes' frame, and ticks that would only be measured."""
    ax.set(xticks=[], yticks=[])
    ax.set_axis_off()


def write_texts(ax: Axes, title: str, caption: str, *, is_whole: bool = False) -> None:
    """Write the title above, and in small the caption below all that stands around the axes.

    The caption also has the notes of steps, unless it is whole. Both are broken into lines that are
    no longer than the picture is wide, and stand in the middle of the axes if they have room there.
    """
    for text in [text for text in ax.texts if text.get_gid() == "gattn-caption"]:
        text.remove()
    caption = caption if is_whole else with_powers(caption)
    heading = ax.set_title(title, **text_style([title]))
    below = ax.annotate(
        caption,
        (0.5, 0.0),
        (0, -4),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="top",
        size=small_size(),
        alpha=0.75,
        linespacing=1.3,
        annotation_clip=False,
        gid="gattn-caption",
        **text_style([caption]),
    )
    fitting = Fitting.of(ax)
    fitting.write(TitleAndCaption(fitting, ax, heading, below, title, caption, is_whole).place)


def name_side(ax: Axes, side: str, text: str) -> None:
    """Name the side "x" or "y" of axes, in lines no longer than it."""
    label = (ax.xaxis if side == "x" else ax.yaxis).label
    label.set(text=text, **text_style([text]))
    written = [text]

    def step() -> None:
        if label.get_text() == written[0]:
            room = max(points(ax)[side == "y"], 60) / float(label.get_fontsize())
            written[0] = wrapped(text, room, width_of)
            label.set_text(written[0])

    fitted(ax, step)


def describe(
    ax: Axes,
    facts: Mapping[Any, Any],
    title: str = "",
    notes: Iterable[str] = (),
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
    """
    own = facts.get("notes", ())
    own = own.splitlines() if isinstance(own, str) else own
    told = [str(facts.get("computed_from", "")), *notes, *own]
    caption = "; ".join(shown_text(text, limit=400) for text in told if text)
    name = shown_text(title or str(facts.get("name", "")), limit=120)
    write_texts(ax, marked_edited(name, facts.get("edits")), caption)


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


def note_style(ax: Axes) -> dict[str, Any]:
    """Style a small note, placed in fractions of the axes."""
    style: dict[str, Any] = {"transform": ax.transAxes, "size": small_size(), "alpha": 0.75}
    return style | {"gid": "gattn-note"} | text_style("→←")


def token_said(position: int, tokens: Sequence[str], at: int) -> str:
    """Name one of some tokens in a title or a caption: "5 “lamp”"."""
    return placed(position, tokens, at, has_glyph=fonts.has_glyph)


def shown_text(text: str, *, limit: int = 48) -> str:
    """Write any text, such as a model's name, so that every font can show it; "" stays empty."""
    return text and visible(text, limit=limit, has_glyph=fonts.has_glyph)
