"""Pictures of one head before and after, such as around an edit."""

from __future__ import annotations

from typing import Any

from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from gattn.analysis.compare import FARTHEST, compare_head, difference
from gattn.drawing.colours import Scale, colour_map
from gattn.drawing.frame import POINTS_PER_INCH, Look, add_colour_bar, shown_text, title_of
from gattn.drawing.heads import GridFigure
from gattn.drawing.labels import font_size, text_style
from gattn.drawing.matrix import block_size, draw_matrix, most_cells
from gattn.drawing.shown import all_edges, largest_of
from gattn.drawing.text import wrapped
from gattn.head import AttentionGraph


def draw_compare_head(
    before: AttentionGraph,
    after: AttentionGraph,
    *,
    edits: str = "",
    cmap: str | Colormap | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw one head before, after, and the change, after - before, as three matrices.

    Rows are queries and columns keys, a sink on the right. Before and after share one scale; the
    change has another, a square-root one from -1 to 1 around 0 (further where attention exceeds 1).

    Parameters
    ----------
    before, after : AttentionGraph
        Two graphs with the same tokens.
    edits : str
        What was edited between the two, for the caption.
    cmap : str or Colormap, optional
        The colours of the change, their middle standing for 0.
    figure : Figure, optional
        Where to draw; by default a new figure that pyplot does not know, as in `draw_heads`.

    Returns
    -------
    Figure
        The figure; never shown, saved or closed here.

    Raises
    ------
    SelectionError
        Where the tokens differ.
    ShapeError
        Where attention is negative.
    """
    change = difference(before, after)
    figure = figure or GridFigure(figsize=_size(change))
    figure.set_layout_engine("constrained", wspace=0.06)
    plain = Look(
        Scale.of(before, after), colour_map(None, is_signed=False, is_area=True), True, False
    )
    signed = Look(change_scale(before, after), change_colours(cmap), True, False)
    panels = (
        ("before", before, plain),
        ("after", after, plain),
        ("after − before", change, signed),
    )
    axes = figure.subplots(1, 3)
    for ax, (name, head, look) in zip(axes, panels, strict=True):
        draw_matrix(ax, head, all_edges(head), look)
        ax.set_title(name, size=font_size())
        if head is not before:
            ax.set(yticks=[], ylabel="")
    for ax, look, name in ((axes[1], plain, "attention"), (axes[2], signed, "change of attention")):
        place = ax.inset_axes((1.05, 0.15, 0.04, 0.7))
        add_colour_bar(ax.images[0], look.scale.ticks, name, cax=place)
    caption = _caption(before, after, edits)
    caption += largest_of(block_size(change, most_cells(axes[0])))
    _write(figure, title_of(before), caption)
    return figure


def change_scale(*heads: AttentionGraph) -> Scale:
    """Find the scale of changes: as far to both sides as the attention goes."""
    scale = Scale.of(*heads)
    return Scale(scale.top, True, scale.pen)


def change_colours(cmap: str | Colormap | None) -> Colormap:
    """Take the given colour map, or the one of signed attention."""
    return colour_map(cmap, is_signed=True, is_area=True)


def distance_text(distance: float) -> str:
    """Write a Jensen-Shannon distance: "0" where there is none at all."""
    if 0 < distance < 5e-4:
        return "< 0.001"
    return f"{distance:.3f}" if distance else "0"


def _size(head: AttentionGraph) -> tuple[float, float]:
    """Find a size in inches at which the tokens have room."""
    larger = max(1.0, font_size() / 10)
    rows, columns = head.graph.num_queries, head.graph.num_keys + 2 * (head.sink is not None)
    wide, tall = (min(max(0.26 * count, 1.9), 4.2) for count in (columns, rows))
    return larger * (3 * wide + 4.2), larger * (tall + 1.9)


def _caption(before: AttentionGraph, after: AttentionGraph, edits: str) -> str:
    distance = distance_text(compare_head(before, after)["distance"])
    said = [
        shown_text(edits, limit=200),
        f"before: {all_edges(before).caption}",
        f"after: {all_edges(after).caption}",
        f"Jensen-Shannon distance {distance}, mean over queries, at most {FARTHEST:.3f}",
    ]
    return "; ".join(filter(None, said))


def _write(figure: Figure, title: str, caption: str) -> None:
    size = 0.75 * font_size()
    caption = wrapped(caption, 0.85 * figure.get_figwidth() * POINTS_PER_INCH / size)
    style: dict[str, Any] = text_style([caption])
    figure.suptitle(title, **text_style([title]))
    figure.supxlabel(caption, size=size, alpha=0.75, linespacing=1.3, **style)
