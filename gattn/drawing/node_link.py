"""Pictures of nodes and edges in columns, on a circle, or anywhere."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes

from gattn.drawing import curves, layouts
from gattn.drawing.frame import Look, add_line_key, points
from gattn.drawing.labels import Labels, fit, position_of, text_style
from gattn.drawing.layouts import Positions
from gattn.drawing.lines import add_arrowheads, add_edges, lines
from gattn.drawing.shown import Shown
from gattn.errors import SelectionError
from gattn.head import AttentionGraph
from gattn.networks import SINK


def draw_columns(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw keys on the left and queries on the right."""
    positions = layouts.columns(head)
    found = lines(head, shown, positions, split=True)
    heights = [y for _, y in positions.values()] or [0.0]
    ax.set(xlim=(0, 1), ylim=(min(heights) - 0.5, max(heights) + 1.6))
    ax.set_axis_off()
    add_edges(ax, curves.bundles(found.start, found.end), found, look)
    pitch = points(ax)[1] / (max(heights) - min(heights) + 2.1)
    tokens = layouts.node_labels(head, split=True)
    labels = fit(
        list(tokens.values()), [position_of(node) for node in tokens], pitch, rotations=(90,)
    )
    texts = [
        *(labels.texts if look.labels else [""] * len(tokens)),
        *["<sink>"] * (SINK in positions),
    ]
    texts += ["key", "query"]
    places = [*positions.values(), (0.0, max(heights) + 1.1), (1.0, max(heights) + 1.1)]
    style = text_style(texts)
    for (x, y), text in zip(places, texts, strict=True):
        if text:
            ax.annotate(
                text,
                (x, y),
                (-5 if x == 0 else 5, 0),
                textcoords="offset points",
                ha="right" if x == 0 else "left",
                va="center",
                size=labels.size,
                annotation_clip=False,
                gid="gattn-label",
                **style,
            )
    if look.legend:
        add_line_key(ax, look)


def draw_circle(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw tokens on a circle, edges bent towards its centre with an arrowhead at the query."""
    positions = layouts.circle(head)
    found = lines(head, shown, positions)
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.set(xlim=(-1, 1), ylim=(-1, 1))
    tokens = layouts.node_labels(head)
    pitch = min(points(ax)) / 2 * math.tau / (len(tokens) + 1)
    labels = fit(
        list(tokens.values()), [position_of(node) for node in tokens], pitch, rotations=(90,)
    )
    reach = 1.06
    is_loop = found.is_loop
    size = min(0.05, 0.8 * math.tau / (len(tokens) + 1)), 0.12
    if is_loop.any():
        reach += size[1]
    loops = found[is_loop]
    add_edges(ax, curves.loops(loops.start, loops.start, size), loops, look)
    rest = found[~is_loop]
    centre = np.zeros((1, 2))
    add_edges(ax, curves.chords(rest.start, rest.end, centre), rest, look)
    arrival = rest.end - (rest.start + rest.end) / 2 * 0.4
    add_arrowheads(ax, rest.end, arrival, rest, look)
    if look.labels:
        _write_around(ax, positions, labels, reach)
    if look.legend:
        add_line_key(ax, look)


def _write_around(ax: Axes, positions: Positions, labels: Labels, reach: float) -> None:
    style = text_style([*labels.texts, "<sink>"])
    for (x, y), text in zip(positions.values(), labels.texts, strict=False):
        angle = math.degrees(math.atan2(y, x))
        left = x < -1e-9
        if text:
            ax.text(
                x * reach,
                y * reach,
                text,
                rotation=angle + 180 if left else angle,
                rotation_mode="anchor",
                ha="right" if left else "left",
                va="center_baseline",
                size=labels.size,
                gid="gattn-label",
                **style,
            )
    if SINK in positions:
        ax.text(0, 0, "<sink>", ha="center", va="center", size=labels.size, **style)


def draw_free(
    ax: Axes, head: AttentionGraph, shown: Shown, look: Look, positions: Positions
) -> None:
    """Draw tokens where `positions` says, edges bent to the left with an arrowhead."""
    tokens = layouts.node_labels(head) | ({} if head.sink is None else {SINK: "<sink>"})
    if missing := [node for node in tokens if node not in positions]:
        raise SelectionError(
            f"The layout gives no position for the node {missing[0]!r}; it needs "
            "{node: (x, y)} for each node of head.to_networkx()."
        )
    positions = {node: (float(positions[node][0]), float(positions[node][1])) for node in tokens}
    found = lines(head, shown, positions)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_axis_off()
    ax.update_datalim(list(positions.values()))
    ax.margins(0.12)
    ax.autoscale_view()
    rest = found[~found.is_loop]
    add_edges(ax, curves.bows(rest.start, rest.end), rest, look)
    if look.legend:
        add_line_key(ax, look)
