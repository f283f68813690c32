"""Pictures of nodes and edges in columns and on a circle."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.transforms import blended_transform_factory

from gattn.drawing.canvas import curves, layouts
from gattn.drawing.canvas.colours import ground
from gattn.drawing.canvas.fitting import Texts, fitted, lifted, points, slot
from gattn.drawing.canvas.frame import clear, note_style
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import Labels, fit, font_size, smallest, text_style, widths_of
from gattn.drawing.canvas.layouts import Node, Positions
from gattn.drawing.chosen.shown import Shown
from gattn.drawing.one_head.look import Look
from gattn.drawing.one_head.marks import around_circle, mark_circle, mark_columns
from gattn.drawing.one_head.placed_edges import PlacedEdges, say_direction
from gattn.drawing.one_head.rings import Ring, largest_ring
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK

_GAP = 5.0
_LOOP = 14.0
_SINK = "<sink>"
_TRIES = 6
"""How often labels are fitted to a circle, whose size depends on them."""


def draw_columns(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw keys on the left and queries on the right."""
    positions = layouts.columns(head)
    found = PlacedEdges.of(head, shown, positions, split=True)
    clear(ax)
    look.pen.draw(ax, curves.bundles(found.start, found.end), found.attention, found.kind)
    asked = shown.asked(head, split=True)
    fitted(ax, _Columns(ax, head, positions, look, asked).place)
    mark_columns(ax, head, positions)
    if look.legend:
        add_line_key(ax, look.pen)


class _Columns:
    """Two columns of tokens, as far apart as their labels leave room."""

    def __init__(
        self,
        ax: Axes,
        head: AttentionGraph,
        positions: Positions,
        look: Look,
        asked: list[Node],
    ) -> None:
        self._ax, self._positions, self._asked = ax, positions, asked
        self._named = layouts.node_labels(head, split=True)
        self._apart = layouts.columns_apart(head)
        texts = [*self._named.values(), *[_SINK] * (SINK in positions)]
        style = text_style(texts)
        self._has_labels = look.labels
        self._texts = Texts(lambda: ax.text(0, 0, "", va="center", gid="gattn-label", **style))
        above = blended_transform_factory(ax.transData, ax.transAxes)
        self._notes = [
            ax.text(x, 1, name, va="top", **note_style(ax) | {"transform": above})
            for x, name in ((0.0, "key →"), (1.0, "query"))
        ]

    def place(self) -> None:
        """Fit labels, limits and the names of the columns into the axes."""
        width, height = points(self._ax)
        heights = [y for _, y in self._positions.values()] or [0.0]
        header = 2.0 * float(self._notes[0].get_fontsize())
        rise = (max(heights) - min(heights) + 1) / max(height - header, 0.2 * height)
        texts, size, extent = self._fitted(1 / rise, 0.25 * width)
        side = extent + 2 * _GAP if self._has_labels else _GAP
        inner = max(width - 2 * side, 0.2 * width)
        aside = (width - inner) / 2 / inner
        self._ax.set_xlim(-aside, 1 + aside)
        self._ax.set_ylim(min(heights) - 0.5, max(heights) + 0.5 + header * rise)
        if self._has_labels:
            self._texts.show(
                {
                    "position": (x, y),
                    "text": text,
                    "size": size,
                    "ha": "left" if x else "right",
                    "transform": lifted(self._ax, 0.0, _GAP if x else -_GAP),
                }
                for (x, y), text in zip(self._positions.values(), texts, strict=True)
                if text
            )
        is_wide = inner > 6 * font_size()
        left, right = self._notes
        left.set_horizontalalignment("left" if is_wide else "right")
        right.set_horizontalalignment("right" if is_wide else "left")

    def _fitted(self, pitch: float, room: float) -> tuple[list[str], float, float]:
        """Fit the labels of each column, all in one size; return texts, size and width."""
        columns = [
            {
                node: text
                for node, text in self._named.items()
                if isinstance(node, tuple) and node[0] == side
            }
            for side in ("key", "query")
        ]
        fitting = [
            fit(column, pitch * apart, rotations=(90,), first=self._asked).within(room)
            for column, apart in zip(columns, self._apart, strict=True)
        ]
        size = min(labels.size for labels in fitting)
        extent = max(labels.extent for labels in fitting)
        texts = [text for labels in fitting for text in labels.texts]
        return [*texts, *[_SINK] * (SINK in self._positions)], size, extent


def draw_circle(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw tokens on a circle, edges bent towards its centre with an arrowhead at the query."""
    positions = layouts.circle(head)
    found = PlacedEdges.of(head, shown, positions)
    is_loop = found.is_loop
    rest, loops = found[~is_loop], found[is_loop]
    ax.set_aspect("equal")
    clear(ax)
    look.pen.draw(ax, curves.chords(rest.start, rest.end), rest.attention, rest.kind)
    drawn = look.pen.draw(ax, curves.bows(loops.start, loops.end), loops.attention, loops.kind)
    arrivals = curves.chord_arrivals(rest.start, rest.end)
    look.pen.draw_arrowheads(ax, rest.end, arrivals, rest.attention, rest.kind)
    say_direction(ax, rest, look.wording.rightward)
    fitted(ax, _Circle(ax, head, positions, look, loops, drawn, shown.asked(head)).place)
    if look.legend:
        add_line_key(ax, look.pen)


@dataclass(eq=False)
class _Circle:
    """Tokens on a circle that fills the axes with their labels."""

    ax: Axes
    head: AttentionGraph
    positions: Positions
    look: Look
    loops: PlacedEdges
    drawn: PathCollection
    asked: list[Node]

    def __post_init__(self) -> None:
        self.named = layouts.node_labels(self.head)
        self.places = np.array([self.positions[node] for node in self.named]).reshape(-1, 2)
        at_loops = {(float(x), float(y)) for x, y in self.loops.start}
        self.has_loop = np.array([tuple(place) in at_loops for place in self.places.tolist()])
        style = text_style([*self.named.values(), _SINK])
        self.texts = Texts(lambda: self.ax.text(0, 0, "", gid="gattn-label", **style))
        self.mark = mark_circle(self.ax, self.head, self.positions)
        self.sink = None
        if SINK in self.positions and self.look.labels:
            place: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top"}
            self.sink = self.ax.annotate(
                _SINK, (0, 0), (0, -4), bbox=ground(self.ax), **place, **style
            )

    def place(self) -> None:
        """Fit the circle and its labels into the axes."""
        wide, high = slot(self.ax)
        length = min(_LOOP, 0.06 * min(wide, high))
        gaps = _GAP + 1.1 * length * self.has_loop
        labels, ring = self._fitted(wide, high, gaps)
        radius, (x, y) = ring.radius, ring.middle
        self.ax.set_xlim(-(wide / 2 + x) / radius, (wide / 2 - x) / radius)
        self.ax.set_ylim(-(high / 2 + y) / radius, (high / 2 - y) / radius)
        breadth = min(0.6 * length / radius, 0.8 * math.tau / (len(self.named) + 1))
        starts = self.loops.start
        self.drawn.set_paths(curves.loops(starts, starts, (breadth, length / radius)))
        reaches = 1 + gaps / radius
        set_out = _upright if labels.rotation == 0 else _radial
        shown = zip(labels.texts, self.places.tolist(), reaches.tolist(), strict=True)
        self.texts.show(
            {"position": (px * reach, py * reach), "text": text, "size": labels.size}
            | set_out(px, py)
            for text, (px, py), reach in shown
            if text and self.look.labels
        )
        if self.mark is not None:
            self.mark.set_segments([around_circle(self.head, self.positions, radius)])
        if self.sink is not None:
            self.sink.set_fontsize(labels.size)

    def _fitted(self, wide: float, high: float, gaps: np.ndarray[Any, Any]) -> tuple[Labels, Ring]:
        """Set labels upright if they stay apart, or along the radius; smaller before shortened."""
        upright = fit(self.named, math.inf, rotations=(0,))
        if not self.look.labels:
            none = np.zeros(len(self.named))
            return upright, largest_ring(self.places, gaps, none, 0.0, (wide, high), radial=False)
        found = self._set(upright, wide, high, gaps)
        if found[1].is_apart and found[1].radius >= 0.25 * min(wide, high):
            return found
        turned = self._along_radius(wide, high, gaps)
        if turned[0].size == upright.size and turned[0].texts == upright.texts:
            return turned
        small = replace(upright, size=min(smallest(), upright.size))
        found = self._set(small, wide, high, gaps)
        is_clear = found[1].is_apart and found[1].radius >= 0.2 * min(wide, high)
        return found if is_clear else turned

    def _along_radius(
        self, wide: float, high: float, gaps: np.ndarray[Any, Any]
    ) -> tuple[Labels, Ring]:
        least = min(wide, high)
        radius = 0.3 * least
        for tries in range(_TRIES):
            labels = self._turned(radius + _GAP, 0.26 * least)
            found = self._set(labels, wide, high, gaps)
            if tries and found[1].radius >= radius:  # labels have the room for which they are
                break
            radius = found[1].radius
        return found

    def _set(
        self, labels: Labels, wide: float, high: float, gaps: np.ndarray[Any, Any]
    ) -> tuple[Labels, Ring]:
        """Find the largest circle around which labels have room as they are."""
        widths, radial = widths_of(labels.texts) * labels.size, labels.rotation != 0
        room = wide, high
        return labels, largest_ring(self.places, gaps, widths, labels.size, room, radial=radial)

    def _turned(self, radius: float, reach: float) -> Labels:
        """Set labels along the radius, those of keys and of queries each as many as have room."""

        def along(nodes: Iterable[Node], pitch: float) -> Labels:
            some = {node: self.named[node] for node in nodes}
            far = reach * max(0.9 * font_size() / smallest(), 1.0)
            labels = fit(some, pitch, rotations=(90,), reach=far, first=self.asked)
            return labels.within(reach)

        if not self.head.graph.is_bipartite:
            pitch = radius * math.tau / (len(self.named) + 1)
            return along(self.named, pitch).closed(pitch)
        sides = layouts.ends(self.head)
        pitches = [radius * math.pi / (len(nodes) + 1) for nodes in sides]
        keys, queries = map(along, sides, pitches)
        places = radius * np.arctan2(*self.places.T)
        return keys.beside(queries, places.tolist(), radius * math.tau)


def _upright(x: float, y: float) -> dict[str, Any]:
    """Set a label horizontally outside a point of the unit circle."""
    across = "center" if abs(x) < 0.05 else "right" if x < 0 else "left"
    down = "center" if abs(y) < 0.5 else "top" if y < 0 else "bottom"
    return {"ha": across, "va": down, "rotation": 0, "rotation_mode": "default"}


def _radial(x: float, y: float) -> dict[str, Any]:
    """Set a label along a point's radius, never upside down."""
    left = x < -1e-9
    return {
        "rotation": math.degrees(math.atan2(y, x)) + 180 * left,
        "rotation_mode": "anchor",
        "ha": "right" if left else "left",
        "va": "center",
    }
