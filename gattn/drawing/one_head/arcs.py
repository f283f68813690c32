"""Arc diagrams: tokens on one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D
from matplotlib.text import Text

from gattn.drawing.canvas import curves, layouts
from gattn.drawing.canvas.fitting import Texts, fitted, lifted, points
from gattn.drawing.canvas.frame import clear, note_style
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import Labels, fit, small_size, text_style, width_of
from gattn.drawing.canvas.layouts import Node, Positions
from gattn.drawing.chosen.shown import Shown
from gattn.drawing.one_head.look import Look, Wording
from gattn.drawing.one_head.marks import mark_row
from gattn.drawing.one_head.placed_edges import PlacedEdges
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK

_LOOP = 18.0
_REACH = 0.3
"""The share of the height that labels take at most."""
_NOTE = 1.5
"""How much room a note about directions takes above arcs, in font sizes."""


def draw_arcs(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw tokens on one line; edges to the right run above it, edges to the left below."""
    positions = layouts.arcs(head)
    found = PlacedEdges.of(head, shown, positions)
    is_loop, forward = found.is_loop, found.end[:, 0] > found.start[:, 0]
    two_sided = not head.graph.is_bipartite and bool(
        (head.key > head.query + head.graph.query_offset).any()
    )
    clear(ax)
    above, loops, below = found[forward], found[is_loop], found[~forward & ~is_loop]
    drawn = [
        look.pen.draw(
            ax, curves.half_ellipses(above.start, above.end), above.attention, above.kind
        ),
        look.pen.draw(
            ax, curves.half_ellipses(loops.start, loops.end), loops.attention, loops.kind
        ),
        look.pen.draw(
            ax, curves.half_ellipses(below.start, below.end), below.attention, below.kind
        ),
    ]
    picture = _Arcs(ax, head, positions, found, loops, drawn, two_sided, look, shown.asked(head))
    fitted(ax, picture.place)
    if look.legend:
        add_line_key(ax, look.pen)


@dataclass(eq=False)
class _Arcs:
    """An arc diagram, whose heights are those of the axes."""

    ax: Axes
    head: AttentionGraph
    positions: Positions
    found: PlacedEdges
    loops: PlacedEdges
    drawn: list[PathCollection]
    two_sided: bool
    look: Look
    asked: list[Node]

    def __post_init__(self) -> None:
        self.named = layouts.node_labels(self.head)
        texts = [*self.named.values(), *["<sink>"] * (SINK in self.positions)]
        style = text_style(texts)
        self.texts = Texts(lambda: self.ax.text(0, 0, "", gid="gattn-label", **style))
        self.sides = _Sides(self.ax, self.head, self.positions)
        self.mark = mark_row(self.ax, self.head, self.positions)
        self.notes = _write_direction(self.ax, self.look.wording, self.two_sided)

    def place(self) -> None:
        """Fit the labels, the limits and the loops into the axes."""
        labels, pitch = self._place_row()
        band = labels.extent + 10 if self.look.labels else 4.0
        lift = band / 2 if self.two_sided else 0.0
        under = self.sides.place(band)
        unit = self._set_height(band + under)
        length = min(_LOOP, 5 + 1.5 * pitch)
        size = min(0.8 * length / pitch, 0.45), length * unit
        up = np.tile([0.0, 1.0], (len(self.loops.start), 1))
        self.drawn[1].set_paths(curves.loops(self.loops.start, up, size))
        for lines, rise in zip(self.drawn, (lift, lift, -lift), strict=True):
            lines.set_transform(lifted(self.ax, rise))
        if self.look.labels:
            self._write_row(labels)
        if self.mark is not None:
            self.mark.set_transform(lifted(self.ax, lift - 2.5))

    def _place_row(self) -> tuple[Labels, float]:
        """Fit the labels and set the horizontal limits; tell how many points apart tokens stand."""
        x = [place[0] for place in self.positions.values()] or [0.0]
        left, right = min(x) - 0.5, max(x) + 0.5
        room, high = points(self.ax)
        labels = self._fitted(room / (right - left), _REACH * high)
        overhang = labels.overhang if self.look.labels else 0.0
        pitch = max((room - overhang) / (right - left), 0.1)
        self.ax.set_xlim(left - overhang / pitch, right)
        return labels, pitch

    def _fitted(self, pitch: float, reach: float) -> Labels:
        """Fit the labels, those of queries turned as far as those of keys."""
        sides = layouts.arc_sides(self.head)
        rotations: tuple[int, ...] = (0, 90) if self.two_sided else (0, 45, 90)
        while True:
            found = [
                fit(
                    {node: self.named[node] for node in nodes},
                    apart * pitch,
                    rotations=rotations,
                    reach=reach,
                    first=self.asked,
                )
                for nodes, apart in sides
            ]
            most = max(labels.rotation for labels in found)
            if all(labels.rotation == most for labels in found):
                break
            rotations = tuple(turn for turn in rotations if turn >= most)
        if len(found) == 1:
            return found[0]
        keys, queries = found
        return keys.beside(queries, [pitch * self.positions[node][0] for node in self.named])

    def _set_height(self, band: float) -> float:
        """Fit arcs and labels into the axes; tell how many data units a point is."""
        height = points(self.ax)[1]
        spans = np.abs(self.found.end - self.found.start)[:, 0]
        top = 1.03 * max(float(spans.max(initial=0.0)) / 2, 0.1 * len(self.positions), 0.8)
        sides = 1 + self.two_sided
        rise = sides * top / max(height - band, 0.2 * height)
        note = max(_NOTE * float(note.get_fontsize()) for note in self.notes)
        over = 0.0
        if self._reach_of_notes() > top - note * rise:
            rise = sides * top / max(height - band - sides * note, 0.2 * height)
            over = note * rise
        below, above = (band * rise, top + over)
        if self.two_sided:
            below = above = top + over + band / 2 * rise
        self.ax.set_ylim(-below, above)
        return rise

    def _reach_of_notes(self) -> float:
        """Find how high, or low, an arc comes where the notes stand, at the left."""
        left, right = self.ax.get_xlim()
        wide = max(width_of(note.get_text()) * float(note.get_fontsize()) for note in self.notes)
        end = left + (right - left) * min(wide / points(self.ax)[0], 1.0)
        middle = (self.found.start + self.found.end)[:, 0] / 2
        half = np.abs(self.found.end - self.found.start)[:, 0] / 2
        away = np.clip(middle - end, 0, None)
        return float(np.sqrt(np.clip(half**2 - away**2, 0, None)).max(initial=0.0))

    def _write_row(self, labels: Labels) -> None:
        slanted = labels.rotation == 45
        style = {
            "transform": lifted(self.ax, 0.0 if self.two_sided else -5.0),
            "ha": "right" if slanted else "center",
            "va": "center" if self.two_sided else "top",
            "rotation": labels.rotation,
            "rotation_mode": "anchor" if slanted else "default",
            "size": labels.size,
        }
        shown = [*labels.texts, *["<sink>"] * (SINK in self.positions)]
        named = zip(self.positions.values(), shown, strict=True)
        self.texts.show({"position": at, "text": text} | style for at, text in named if text)


class _Sides:
    """Names the keys and the queries of cross-attention, each by a line below them."""

    def __init__(self, ax: Axes, head: AttentionGraph, positions: Positions) -> None:
        self._ax = ax
        self._found: list[tuple[Line2D, Text]] = []
        if not head.graph.is_bipartite:
            return
        for name, nodes in zip(("keys", "queries"), layouts.ends(head), strict=True):
            x = [positions[node][0] for node in nodes]
            if x:
                self._add(name, min(x) - 0.4, max(x) + 0.4)

    def _add(self, name: str, left: float, right: float) -> None:
        line = Line2D([left, right], [0, 0], color="0.5", lw=0.8, clip_on=False, gid="gattn-sides")
        self._ax.add_artist(line)
        style: dict[str, Any] = {"size": small_size(), "alpha": 0.75, **text_style([name])}
        text = self._ax.text((left + right) / 2, 0, name, ha="center", va="top", **style)
        self._found.append((line, text))

    def place(self, band: float) -> float:
        """Move below the labels; tell how many points this takes."""
        for line, text in self._found:
            line.set_transform(lifted(self._ax, -band))
            text.set_transform(lifted(self._ax, -band - 2))
        return 1.4 * small_size() + 3 if self._found else 0.0


def _write_direction(ax: Axes, wording: Wording, two_sided: bool) -> list[Text]:
    notes = [ax.text(0, 1, wording.rightward, ha="left", va="top", **note_style(ax))]
    if two_sided:
        notes.append(ax.text(0, 0, wording.leftward, ha="left", va="bottom", **note_style(ax)))
    return notes
