"""Arc diagrams: tokens on one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from gattn.drawing import curves, layouts
from gattn.drawing.frame import Look, add_line_key, points
from gattn.drawing.labels import Labels, fit, position_of, text_style
from gattn.drawing.layouts import Positions
from gattn.drawing.lines import Lines, add_edges, lifted, lines
from gattn.drawing.shown import Shown
from gattn.head import AttentionGraph
from gattn.networks import SINK


def draw_arcs(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw tokens on one line; edges to the right run above it, edges to the left below."""
    positions = layouts.arcs(head)
    found = lines(head, shown, positions)
    is_loop, forward = found.is_loop, found.end[:, 0] > found.start[:, 0]
    backward = not head.graph.is_bipartite and bool(
        (head.key > head.query + head.graph.query_offset).any()
    )
    x = [place[0] for place in positions.values()]
    ax.set_xlim(min(x, default=0) - 0.5, max(x, default=0) + 0.5)
    ax.set_axis_off()
    labels = _row_labels(ax, head, positions, rotations=(0, 90) if backward else (0, 45, 90))
    gap = labels.extent / 2 + 5 if backward and look.labels else 0.0
    per_point = _set_height(ax, found, len(x), backward, gap)
    size = min(16 * per_point[0], 0.45), 20 * per_point[1]
    up = np.tile([0.0, 1.0], (int(is_loop.sum()), 1))
    loops = curves.loops(found.start[is_loop], up, size)
    above, below = found[forward], found[~forward & ~is_loop]
    add_edges(ax, curves.half_ellipses(above.start, above.end), above, look, lifted(ax, gap))
    add_edges(ax, loops, found[is_loop], look, lifted(ax, gap))
    add_edges(ax, curves.half_ellipses(below.start, below.end), below, look, lifted(ax, -gap))
    if look.labels:
        _write_row(ax, positions, labels, middle=backward)
    if look.legend:
        add_line_key(ax, look)


def _set_height(
    ax: Axes, found: Lines, slots: int, backward: bool, gap: float
) -> tuple[float, float]:
    """Fit the arcs into the axes; tell how many data units a point is, across and up."""
    width, height = points(ax)
    spans = np.abs(found.end - found.start)[:, 0]
    top = 1.02 * max(spans.max(initial=0.0) / 2, 0.2 * slots, 0.8)
    sides = 2 if backward else 1
    free = max(height - sides * gap, 0.2 * height)
    per_point = sides * top / free
    ax.set_ylim(-(top + gap * per_point) if backward else 0.0, top + gap * per_point)
    left, right = ax.get_xlim()
    return (right - left) / width, per_point


def _row_labels(
    ax: Axes,
    head: AttentionGraph,
    positions: Positions,
    *,
    rotations: Sequence[int],
) -> Labels:
    tokens = layouts.node_labels(head)
    left, right = ax.get_xlim()
    pitch = points(ax)[0] / (right - left)
    return fit(
        list(tokens.values()), [position_of(node) for node in tokens], pitch, rotations=rotations
    )


def _write_row(ax: Axes, positions: Positions, labels: Labels, *, middle: bool) -> None:
    texts = [*labels.texts, *["<sink>"] * (SINK in positions)]
    style = text_style(texts)
    across = "right" if labels.rotation == 45 else "center"
    for (x, y), text in zip(positions.values(), texts, strict=True):
        if text:
            ax.text(
                x,
                y,
                text,
                transform=lifted(ax, 0.0 if middle else -4.0),
                ha=across,
                va="center" if middle else "top",
                rotation=labels.rotation,
                rotation_mode="anchor" if labels.rotation == 45 else "default",
                size=labels.size,
                gid="gattn-label",
                **style,
            )
