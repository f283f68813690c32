"""Pictures of nodes and edges in columns, on a circle, or anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from gattn.drawing.canvas import curves, layouts
from gattn.drawing.canvas.curves import Points
from gattn.drawing.canvas.frame import (
    POINTS_PER_INCH,
    clear,
    note_style,
    points,
    width_left,
)
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import Labels, fit, font_size, numbered, text_style
from gattn.drawing.canvas.layouts import Node, Positions
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.shown import Shown
from gattn.drawing.one_head.look import Look
from gattn.drawing.one_head.marks import mark_circle, mark_columns, mark_nodes
from gattn.drawing.one_head.placed_edges import PlacedEdges
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK
from gattn.names.text import width as width_of

_GAP = 5.0
_LOOP = 14.0
_FEW = 60
"""The most nodes at positions of one's own that all have a label."""


def draw_columns(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw keys on the left and queries on the right."""
    positions = layouts.columns(head)
    found = PlacedEdges.of(head, shown, positions, split=True)
    heights = [y for _, y in positions.values()] or [0.0]
    width, height = points(ax)
    header = 2.0 * note_style(ax)["size"]
    rise = (max(heights) - min(heights) + 1) / max(height - header, 0.2 * height)
    labels = fit(layouts.node_labels(head, split=True), 1 / rise, rotations=(90,))
    width = width_left(ax, width, legend=look.legend)
    labels = labels.within(width / 3)
    side = labels.extent + 2 * _GAP if look.labels else _GAP
    aside = side / max(width - 2 * side, 0.2 * width)
    beyond = max(side - aside / (1 + 2 * aside) * width, 0.0)
    ax.set(xlim=(-aside, 1 + aside))
    ax.set_ylim(min(heights) - 0.5, max(heights) + 0.5 + header * rise)
    clear(ax)
    look.pen.draw(ax, curves.bundles(found.start, found.end), found.attention)
    if look.labels:
        _write_beside(ax, positions, labels)
    mark_columns(ax, head, positions)
    sides = ("left", "right") if width / (1 + 2 * aside) > 6 * font_size() else ("right", "left")
    for x, name, side_of in ((0.0, "key →", sides[0]), (1.0, "query", sides[1])):
        place = (x + aside) / (1 + 2 * aside)
        ax.text(place, 1, name, ha=side_of, va="top", **note_style(ax))
    if look.legend:
        add_line_key(ax, look.pen, beyond=beyond)


def _write_beside(ax: Axes, positions: Positions, labels: Labels) -> None:
    texts = [*labels.texts, *["<sink>"] * (SINK in positions)]
    style = text_style(texts)
    for (x, y), text in zip(positions.values(), texts, strict=True):
        if text:
            ax.annotate(
                text,
                (x, y),
                (_GAP if x else -_GAP, 0),
                textcoords="offset points",
                ha="left" if x else "right",
                va="center",
                size=labels.size,
                annotation_clip=False,
                gid="gattn-label",
                **style,
            )


def draw_circle(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw tokens on a circle, edges bent towards its centre with an arrowhead at the query."""
    positions = layouts.circle(head)
    found = PlacedEdges.of(head, shown, positions)
    tokens = layouts.node_labels(head)
    is_loop = found.is_loop
    half = min(points(ax)) / 2
    labels = fit(tokens, 0.7 * half * math.tau / (len(tokens) + 1), rotations=(0, 90))
    length = min(_LOOP, 0.12 * half)
    loop = 1.1 * length
    ring = _GAP + loop * bool(is_loop.any())
    around = ring + (labels.widest + 2 if look.labels else 0.0)
    radius = max(half - around, 0.3 * half)
    ax.set_aspect("equal")
    ax.set(xlim=(-half / radius, half / radius), ylim=(-half / radius, half / radius))
    clear(ax)
    rest, loops = found[~is_loop], found[is_loop]
    look.pen.draw(ax, curves.chords(rest.start, rest.end), rest.attention)
    breadth = min(0.6 * length / radius, 0.8 * math.tau / (len(tokens) + 1))
    size = breadth, length / radius
    look.pen.draw(ax, curves.loops(loops.start, loops.start, size), loops.attention)
    arrivals = curves.chord_arrivals(rest.start, rest.end)
    look.pen.draw_arrowheads(ax, rest.end, arrivals, rest.attention)
    if look.labels:
        at_loops = {(float(x), float(y)) for x, y in found.start[is_loop]}
        gaps = [_GAP + loop * (place in at_loops) for place in positions.values()]
        _write_around(ax, positions, labels, [1 + gap / radius for gap in gaps])
    mark_circle(ax, head, positions, radius)
    if look.legend:
        add_line_key(ax, look.pen)


def _write_around(ax: Axes, positions: Positions, labels: Labels, reaches: list[float]) -> None:
    style = text_style([*labels.texts, "<sink>"])
    for (x, y), text, reach in zip(positions.values(), labels.texts, reaches, strict=False):
        if text:
            ax.text(
                x * reach,
                y * reach,
                text,
                size=labels.size,
                gid="gattn-label",
                **(_upright(x, y) if labels.rotation == 0 else _radial(x, y)),
                **style,
            )
    if SINK in positions:
        ax.annotate(
            "<sink>",
            (0, 0),
            (0, -4),
            textcoords="offset points",
            ha="center",
            va="top",
            size=labels.size,
            bbox=_ground(ax),
            **style,
        )


def _upright(x: float, y: float) -> dict[str, Any]:
    """Set a label horizontally outside a point of the unit circle."""
    across = "center" if abs(x) < 0.05 else "right" if x < 0 else "left"
    return {"ha": across, "va": "center" if abs(y) < 0.5 else "top" if y < 0 else "bottom"}


def _radial(x: float, y: float) -> dict[str, Any]:
    """Set a label along a point's radius, never upside down."""
    left = x < -1e-9
    return {
        "rotation": math.degrees(math.atan2(y, x)) + 180 * left,
        "rotation_mode": "anchor",
        "ha": "right" if left else "left",
        "va": "center_baseline",
    }


def given_positions(head: AttentionGraph, layout: Mapping[Any, Any]) -> Positions:
    """Read the positions of a head's nodes, in their order, from a dict like those of NetworkX."""
    nodes = free_labels(head, split=_is_split(layout))
    if missing := [node for node in nodes if node not in layout]:
        raise SelectionError(
            f"The layout gives no position for the node {missing[0]!r}; it needs "
            "{node: (x, y)} for each node of head.to_networkx()."
        )
    placed: Positions = {}
    for node in nodes:
        place = np.asarray(layout[node], dtype=float)
        if place.shape != (2,) or not np.isfinite(place).all():
            raise SelectionError(
                f"The position of the node {node!r} must be (x, y), two finite numbers, not "
                f"{layout[node]!r:.80}."
            )
        placed[node] = (float(place[0]), float(place[1]))
    return placed


def _is_split(positions: Mapping[Any, Any]) -> bool:
    """Return whether a token stands in two places, as key and as query, as in `layouts.columns`."""
    return any(isinstance(node, tuple) and node[:1] == ("query",) for node in positions)


def free_labels(head: AttentionGraph, *, split: bool) -> dict[Node, str]:
    """Map each node to its token's text, the sink among them."""
    sink = {} if head.sink is None else {SINK: "<sink>"}
    return layouts.node_labels(head, split=split) | sink


def draw_free(
    ax: Axes, head: AttentionGraph, shown: Shown, look: Look, positions: Positions
) -> None:
    """Draw tokens where `positions` says, edges bent to the left with an arrowhead."""
    split = _is_split(positions)
    found = PlacedEdges.of(head, shown, positions, split=split)
    labels = fit(free_labels(head, split=split), math.inf, rotations=(0,))
    unit = set_free_limits(ax, np.array(list(positions.values())).reshape(-1, 2))
    draw_free_edges(ax, found, look.pen, unit)
    mark_nodes(ax, head, positions, split=split)
    if look.labels:
        write_at_nodes(ax, positions, labels, found)
    if look.legend:
        add_line_key(ax, look.pen)


def draw_free_edges(
    ax: Axes, found: PlacedEdges, pen: Pen, unit: float, radius: float = 0.0
) -> None:
    """Draw edges bent to the left, with an arrowhead `radius` points before the query's place."""
    rest, loops = found[~found.is_loop], found[found.is_loop]
    pen.draw(ax, curves.bows(rest.start, rest.end), rest.attention)
    up = np.tile([0.0, 1.0], (len(loops.start), 1))
    paths = curves.loops(loops.start, up, (0.6 * _LOOP * unit, (_LOOP + radius) * unit))
    pen.draw(ax, paths, loops.attention)
    arrivals = curves.bow_arrivals(rest.start, rest.end)
    length = np.maximum(np.hypot(*arrivals.T), 1e-12)[:, None]
    tips = rest.end - arrivals / length * radius * unit
    pen.draw_arrowheads(ax, tips, arrivals, rest.attention)


_ABOVE, _BELOW, _RIGHT, _LEFT = (0, 1), (0, -1), (1, 0), (-1, 0)


def write_at_nodes(
    ax: Axes,
    positions: Positions,
    labels: Labels,
    found: PlacedEdges,
    gap: float = 4.0,
    *,
    few: int = _FEW,
) -> None:
    """Write labels above nodes in the upper half, below others and below loops.

    All of them if there are few nodes; of more, those that do not meet one before. Those of many
    nodes stand on another side where they would cover a node.
    """
    style = text_style(labels.texts) | {"bbox": _ground(ax)}
    at_loops = {(float(x), float(y)) for x, y in found.start[found.is_loop]}
    middle = float(np.mean(ax.get_ylim()))
    above = [place[1] > middle and place not in at_loops for place in positions.values()]
    texts, sides = labels.texts, [_ABOVE if is_above else _BELOW for is_above in above]
    if len(positions) > few:
        texts, sides = _with_room(ax, positions, labels, sides, gap)
    for place, text, (x, y) in zip(positions.values(), texts, sides, strict=True):
        if not text:
            continue
        ax.annotate(
            text,
            place,
            (gap * x, gap * y),
            textcoords="offset points",
            ha=("right", "center", "left")[x + 1],
            va=("top", "center", "bottom")[y + 1],
            size=labels.size,
            annotation_clip=False,
            gid="gattn-label",
            **style,
        )


def _with_room(
    ax: Axes, positions: Positions, labels: Labels, usual: Sequence[tuple[int, int]], gap: float
) -> tuple[list[str], list[tuple[int, int]]]:
    """Choose sides of the labels of many nodes, and thin out those that lie on one before.

    A label stands on its usual side unless it covers a node there, but none on another side.
    """
    named = zip(positions, labels.texts, strict=True)
    texts = [text if node == SINK else numbered(node, text) for node, text in named]
    nodes = ax.transData.transform(np.array(list(positions.values())))
    nodes *= POINTS_PER_INCH / ax.figure.dpi
    half = np.array([[width_of(text) / 2, 0.65] for text in texts]) * labels.size
    middles, written = np.zeros_like(nodes), np.zeros(len(texts), dtype=bool)
    sides = list(usual)

    def is_free(place: Points, of: int, others: Points, room: Points | float) -> bool:
        return bool((np.abs(others - place) >= half[of] + room).any(axis=1).all())

    for i, node in enumerate(nodes):
        others = np.delete(nodes, i, axis=0)
        tried = dict.fromkeys([usual[i], _ABOVE, _BELOW, _RIGHT, _LEFT])
        places = {side: node + np.array(side) * (gap + half[i]) for side in tried}
        free = [
            side
            for side, place in places.items()
            if is_free(place, i, middles[written], half[written])
        ]
        clear_of_nodes = (side for side in free if is_free(places[side], i, others, gap / 2))
        side = next(clear_of_nodes, usual[i])
        if side in free:
            sides[i], middles[i], written[i] = side, places[side], True
    return [text if written[i] else "" for i, text in enumerate(texts)], sides


def _ground(ax: Axes) -> dict[str, Any]:
    """Set text off from the edges behind it; a stroke around it would make it paths in SVG."""
    is_see_through = not ax.patch.get_visible() or not to_rgba(ax.get_facecolor())[3]
    face = ax.figure.figure.get_facecolor() if is_see_through else ax.get_facecolor()
    return {"boxstyle": "square,pad=0.04", "facecolor": face, "alpha": 0.75, "linewidth": 0}


def set_free_limits(ax: Axes, places: Points) -> float:
    """Leave room around the nodes at equal scales; tell how many data units a point is."""
    width, height = points(ax)
    places = places if len(places) else np.zeros((1, 2))
    low, high = places.min(0), places.max(0)
    middle, extent = (low + high) / 2, high - low
    unit = max(*(extent / np.maximum([width - 70, height - 50], 20)).tolist(), 1e-9)
    ax.set_xlim(middle[0] - width * unit / 2, middle[0] + width * unit / 2)
    ax.set_ylim(middle[1] - height * unit / 2, middle[1] + height * unit / 2)
    ax.set_aspect("equal", adjustable="box")
    clear(ax)
    return float(unit)
