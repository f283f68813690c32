"""Some edges of a graph on the layout that it brings with it, over all its other edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from gattn.drawing.canvas.fitting import fitted
from gattn.drawing.canvas.frame import add_axes, given_axes
from gattn.drawing.canvas.labels import larger
from gattn.drawing.canvas.layouts import Positions
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.one_head.free import FreeGraph, told_apart
from gattn.drawing.one_head.placed_edges import PlacedEdges
from gattn.drawing.styles.figures import new_figure, within_page

NOT_KNOWN = (
    "It is not known where the nodes of this graph lie: say so, as in found.draw_graph(data.pos) "
    "or found.draw_graph(networkx.spring_layout(graph))."
)

_CHIEF = 0.5
"""From which share of the largest number on an edge's ends are named before all others."""


def axes_with(
    nodes: int, ax: Axes | None, figsize: tuple[float, float] | None, *, legend: bool
) -> tuple[Axes, bool]:
    """Return the axes that a user gave, or new ones for so many nodes; and whether they are new."""
    given = given_axes(ax, figsize)
    if given is not None:
        return given, False
    side = larger() * min(max(4.4, 2.6 + 0.45 * nodes**0.6), 9.0)
    figure = new_figure(within_page(side + 0.6, side))
    return add_axes(figure, legend=legend), True


def draw_on_layout(
    ax: Axes,
    names: Sequence[str],
    where: NDArray[np.float64],
    sizes: Mapping[tuple[int, int], float],
    others: Iterable[tuple[int, int]],
    pen: Pen,
    *,
    labels: bool,
) -> None:
    """Draw edges, whose ends are named, over others.

    Parameters
    ----------
    ax : Axes
        The axes.
    names : sequence of str
        The names of all nodes.
    where : array (nodes, 2)
        Where they lie.
    sizes : mapping of (int, int) to float
        The number of each edge, by key and query.
    others : iterable of (int, int)
        Edges to draw as faint lines.
    pen : Pen
        Colours and widths.
    labels : bool
        Whether to name the ends of edges.
    """
    ink = mpl.rcParams["text.color"]
    faint = np.array(sorted(set(others)), dtype=int).reshape(-1, 2)
    lines = LineCollection(
        list(where[faint]), colors=ink, linewidths=0.4, alpha=0.18, clip_on=False, gid="gattn-faint"
    )
    ax.add_collection(lines, autolim=False)
    ends = np.array(list(sizes), dtype=int).reshape(-1, 2)
    values = np.array(list(sizes.values()), dtype=np.float64)
    order = np.argsort(np.abs(values), kind="stable")
    kind = np.zeros(len(values), dtype=np.int64)
    found = PlacedEdges(where[ends[:, 0]], where[ends[:, 1]], values, kind)[order]
    every: Positions = {node: (float(x), float(y)) for node, (x, y) in enumerate(where)}
    picture = FreeGraph(ax, every, found, pen)
    strongest = order[::-1]
    used = list(dict.fromkeys(ends[strongest].ravel().tolist()))
    _draw_nodes(ax, where, used, picture)
    if labels and used:
        sizes_of = np.abs(values[strongest])
        chief = set(ends[strongest][sizes_of >= _CHIEF * sizes_of[0]].ravel().tolist())
        named = told_apart(dict(enumerate(names)))
        picture.name({node: named[node] for node in used}, len(chief))
    fitted(ax, picture.place)


def _draw_nodes(ax: Axes, where: NDArray[np.float64], used: list[int], picture: FreeGraph) -> None:
    """Draw the ends of edges in full, other nodes as small dots."""
    ink = mpl.rcParams["text.color"]
    x, y = where.T
    is_used = np.isin(np.arange(len(where)), used)
    style: dict[str, Any] = {"color": ink, "lw": 0, "clip_on": False, "zorder": 2.5}
    others = ax.scatter(x[~is_used], y[~is_used], gid="gattn-others", alpha=0.35, **style)
    nodes = ax.scatter(x[is_used], y[is_used], gid="gattn-nodes", **style)
    picture.add_nodes(others, lambda radius: radius**2)
    picture.add_nodes(nodes, lambda radius: (2 * radius) ** 2)
