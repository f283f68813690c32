"""Pictures of nodes and edges anywhere, with labels that touch nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from numpy.typing import NDArray

from gattn.drawing.canvas import curves, fonts, layouts
from gattn.drawing.canvas.colours import ground
from gattn.drawing.canvas.curves import Points
from gattn.drawing.canvas.fitting import Fitting, Texts, fitted, lifted, slot
from gattn.drawing.canvas.frame import clear
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import (
    font_size,
    smallest,
    text_style,
    widest_of,
    widths_of,
)
from gattn.drawing.canvas.layouts import Node, Positions
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.shown import Shown
from gattn.drawing.one_head.look import Look, Wording
from gattn.drawing.one_head.marks import mark_nodes
from gattn.drawing.one_head.placed_edges import PlacedEdges, say_direction
from gattn.drawing.one_head.sides import Side, Sides
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK
from gattn.names.text import numbered, visible

_GAP, _LOOP = 4.0, 14.0
_FEW = 60
"""The most nodes at positions of one's own whose labels are not numbered."""
_MANY = 100
"""From how many nodes on all labels stand beside their nodes, or nowhere."""
_SMALLEST, _LARGEST = 1.5, 6.0
"""The radius of nodes in points."""
_SHORTEST_LOOP = 7.0
"""How far loops lead from nodes at least, in points."""
_NESTED = 14
"""By how many loops, one within the other, the place that one takes is looked at."""
_POINTS = 120
"""How many points of an edge are looked at, to place labels where few edges lead."""
_WAYS = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
"""From the middle of a line to its sides, in half its width."""
_WITHIN = np.array([(a, b, 6 - a - b) for a in range(7) for b in range(7 - a)]) / 6
"""Points within a triangle, as shares of its corners."""
_BESIDE, _BESIDE_LOOPS = (0.32, 0.2), (0.45, 0.35)
"""The most of width and height that is left to labels, and to labels beyond loops."""
_SEEN = 0.28
"""The radius of nodes, as a share of the shortest edge, at which it is seen between them."""


def draw_free(
    ax: Axes, head: AttentionGraph, shown: Shown, look: Look, positions: Positions
) -> None:
    """Draw tokens where `positions` says, edges bent to the left with an arrowhead."""
    split = is_split(positions)
    found = PlacedEdges.of(head, shown, positions, split=split)
    picture = FreeGraph(ax, positions, found, look.pen, look.wording.rightward)
    if look.labels:
        named = free_labels(head, split=split)
        picture.name(named if len(named) <= _FEW else with_numbers(named))
    mark_nodes(ax, head, positions, split=split)
    fitted(ax, picture.place)
    if look.legend:
        add_line_key(ax, look.pen)


class FreeGraph:
    """Nodes at places of their own, and edges bent to the left, with an arrowhead at the query.

    Parameters
    ----------
    ax : Axes
        The axes.
    positions : dict of node to (x, y)
        Where all nodes lie.
    found : PlacedEdges
        The edges.
    pen : Pen
        Their colours and widths.
    way : str
        Which way they run.
    """

    def __init__(
        self,
        ax: Axes,
        positions: Positions,
        found: PlacedEdges,
        pen: Pen,
        way: str = Wording.rightward,
    ) -> None:
        self._ax, self._positions, self._pen = ax, positions, pen
        self._places = np.array(list(positions.values())).reshape(-1, 2)
        clear(ax)
        ax.set_aspect("equal", adjustable="box")
        rest, self._loops = found[~found.is_loop], found[found.is_loop]
        bows = curves.bows(rest.start, rest.end)
        self._edges = pen.draw(ax, bows, rest.attention, rest.kind)
        loops = self._loops
        self._bows = curves.along(bows, _POINTS)
        self._drawn = pen.draw(ax, curves.bows(loops.start, loops.end), loops.attention, loops.kind)
        self._opens = curves.openings(loops.start, rest.start, rest.end)
        self._lengths = np.hypot(*(rest.end - rest.start).T)
        self._ends, self._arrivals = rest.end, curves.bow_arrivals(rest.start, rest.end)
        self._heads = pen.draw_arrowheads(ax, rest.end, self._arrivals, rest.attention, rest.kind)
        say_direction(ax, rest, way)
        self._sized: list[tuple[PathCollection, Callable[[float], float]]] = []
        self._texts: Texts | None = None
        self._named: dict[Node, str] = {}
        self._chief = 0
        self._tips: dict[tuple[float, ...], Points] = {}

    def add_nodes(self, drawn: PathCollection, size: Callable[[float], float]) -> None:
        """Let markers have a size that follows from the radius of nodes in points."""
        self._sized.append((drawn, size))

    def name(self, named: Mapping[Node, str], chief: int = 0) -> None:
        """Write labels, those that come first before others; the first `chief` at any price."""
        self._chief = chief
        self._named = {n: visible(text, has_glyph=fonts.has_glyph) for n, text in named.items()}
        style = text_style(list(self._named.values())) | {"ha": "center", "va": "center"}
        ax, back = self._ax, ground(self._ax)
        self._texts = Texts(lambda: ax.text(0, 0, "", gid="gattn-label", bbox=back, **style))
        self._lines = LineCollection(
            [], colors=mpl.rcParams["text.color"], linewidths=0.5, clip_on=False,
            gid="gattn-leaders",
        )  # fmt: skip
        ax.add_collection(self._lines, autolim=False)

    def place(self) -> None:
        """Fit places, loops, nodes and labels into the axes."""
        unit = self._set_limits()
        radius = radius_of(self._places / unit, self._lengths / unit) if self._sized else 0.0
        for drawn, size in self._sized:
            drawn.set_sizes([size(radius)])
        length = min(_LOOP, 0.1 * min(slot(self._ax)), _loop_length(self._places / unit))
        wide, high = 0.6 * length * unit, (length + radius) * unit
        loops = [
            curves.loops(self._loops.start, self._opens, (share * wide, share * high))
            for share in np.linspace(1, 0, _NESTED, endpoint=False)
        ]
        self._drawn.set_paths(loops[0])
        places = map(tuple, self._loops.start.tolist())
        self._tips = dict(zip(places, self._opens * (length + radius), strict=True))
        far = np.maximum(np.hypot(*self._arrivals.T), 1e-12)[:, None]
        self._heads.set_offsets(self._ends - self._arrivals / far * radius * unit)
        if self._texts is not None:
            inside = np.concatenate([curves.along(some) for some in loops])
            self._write(self._texts, unit, radius, inside)

    def _set_limits(self) -> float:
        """Leave room around the nodes at equal scales; tell how many data units a point is."""
        room = np.array(slot(self._ax))
        places = self._places if len(self._places) else np.zeros((1, 2))
        low, high = places.min(0), places.max(0)
        middle, extent = (low + high) / 2, high - low
        beside = widest_of(self._named.values()) * font_size(), _LOOP
        around = 2 * (np.array(beside) + _LARGEST + _GAP)
        most = _BESIDE_LOOPS if len(self._loops.start) else _BESIDE
        free = np.maximum(room - np.minimum(around, most * room), 20)
        unit = max(*(extent / free).tolist(), 1e-9)
        self._ax.set_xlim(middle[0] - room[0] * unit / 2, middle[0] + room[0] * unit / 2)
        self._ax.set_ylim(middle[1] - room[1] * unit / 2, middle[1] + room[1] * unit / 2)
        return float(unit)

    def _ink(self, unit: float, corner: Points) -> Points:
        """List points, in points, all over the lines of edges and their arrowheads."""
        half = np.repeat(self._edges.get_linewidth(), _POINTS)[:, None] / 2
        middle = (self._bows - corner) / unit
        tips = (np.asarray(self._heads.get_offsets()) - corner) / unit
        triangles = np.array([path.vertices for path in self._heads.get_paths()]).reshape(-1, 3, 2)
        within = np.einsum("sk,ekx->esx", _WITHIN, triangles) * self._pen.thickness(self._ax)
        heads = (tips[:, None] + within).reshape(-1, 2)
        return np.concatenate([*(middle + half * way for way in _WAYS), heads])

    def _write(self, texts: Texts, unit: float, radius: float, loops: Points) -> None:
        """Write the labels that have room, and lines to those that stand away from their nodes."""
        corner = np.array([self._ax.get_xlim()[0], self._ax.get_ylim()[0]])
        ink, loops = self._ink(unit, corner), (loops - corner) / unit
        size, found = self._sides(unit, radius, ink, loops)
        shown, whole = sum(side is not None for side in found), len(found)
        lacks = f"labels of {shown} of {whole} nodes have room" * (shown < whole)
        Fitting.of(self._ax).note("labels", lacks)
        written = [(node, side) for node, side in zip(self._named, found, strict=True) if side]
        texts.show(
            {
                "position": self._positions[node],
                "text": self._named[node],
                "size": size,
                "transform": lifted(self._ax, side.offset[1], side.offset[0]),
            }
            for node, side in written
        )
        self._lines.set_segments(
            [side.line * unit + corner for _, side in written if side.line is not None]
        )

    def _sides(
        self, unit: float, radius: float, edges: Points, loops: Points
    ) -> tuple[float, list[Side | None]]:
        """Place the labels, in the size in which most have room; `edges`, `loops` in points."""
        corner = np.array([self._ax.get_xlim()[0], self._ax.get_ylim()[0]])
        own = np.array([self._positions[node] for node in self._named]).reshape(-1, 2)
        tips = np.array([self._tips.get(tuple(place), (0.0, 0.0)) for place in own.tolist()])
        above = (own[:, 1] * 2 > sum(self._ax.get_ylim())).tolist()
        gap = radius + 2.5 if self._sized else _GAP
        widths = widths_of(list(self._named.values()))
        has_few = len(own) <= _MANY
        found: list[Side | None] = []
        size = 0.0
        for size in (0.9 * font_size(), smallest())[: 1 + has_few]:
            half = np.stack([widths / 2, np.full_like(widths, 0.6)], axis=1) * size + 0.5
            nodes = (self._places - corner) / unit
            sides = Sides(nodes, slot(self._ax), radius, gap, edges, loops)
            found = sides.placed(
                (own - corner) / unit, half, above, tips, lines=has_few, chief=self._chief
            )
            if None not in found:
                break
        return size, found


def with_numbers(named: Mapping[Node, str]) -> dict[Node, str]:
    """Put each node's position before its text."""
    return {n: text if n == SINK else numbered(n, text) for n, text in named.items()}


def told_apart(named: Mapping[Node, str]) -> dict[Node, str]:
    """Put nodes' positions before their texts where some have the same."""
    return with_numbers(named) if len(set(named.values())) < len(named) else dict(named)


def given_positions(head: AttentionGraph, layout: Mapping[Any, Any]) -> Positions:
    """Read the positions of a head's nodes, in their order, from a dict like those of NetworkX."""
    nodes = free_labels(head, split=is_split(layout))
    if missing := [node for node in nodes if node not in layout]:
        raise SelectionError(
            f"The layout gives no position for the node {missing[0]!r}; it needs "
            "{node: (x, y)} for each node of head.to_networkx()."
        )
    placed: Positions = {}
    for node in nodes:
        try:
            place = np.asarray(layout[node], dtype=float)
        except (TypeError, ValueError):
            place = np.empty(0)
        if place.shape != (2,) or not np.isfinite(place).all():
            raise SelectionError(
                f"The position of the node {node!r} must be (x, y), two finite numbers, not "
                f"{layout[node]!r:.80}."
            )
        placed[node] = (float(place[0]), float(place[1]))
    return placed


def is_split(positions: Mapping[Any, Any]) -> bool:
    """Return whether a token stands in two places, as key and as query, as in `layouts.columns`."""
    return any(isinstance(node, tuple) and node[:1] == ("query",) for node in positions)


def free_labels(head: AttentionGraph, *, split: bool) -> dict[Node, str]:
    """Map each node to its token's text, the sink among them."""
    sink = {} if head.sink is None else {SINK: "<sink>"}
    return layouts.node_labels(head, split=split) | sink


def radius_of(places: Points, lengths: NDArray[np.float64]) -> float:
    """Choose the radius of nodes in points, so that few touch and the shortest edge is seen.

    Edges have these `lengths`; for one that is very short, nodes are not less than half as large.
    """
    if len(places) < 2:
        return _LARGEST
    usual = np.clip(0.3 * np.quantile(_nearest(places), 0.3), _SMALLEST, _LARGEST)
    seen = _SEEN * lengths.min(initial=np.inf)
    return float(max(min(usual, seen), usual / 2, _SMALLEST))


def _loop_length(places: Points) -> float:
    """Choose how far loops lead from nodes, in points: not beyond most of their neighbours."""
    if len(places) < 2:
        return _LOOP
    return max(_SHORTEST_LOOP, 0.8 * float(np.median(_nearest(places))))


def _nearest(places: Points) -> NDArray[np.float64]:
    """Return how far each place is from the nearest other one."""
    from scipy.spatial import cKDTree

    return np.asarray(cKDTree(places).query(places, k=2)[0])[:, 1]
