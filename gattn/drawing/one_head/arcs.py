"""Arc diagrams: tokens on one line."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from gattn.drawing.canvas import curves, layouts
from gattn.drawing.canvas.frame import clear, lifted, note_style, points
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import Labels, fit, text_style
from gattn.drawing.canvas.layouts import Positions
from gattn.drawing.canvas.shown import Shown
from gattn.drawing.one_head.look import Look, Wording
from gattn.drawing.one_head.marks import mark_row
from gattn.drawing.one_head.placed_edges import PlacedEdges
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK

_LOOP = 18.0


def draw_arcs(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw tokens on one line; edges to the right run above it, edges to the left below."""
    positions = layouts.arcs(head)
    found = PlacedEdges.of(head, shown, positions)
    is_loop, forward = found.is_loop, found.end[:, 0] > found.start[:, 0]
    two_sided = not head.graph.is_bipartite and bool(
        (head.key > head.query + head.graph.query_offset).any()
    )
    clear(ax)
    labels, pitch = _place_row(ax, head, positions, look, two_sided)
    band = labels.extent + 10 if look.labels else 4.0
    lift = band / 2 if two_sided else 0.0
    unit = _set_height(ax, found, len(positions), band, two_sided)
    length = min(_LOOP, 5 + 1.5 * pitch)
    size = min(0.8 * length / pitch, 0.45), length * unit
    up = np.tile([0.0, 1.0], (int(is_loop.sum()), 1))
    loops = curves.loops(found.start[is_loop], up, size)
    above, below = found[forward], found[~forward & ~is_loop]
    for paths, edges, rise in (
        (curves.half_ellipses(above.start, above.end), above, lift),
        (loops, found[is_loop], lift),
        (curves.half_ellipses(below.start, below.end), below, -lift),
    ):
        look.pen.draw(ax, paths, edges.attention, transform=lifted(ax, rise))
    if look.labels:
        _write_row(ax, positions, labels, two_sided)
    _write_direction(ax, look.wording, two_sided)
    mark_row(ax, head, positions, lift - 2.5)
    if look.legend:
        add_line_key(ax, look.pen)


def _place_row(
    ax: Axes, head: AttentionGraph, positions: Positions, look: Look, two_sided: bool
) -> tuple[Labels, float]:
    """Fit the labels and set the horizontal limits; tell how many points apart tokens stand."""
    x = [place[0] for place in positions.values()] or [0.0]
    left, right = min(x) - 0.5, max(x) + 0.5
    room = points(ax)[0]
    labels = fit(
        layouts.node_labels(head),
        room / (right - left),
        rotations=(0, 90) if two_sided else (0, 45, 90),
    )
    overhang = labels.overhang if look.labels else 0.0
    pitch = max((room - overhang) / (right - left), 0.1)
    ax.set_xlim(left - overhang / pitch, right)
    return labels, pitch


def _set_height(ax: Axes, found: PlacedEdges, slots: int, band: float, two_sided: bool) -> float:
    """Fit arcs and labels into the axes; tell how many data units a point is."""
    height = points(ax)[1]
    spans = np.abs(found.end - found.start)[:, 0]
    top = 1.03 * max(float(spans.max(initial=0.0)) / 2, 0.15 * slots, 0.8)
    rise = (1 + two_sided) * top / max(height - band, 0.2 * height)
    below, above = (top + band / 2 * rise,) * 2 if two_sided else (band * rise, top)
    ax.set_ylim(-below, above)
    return rise


def _write_row(ax: Axes, positions: Positions, labels: Labels, two_sided: bool) -> None:
    texts = [*labels.texts, *["<sink>"] * (SINK in positions)]
    style = text_style(texts)
    slanted = labels.rotation == 45
    for (x, y), text in zip(positions.values(), texts, strict=True):
        if text:
            ax.text(
                x,
                y,
                text,
                transform=lifted(ax, 0.0 if two_sided else -5.0),
                ha="right" if slanted else "center",
                va="center" if two_sided else "top",
                rotation=labels.rotation,
                rotation_mode="anchor" if slanted else "default",
                size=labels.size,
                gid="gattn-label",
                **style,
            )


def _write_direction(ax: Axes, wording: Wording, two_sided: bool) -> None:
    ax.text(0, 1, wording.rightward, ha="left", va="top", **note_style(ax))
    if two_sided:
        ax.text(0, 0, wording.leftward, ha="left", va="bottom", **note_style(ax))
