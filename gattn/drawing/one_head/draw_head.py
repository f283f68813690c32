"""Pictures of one head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from gattn.drawing.canvas.colours import Scale, colour_map, end_of
from gattn.drawing.canvas.frame import (
    add_axes,
    check_one_place,
    edits_said,
    head_title,
    make_room,
    marked_edited,
    shown_text,
    write_texts,
)
from gattn.drawing.canvas.labels import larger
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.given import checks_given, refuse_unused
from gattn.drawing.chosen.hidden import hidden_said, without_hidden
from gattn.drawing.chosen.queries import Tokens, names_said, sides
from gattn.drawing.chosen.shown import (
    Shown,
    all_edges,
    check_reached,
    edges_between,
    edges_from,
    readable_edges,
)
from gattn.drawing.matrices.cells import Pool, check_pool
from gattn.drawing.one_head import marks
from gattn.drawing.one_head.arcs import draw_arcs
from gattn.drawing.one_head.free import draw_free, given_positions
from gattn.drawing.one_head.look import STORED_BY, Look, Options, Wording, check_values, lacking
from gattn.drawing.one_head.matrix import beyond_end, draw_matrix
from gattn.drawing.one_head.node_link import draw_circle, draw_columns
from gattn.drawing.styles.figures import new_figure, within_page
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import noun_of
from gattn.names.text import writable

if TYPE_CHECKING:
    import networkx as nx

_AROUND_ARCS, _LOW = 1.4, 0.3
"""Inches of texts around arcs, and the share of a height to which short arcs lower it at most."""

Draw: TypeAlias = Callable[[Axes, AttentionGraph, Shown, Look], None]
Layout: TypeAlias = str | Mapping[Any, Any] | Callable[["nx.DiGraph[Any]"], Mapping[Any, Any]]

_DRAW: Mapping[str, Draw] = {
    "arcs": draw_arcs,
    "columns": draw_columns,
    "circle": draw_circle,
    "matrix": draw_matrix,
}


@checks_given
def draw_head(
    head: AttentionGraph,
    layout: Layout = "arcs",
    *,
    query: Any = None,
    key: Any = None,
    hide: Any = None,
    self_loops: bool = True,
    threshold: float | None = None,
    values: str = "attention",
    vmax: float | None = None,
    pool: Pool = "mean",
    linewidth: float | None = None,
    title: str | None = None,
    caption: str | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw one head; `AttentionGraph.draw` explains the parameters.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    layout, query, key, hide, self_loops, threshold, values, vmax, pool, linewidth
        As in `AttentionGraph.draw`.
    title, caption, figsize, ax, cmap, labels, legend
        As in `AttentionGraph.draw`.
    """
    options = Options(
        query, key, hide, self_loops, threshold, values, vmax, pool,
        linewidth, title, caption, figsize, ax, cmap, labels, legend,
    )  # fmt: skip
    return draw_with(head, layout, options)


def draw_with(
    head: AttentionGraph, layout: Layout, options: Options, wording: Wording | None = None
) -> Axes:
    """Draw one head; `wording` says what edges are called if they do not run from key to query."""
    wording, values = wording or Wording(), options.values
    if values in STORED_BY and values != "attention" and layout != "matrix":
        raise SelectionError(
            f"Only attention is drawn as edges; {values} takes layout='matrix', values={values!r}."
            f"{lacking(head, values)}"
        )
    check_values(head, values)
    check_pool(options.pool)
    is_matrix = isinstance(layout, str) and layout == "matrix"
    pooled = "a pixel of layout='matrix' may hold several cells, of which it says what is shown"
    refuse_unused("pool", pooled, is_given=options.pool != "mean" and not is_matrix)
    lines = "it is the width of lines, as in layout='arcs', and a matrix has none"
    refuse_unused("linewidth", lines, is_given=options.linewidth is not None and is_matrix)
    check_reached(options.threshold, [head])
    whole, head = head, without_hidden(head, options.hide, self_loops=options.self_loops)
    draw = drawing(head, layout)
    scale = Scale.of(head, vmax=options.vmax, linewidth=options.linewidth)
    is_attention = values == "attention"
    is_signed = scale.is_signed and is_attention
    colours = colour_map(options.cmap, is_signed=is_signed, is_area=is_matrix)
    pen = Pen(scale, colours, wording.weight)
    look = Look(
        pen, options.labels, options.legend, values, end_of(options.vmax), options.pool, wording
    )
    shown = chosen_edges(head, whole, options, is_matrix=is_matrix)
    beyond = scale.beyond([head]) if is_attention else beyond_end(head, shown, look)
    ax = axes_for(head, layout, options)
    draw(ax, head, shown, look)
    said = [
        shown.caption + where_queries_are(head, layout) + marks.said(head),
        names_said(head) if options.labels else "",
        hidden_said(options.hide, noun_of(head.geometry, head.stack)),
        beyond,
        edits_said(head.edits),
        *(shown_text(note, limit=400) for note in wording.notes),
    ]
    title = marked_edited(wording.title, head.edits) if wording.title else head_title(head)
    write_around(ax, title, said, layout, options)
    return ax


def chosen_edges(
    head: AttentionGraph, whole: AttentionGraph, options: Options, *, is_matrix: bool
) -> Shown:
    """Choose the edges: of the queries and keys asked about, above a threshold, or readable.

    The `whole` head has the hidden tokens, too.
    """
    (queries, keys), every = sides(head), sides(whole)
    rows = _asked(options.query, queries, every[0], options.hide)
    columns = _asked(options.key, keys, every[1], options.hide)
    if rows is None and columns is None:
        if options.threshold is not None:
            return edges_from(head, options.threshold)
        return all_edges(head) if is_matrix else readable_edges(head)
    reader = queries.called(rows) if rows else ""
    verb = "reads" if not rows or len(rows) == 1 else "read"
    if columns is None:
        asked = f"what {reader} {verb}"
    elif rows is None:
        asked = f"what reads {keys.called(columns)}"
    else:
        asked = f"what {reader} {verb} of {keys.called(columns)}"
    return edges_between(head, rows, columns, options.threshold, asked)


def _asked(wanted: Any, shown: Tokens, every: Tokens, hide: Any) -> list[int] | None:
    """Find the tokens asked about among those shown; refuse hidden ones as such."""
    if wanted is None:
        return None
    try:
        return sorted(set(shown.find(wanted)))
    except SelectionError:
        found: list[int] = []
        with suppress(SelectionError):
            found = every.find(wanted)
        if hidden := [one for one in found if every.positions[one] not in shown.positions]:
            raise SelectionError(
                f"{every.called(hidden[:1])} is not in the picture: hide={hide!r:.80} leaves it "
                "out."
            ) from None
        raise


def axes_for(head: AttentionGraph, layout: Layout, options: Options) -> Axes:
    """Return the user's axes, or make some of fitting size."""
    check_one_place(options.ax, options.figsize)
    if options.ax is not None:
        return options.ax
    figure = new_figure(options.figsize or fitting_size(head, layout))
    return fitting_axes(figure, layout, legend=options.legend)


def write_around(
    ax: Axes, title: str, said: Iterable[str], layout: Layout, options: Options
) -> None:
    """Write title and caption, the user's own if given, and make room in a figure of our own."""
    caption = "; ".join(filter(None, said)) if options.caption is None else options.caption
    title = title if options.title is None else options.title
    is_whole = options.caption is not None
    write_texts(ax, writable(title), writable(caption), is_whole=is_whole)
    if options.ax is None and options.figsize is None and layout != "matrix":
        make_room(ax)


def drawing(head: AttentionGraph, layout: Layout) -> Draw:
    """Find what draws a layout."""
    if callable(layout):
        layout = layout(head.to_networkx())
    if isinstance(layout, Mapping):
        return partial(draw_free, positions=given_positions(head, layout))
    if not isinstance(layout, str) or layout not in _DRAW:
        if hasattr(layout, "shape"):
            raise SelectionError(
                f"A layout is no {type(layout).__name__}: for an array of places, such as "
                "data.pos, there is head.with_layout(places).draw_graph()."
            )
        raise SelectionError(
            f"No layout {layout!r:.200}; there are {', '.join(_DRAW)}, positions "
            "{node: (x, y)}, and functions that compute these from head.to_networkx()."
        )
    return _DRAW[layout]


def where_queries_are(head: AttentionGraph, layout: Layout) -> str:
    """Return which nodes are keys and which queries, where that is on no axis."""
    if head.graph.is_bipartite and layout in ("arcs", "circle"):
        return "; keys on the left, queries on the right"
    return ""


def fitting_axes(figure: Figure, layout: Layout, *, legend: bool = True) -> Axes:
    """Add Axes to a figure with room for what a layout draws around them."""
    if layout != "matrix":
        return add_axes(figure, legend=legend)
    figure.set_layout_engine("constrained")
    return figure.add_subplot()


def fitting_size(head: AttentionGraph, layout: Layout) -> tuple[float, float]:
    """Find a size in inches at which a head's tokens have room, within what a page can hold."""
    width, height = _size(head, layout)
    return within_page(larger() * width, larger() * height)


def _size(head: AttentionGraph, layout: Layout) -> tuple[float, float]:
    tokens = head.graph.num_tokens + (head.graph.num_queries if head.graph.is_bipartite else 0)
    if layout == "arcs":
        width = _between(4.5, 1.5 + 0.42 * tokens, 13.0)
        height = _between(3.2, 0.45 * width, 5.0)
        return width, _AROUND_ARCS + (height - _AROUND_ARCS) * max(_share_of_longest(head), _LOW)
    rows, keys = head.graph.num_queries, head.graph.num_keys
    if layout == "columns":
        most = max(rows, keys)
        return _between(5.0, 4.6 + 0.02 * most, 8.0), _between(3.0, 1.0 + 0.26 * most, 13.0)
    if layout == "matrix":
        return _between(4.2, 2.4 + 0.25 * keys, 10.0), _between(3.3, 2.2 + 0.25 * rows, 9.0)
    side = _between(5.0, 4.2 + 0.07 * tokens, 9.0)
    return side + 0.6, side


def _share_of_longest(head: AttentionGraph) -> float:
    """Return how long the longest edge is, as a share of the longest that there could be."""
    if head.graph.is_bipartite or not len(head.key):
        return 1.0
    spans = np.abs(head.query + head.graph.query_offset - head.key)
    return float(spans.max()) / max(head.graph.num_tokens - 1, 1)


def _between(least: float, wanted: float, most: float) -> float:
    return max(least, min(wanted, most))
