"""Pictures of one head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import (
    add_axes,
    edits_said,
    head_title,
    make_room,
    shown_text,
    write_texts,
)
from gattn.drawing.canvas.labels import larger
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.shown import Shown, all_edges, edges_from, largest_of, readable_edges
from gattn.drawing.one_head import marks
from gattn.drawing.one_head.arcs import draw_arcs
from gattn.drawing.one_head.look import OPTIONS, Look, Wording, check_values
from gattn.drawing.one_head.matrix import block_size, draw_matrix, most_cells
from gattn.drawing.one_head.node_link import draw_circle, draw_columns, draw_free, given_positions
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph

if TYPE_CHECKING:
    import networkx as nx

Draw: TypeAlias = Callable[[Axes, AttentionGraph, Shown, Look], None]
Layout: TypeAlias = str | Mapping[Any, Any] | Callable[["nx.DiGraph[Any]"], Mapping[Any, Any]]

_DRAW: Mapping[str, Draw] = {
    "arcs": draw_arcs,
    "columns": draw_columns,
    "circle": draw_circle,
    "matrix": draw_matrix,
}


def draw_head(
    head: AttentionGraph,
    layout: Layout = "arcs",
    *,
    ax: Axes | None = None,
    threshold: float | None = None,
    values: str = "attention",
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
    wording: Wording | None = None,
) -> Axes:
    """Draw one head: an attention pattern as arcs, columns, a circle or a heatmap.

    An edge runs the way the information runs, from key to query. Width is attention on a linear
    scale, colour on a square-root scale, from 0 to 1 in every picture (further if attention exceeds
    1, and from -1 in two colours if it is signed). Lines are thinner in longer texts; the key
    explains them. The caption says which edges are shown, how many there are, and which share of
    the attention they hold. `ax`, `cmap`, `labels` and `legend`: see `gattn.drawing`.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    layout : str, mapping or callable
        "arcs": tokens on a line, edges to the right above it and edges to the left below.
        "columns": keys on the left, queries on the right. "circle": tokens clockwise,
        with arrowheads at the queries. "matrix": a heatmap, queries as rows and keys as columns.
        Or positions, ``{node: (x, y)}``, or a function that computes them from
        ``head.to_networkx()``, such as ``networkx.circular_layout``.
    threshold : float, optional
        Show the edges of at least this attention. By default a matrix shows all edges; other
        pictures show all but tiny ones up to about 150, and beyond that raise the threshold with
        the length of the text. They show at least one edge per query; if attention is nearly
        uniform in a long text, evenly one edge in k.
    values : {"attention", "score", "contribution", "value_norm"}
        What a matrix shows: the attention, the scores before normalizing, or the lengths of what
        the edges add to the output (`contribution`) or carry (`value_norm`).
    wording : Wording, optional
        What the edges are called if they do not run from key to query.

    Raises
    ------
    SelectionError
        If there is no such layout, colour map or threshold, or the head lacks the values or the
        position of a node.
    """
    wording = wording or Wording()
    if values in OPTIONS and values != "attention" and layout != "matrix":
        raise SelectionError(
            f"Only attention is drawn as edges; {values} takes layout='matrix', values={values!r}."
        )
    check_values(head, values)
    draw = drawing(head, layout)
    scale = Scale.of(head)
    is_signed = scale.is_signed and values == "attention"
    colours = colour_map(cmap, is_signed=is_signed, is_area=layout == "matrix")
    look = Look(Pen(scale, colours, wording.weight), labels, legend, values, wording)
    if threshold is not None:
        shown = edges_from(head, threshold)
    else:
        shown = all_edges(head) if layout == "matrix" else readable_edges(head)
    is_own = ax is None
    if ax is None:
        ax = fitting_axes(
            plt.figure(figsize=fitting_size(head, layout), layout="none"), layout, legend=legend
        )
    blocks = largest_of(block_size(head, most_cells(ax))) if layout == "matrix" else ""
    draw(ax, head, shown, look)
    caption = shown.caption + blocks + _where_queries_are(head, layout) + marks.said(head)
    said = [caption, edits_said(head.edits), *(shown_text(x, limit=400) for x in wording.notes)]
    write_texts(ax, wording.title or head_title(head), "; ".join(filter(None, said)))
    if is_own and layout != "matrix":
        make_room(ax)
    return ax


def drawing(head: AttentionGraph, layout: Layout) -> Draw:
    """Find what draws a layout."""
    if callable(layout):
        layout = layout(head.to_networkx())
    if isinstance(layout, Mapping):
        return partial(draw_free, positions=given_positions(head, layout))
    if not isinstance(layout, str) or layout not in _DRAW:
        raise SelectionError(
            f"No layout {layout!r:.200}; there are {', '.join(_DRAW)}, positions "
            "{node: (x, y)}, and functions that compute these from head.to_networkx()."
        )
    return _DRAW[layout]


def _where_queries_are(head: AttentionGraph, layout: Layout) -> str:
    """Return which nodes are keys and which queries, where that is on no axis."""
    if not head.graph.is_bipartite or layout in ("columns", "matrix"):
        return ""
    if layout in ("arcs", "circle"):
        return "; keys on the left, queries on the right"
    return "; arrows run from keys to queries"


def fitting_axes(figure: Figure, layout: Layout, *, legend: bool = True) -> Axes:
    """Add Axes to a figure with room for what a layout draws around them."""
    if layout != "matrix":
        return add_axes(figure, legend=legend)
    figure.set_layout_engine("constrained")
    return figure.add_subplot()


def fitting_size(head: AttentionGraph, layout: Layout) -> tuple[float, float]:
    """Find a size in inches at which a head's tokens have room, within what a page can hold."""
    width, height = _size(head, layout)
    return larger() * width, larger() * height


def _size(head: AttentionGraph, layout: Layout) -> tuple[float, float]:
    tokens = head.graph.num_tokens + (head.graph.num_queries if head.graph.is_bipartite else 0)
    if layout == "arcs":
        width = _between(4.5, 1.5 + 0.42 * tokens, 13.0)
        return width, _between(3.2, 0.45 * width, 5.0)
    rows, keys = head.graph.num_queries, head.graph.num_keys
    if layout == "columns":
        most = max(rows, keys)
        return _between(5.0, 4.6 + 0.02 * most, 8.0), _between(3.0, 1.0 + 0.26 * most, 13.0)
    if layout == "matrix":
        return _between(4.2, 2.4 + 0.25 * keys, 10.0), _between(3.3, 2.2 + 0.25 * rows, 9.0)
    side = _between(5.0, 4.2 + 0.07 * tokens, 9.0)
    return side + 0.6, side


def _between(least: float, wanted: float, most: float) -> float:
    return max(least, min(wanted, most))
