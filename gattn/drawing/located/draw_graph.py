"""Attention on the layout that a graph brings with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap
from numpy.typing import NDArray

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.fitting import fitted
from gattn.drawing.canvas.frame import (
    edits_said,
    heads_title,
    make_room,
    marked_edited,
    write_texts,
)
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.layouts import Positions
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.chosen.mean import mean_of
from gattn.drawing.chosen.queries import check_same_tokens, sides
from gattn.drawing.chosen.shown import (
    Shown,
    check_reached,
    edges_between,
    edges_from,
    readable_edges,
)
from gattn.drawing.located.on_layout import axes_with
from gattn.drawing.one_head import marks
from gattn.drawing.one_head.free import FreeGraph, free_labels, told_apart
from gattn.drawing.one_head.placed_edges import PlacedEdges
from gattn.edit_records import union
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Geometry, Layout
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK


@checks_given
def draw_graph(
    heads: AttentionGraph | Iterable[AttentionGraph],
    query: int | str | None = None,
    *,
    self_loops: bool = True,
    threshold: float | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw attention on the layout of the tokens: nodes where they lie, edges as in other pictures.

    Edges run from key to query, with widths and colours on the one scale of all pictures. With a
    query, all edges that it reads are drawn, the others as faint lines, the query is ringed, and
    nodes are shaded by what it gives them. The caption says which edges are shown. `figsize`, `ax`,
    `cmap`, `labels` and `legend`: see `gattn.drawing`.

    Parameters
    ----------
    heads : AttentionGraph or iterable of them
        A head, or several of the same tokens, whose mean is shown; an edge that a head lacks counts
        as no attention. See `AttentionTrace.with_layout`.
    query : int, str, or list of these, optional
        Whose edges to show, by position or text; of several, the edges of each.
    self_loops : bool
        Whether to draw the edges from a token to itself.
    threshold : float, optional
        Show the edges of at least this attention; by default as many as stay readable, or all that
        the query reads.

    Raises
    ------
    SelectionError
        If there is no such query, threshold or colour map.
    ShapeError
        If it is not known where the tokens lie.
    """
    several = [heads] if isinstance(heads, AttentionGraph) else list(heads)
    if not several or not all(isinstance(head, AttentionGraph) for head in several):
        what = type(heads).__name__
        other = f": {what} draws itself, as in found.draw_graph(pos)"
        raise SelectionError(
            "draw_graph takes a head, or several of the same tokens"
            f"{other * hasattr(heads, 'draw_graph')}."
        )
    check_same_tokens(several)
    check_reached(threshold, several)
    positions = _positions(several[0])
    head = mean_of(several if self_loops else [one.without_self_loops() for one in several])
    asked = sides(head)[0]
    rows = [] if query is None else sorted(set(asked.find(query)))
    if rows:
        what = f"what {asked.called(rows)} {'reads' if len(rows) == 1 else 'read'}"
        shown = edges_between(head, rows, None, threshold, what)
    else:
        shown = readable_edges(head) if threshold is None else edges_from(head, threshold)
    scale = Scale.of(head)
    pen = Pen(scale, colour_map(cmap, is_signed=scale.is_signed))
    ax, is_own = axes_with(len(positions), ax, figsize, legend=legend)
    _draw(ax, head, positions, shown, rows, pen, labels=labels)
    if legend:
        add_line_key(ax, pen)
    edits = union(one.edits for one in several)
    said = [shown.caption + marks.said(head), edits_said(edits)]
    write_texts(ax, marked_edited(heads_title(several), edits), "; ".join(filter(None, said)))
    if is_own:
        make_room(ax)
    return ax


def _positions(head: AttentionGraph) -> Positions:
    """Return where the nodes of a head lie, a sink below on the left."""
    if head.graph.is_bipartite:
        keys, queries = layouts.ends(head)
        placed = _placed(keys, head.geometry) | _placed(queries, head.query_geometry)
    else:
        placed = _placed(list(layouts.node_labels(head)), head.geometry)
    if head.sink is not None:
        places = np.array(list(placed.values())).reshape(-1, 2)
        low, high = places.min(0), places.max(0)
        x, y = (low - 0.12 * np.maximum(high - low, 1e-9)).tolist()
        placed[SINK] = (x, y)
    return placed


def _placed(nodes: list[Any], geometry: Geometry | None) -> Positions:
    if not isinstance(geometry, Layout):
        known = "" if geometry is None else f"; they have {geometry}"
        raise ShapeError(
            "It is not known where the nodes of this graph lie: say so, as in "
            f"head.with_layout(data.pos) or head.with_layout(networkx.spring_layout(graph)){known}."
        )
    if not geometry.is_somewhere.all():
        node = nodes[int(np.argmin(geometry.is_somewhere))]
        raise ShapeError(f"The node {node!r} lies nowhere: leave it out, as in head.subgraph(...).")
    return dict(zip(nodes, map(tuple, geometry.places.tolist()), strict=True))


def _draw(
    ax: Axes,
    head: AttentionGraph,
    positions: Positions,
    shown: Shown,
    rows: list[int],
    pen: Pen,
    *,
    labels: bool,
) -> None:
    places = np.array(list(positions.values())).reshape(-1, 2)
    found = PlacedEdges.of(head, shown, positions)
    if rows:
        _draw_faint(ax, head, positions)
    picture = FreeGraph(ax, positions, found, pen)
    ink = mpl.rcParams["text.color"]
    nodes = ax.scatter(
        places[:, 0],
        places[:, 1],
        c=_fills(head, positions, rows, pen),
        edgecolors=ink,
        linewidths=0.5,
        zorder=2.5,
        clip_on=False,
        gid="gattn-nodes",
    )
    picture.add_nodes(nodes, lambda radius: (2 * radius) ** 2)
    asked = [layouts.ends(head)[1][row] for row in rows]
    if rows:
        ringed = np.array([positions[node] for node in asked])
        rings = ax.scatter(
            ringed[:, 0], ringed[:, 1], facecolors="none", edgecolors=ink, linewidths=1.4,
            zorder=2.6, clip_on=False, gid="gattn-outline",
        )  # fmt: skip
        picture.add_nodes(rings, lambda radius: (2 * radius + 4) ** 2)
    marks.mark_nodes(ax, head, positions, split=False)
    if labels:
        named = told_apart(free_labels(head, split=False))
        chief = dict.fromkeys([*asked, *_read(head, rows)])
        picture.name({node: named[node] for node in chief | dict.fromkeys(named)}, len(chief))
    fitted(ax, picture.place)


def _fills(
    head: AttentionGraph, positions: Positions, rows: list[int], pen: Pen
) -> NDArray[np.float64]:
    """Shade nodes by what the queries give them, on average; without queries all alike."""
    weights = dict.fromkeys(positions, 0.0) | _given(head, rows)
    return pen.colours(list(weights.values()))


def _given(head: AttentionGraph, rows: list[int]) -> dict[Any, float]:
    """Return what each key gives some queries, on average; nothing if there are none."""
    if not rows:
        return {}
    chosen = np.isin(head.query, rows)
    amounts = np.bincount(head.key[chosen], head.attention[chosen], head.graph.num_keys)
    return dict(zip(layouts.ends(head)[0], (amounts / len(rows)).tolist(), strict=True))


def _read(head: AttentionGraph, rows: list[int]) -> list[Any]:
    """List the keys that some queries read, those of the most attention first."""
    given = {node: abs(amount) for node, amount in _given(head, rows).items() if amount}
    return sorted(given, key=given.__getitem__, reverse=True)


def _draw_faint(ax: Axes, head: AttentionGraph, positions: Positions) -> None:
    """Draw all edges as thin lines, for the shape of the graph."""
    keys, queries = layouts.ends(head)
    starts = np.array([positions[node] for node in keys])[head.key]
    ends = np.array([positions[node] for node in queries])[head.query]
    lines = LineCollection(
        list(np.stack([starts, ends], axis=1)), colors=mpl.rcParams["text.color"], linewidths=0.3,
        alpha=0.12, clip_on=False, gid="gattn-faint",
    )  # fmt: skip
    ax.add_collection(lines, autolim=False)
