"""Lines that tell generated tokens from the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.transforms import Transform
from numpy.typing import NDArray

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.fitting import lifted
from gattn.drawing.canvas.layouts import Positions
from gattn.heads.head import AttentionGraph

_BESIDE = 2.5
_AROUND = 0.4


def said(head: AttentionGraph) -> str:
    """Return what the lines mean, if there are generated tokens."""
    if not head.generated:
        return ""
    return f"; lines mark {head.generated} generated token{'s' * (head.generated > 1)}"


def mark_row(ax: Axes, head: AttentionGraph, positions: Positions) -> LineCollection | None:
    """Draw a line along the generated tokens of a row, if any."""
    found = [positions[node][0] for node in layouts.generated(head)]
    if not found:
        return None
    ends = [(min(found) - _AROUND, 0.0), (max(found) + _AROUND, 0.0)]
    return _add(ax, [ends], ax.transData)


def mark_columns(ax: Axes, head: AttentionGraph, positions: Positions) -> None:
    """Draw a line beside the generated tokens of each column, outside of the edges."""
    for side, outwards in ((0.0, -_BESIDE), (1.0, _BESIDE)):
        nodes = layouts.generated(head, split=True)
        found = [positions[node][1] for node in nodes if positions[node][0] == side]
        if found:
            ends = [(side, min(found) - _AROUND), (side, max(found) + _AROUND)]
            _add(ax, [ends], lifted(ax, 0.0, outwards))


def mark_circle(ax: Axes, head: AttentionGraph, positions: Positions) -> LineCollection | None:
    """Draw a line around the generated tokens of a circle, if any."""
    return _add(ax, [], ax.transData) if layouts.generated(head) else None


def around_circle(head: AttentionGraph, positions: Positions, radius: float) -> NDArray[np.float64]:
    """Return where that line runs, if the radius of the circle is so many points."""
    angles = [math.atan2(*positions[node]) % math.tau for node in layouts.generated(head)]
    around = _AROUND * math.tau / (len(positions) + 1)
    turn = np.linspace(min(angles) - around, max(angles) + around, 2 + 4 * len(angles))
    reach = 1 + _BESIDE / radius
    return reach * np.stack([np.sin(turn), np.cos(turn)], axis=1)


def mark_nodes(ax: Axes, head: AttentionGraph, positions: Positions, *, split: bool) -> None:
    """Draw a dash at each generated token, wherever it stands."""
    found = [positions[node] for node in layouts.generated(head, split=split)]
    if found:
        x, y = zip(*found, strict=True)
        style = {"color": mpl.rcParams["text.color"], "marker": "_", "markersize": 9}
        ax.add_line(Line2D(x, y, linestyle="", markeredgewidth=1.8, gid="gattn-generated", **style))


def mark_cells(ax: Axes, head: AttentionGraph) -> None:
    """Draw lines beside the rows and below the columns of generated tokens."""
    graph = head.graph
    bottom = graph.num_queries - 0.5
    keys, queries = layouts.generated_ends(head)
    if queries:
        first = graph.num_queries - queries - 0.5
        _add(ax, [[(-0.5, first), (-0.5, bottom)]], lifted(ax, 0.0, -1.5))
    if keys:
        ends = [(place - 0.5, bottom) for place in (graph.num_keys - keys, graph.num_keys)]
        _add(ax, [ends], lifted(ax, -1.5))


def _add(ax: Axes, segments: Sequence[Any], transform: Transform) -> LineCollection:
    found = LineCollection(
        segments,
        colors=mpl.rcParams["text.color"],
        linewidths=1.4,
        capstyle="butt",
        transform=transform,
        clip_on=False,
        gid="gattn-generated",
    )
    ax.add_collection(found, autolim=False)
    return found
