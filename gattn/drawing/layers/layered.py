"""Layers stacked: tokens side by side, the input below, edges as lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import ground, is_dark
from gattn.drawing.canvas.fitting import points, rewritten, usual_thickness
from gattn.drawing.canvas.keys import Entry
from gattn.drawing.canvas.labels import font_size, width_of
from gattn.drawing.canvas.pen import Pen

MIDDLE = 0.58
"""How high in a layer the stream after attention lies."""
_COLOURS = {
    "stream": {False: "#9aa0a6", True: "#7c8288"},
    "mlp": {False: "#a84300", True: "#f5a04a"},
    "path": {False: "#f3c13a", True: "#9a7a14"},
}
"""The colours of edges that are not attention, by whether the background is dark."""
_NAMES = {"stream": "stream", "mlp": "MLP", "path": "strongest\npaths"}
_SPOTS = np.array([0.42, 0.58, 0.34, 0.66, 0.27, 0.73, 0.2, 0.8])
_COURSE = np.linspace(0.0, 1.0, 49)
"""Where along an edge its name may stand but in the middle, and where the edge is looked for."""
_LOOKED_AT = 300
"""How many of the strongest curves names stay away from."""
MOST_HEADS = 3
"""How many heads of an edge are named."""
_NODE = 1.5
"""How far a name stays above or below a node, in points."""
_BESIDE = 2.0
"""How far names may reach beyond axes, in points, beside which there is the key."""
_OFF = 2.0
"""How far a name beside its line stays from it, in points."""
_HIDDEN, _ASIDE = 0.34, 0.03
"""The share of its line that a name may hide, and what one beside its line counts against it."""
_ORDER = {"stream": 0, "mlp": 1, "self": 2, "attention": 3}


@dataclass(frozen=True)
class Line:
    """An edge to draw.

    Parameters
    ----------
    size : float
        How much it carries.
    kind : "attention", "self", "stream" or "mlp"
        What it is; "self" is a token's attention to itself.
    path : Path
        Where it runs.
    peak : (float, float)
        Where its name may stand.
    name : str
        Its heads; "" if it has no name.
    heads : frozenset of str
        The heads that the name says, each of which is to be named once at least, if they are given.
    """

    size: float
    kind: str
    path: Path
    peak: tuple[float, float]
    name: str = ""
    heads: frozenset[str] = frozenset()


class LayeredEdges:
    """Collects edges, to be drawn the weakest first."""

    def __init__(self, ax: Axes, pen: Pen) -> None:
        self._ax, self.pen = ax, pen
        self._found: list[Line] = []
        self._bright: list[Line] = []

    def add(self, line: Line) -> None:
        """Add an edge."""
        self._found.append(line)

    def highlight(self, line: Line) -> None:
        """Let an edge stand out."""
        self._bright.append(line)

    def draw(self) -> None:
        """Draw all, by kind, then size."""
        dark = is_dark()
        found = sorted(self._found, key=lambda line: (_ORDER[line.kind], abs(line.size)))
        sizes = np.array([line.size for line in found])
        plain = {kind: _COLOURS[kind][dark] for kind in ("stream", "mlp")}
        pairs = zip(found, self.pen.colours(sizes), strict=True)
        colours = [plain.get(line.kind, colour) for line, colour in pairs]
        if self._bright:
            widths = self.pen.scale.widths(np.array([line.size for line in self._bright])) + 5.0
            self._add(self._bright, "paths", _COLOURS["path"][dark], linewidths=widths)
        self._add(found, "edges", colours)

    def _add(self, lines: list[Line], name: str, colours: Any, **style: Any) -> None:
        paths, sizes = [line.path for line in lines], [line.size for line in lines]
        style = {"edgecolors": colours, "clip_on": True, "gid": f"gattn-{name}"} | style
        self.pen.draw(self._ax, paths, sizes, **style)

    def name_strongest(
        self,
        count: int,
        texts: Callable[[], Sequence[tuple[float, float]]] = tuple,
        say: Callable[[frozenset[str]], None] = lambda _: None,
    ) -> None:
        """Name the heads of the strongest edges, where names do not overlap; say which.

        A name stands in the middle of its edge, along it or beside it, where it hides least of all
        edges, the strongest above all; on no node, not left of the axes, where layers are numbered,
        and not between the heights that `texts` gives, from low to high. Edges whose heads have no
        name yet come before those that repeat one.
        """
        rewritten(self._ax, partial(self._name, count, texts, say))

    def _name(
        self,
        count: int,
        texts: Callable[[], Sequence[tuple[float, float]]],
        say: Callable[[frozenset[str]], None],
    ) -> list[Text]:
        across, high = points(self._ax)
        low, top = self._ax.get_ylim()
        left, right = self._ax.get_xlim()
        unit = np.array([across / (right - left), high / (top - low)])
        lines = sorted(
            (line for line in self._found if line.name),
            key=lambda line: (abs(line.size), line.peak),
        )[::-1]
        ends = [np.asarray(line.path.vertices)[[0, -1]] for line in self._found]
        nodes = np.unique(np.concatenate([np.zeros((0, 2)), *ends]), axis=0)
        names = _Names(self._ax, unit, self._found, texts(), nodes)
        said: set[str] = set()
        for line in lines:
            if line.heads - said and names.write(line):
                said |= line.heads
        for line in lines[:count]:
            names.write(line)
        say(frozenset(said))
        return names.written


class _Names:
    """Writes names along curves where they meet no other name and no node.

    They stay away from other lines, the strongest above all, as far as they can.
    """

    def __init__(
        self,
        ax: Axes,
        unit: NDArray[np.float64],
        lines: Sequence[Line],
        texts: Sequence[tuple[float, float]],
        nodes: NDArray[np.float64],
    ) -> None:
        self._ax, self._unit, self._texts = ax, unit, texts
        self._nodes = nodes * unit
        self._left, self._right = (end * unit[0] for end in ax.get_xlim())
        self._size = 0.7 * font_size()
        self._lines = sorted(lines, key=lambda line: -abs(line.size))[:_LOOKED_AT]
        courses = [_points_of(line.path, _COURSE) * unit for line in self._lines]
        self._courses = np.array(courses).reshape(-1, len(_COURSE), 2)
        self._sizes = np.array([abs(line.size) for line in self._lines])
        self._taken = np.zeros((0, 3))
        self._tried: set[int] = set()
        self.written: list[Text] = []

    def write(self, line: Line) -> bool:
        """Write the name of a line, once; return whether it found room."""
        if id(line) in self._tried:
            return False
        self._tried.add(id(line))
        wide, high = (width_of(line.name) + 0.5) * self._size, 1.5 * self._size
        on = np.array([line.peak, *_points_of(line.path, _SPOTS)]) * self._unit
        aside = np.array([(wide / 2 + _OFF, 0), (0, high / 2), (0, -high / 2)])
        places = np.concatenate([on, *(on + beside for beside in (*aside, -aside[0]))])
        free = [
            (self._hidden(at, wide, high, line), at)
            for at in places
            if self._left < at[0] - wide / 2 < at[0] + wide / 2 < self._right + _BESIDE
            and not _is_near(at, self._nodes, wide / 2, high / 2 + _NODE)
            and not _is_near(at, self._taken[:, :2], (wide + self._taken[:, 2]) / 2, high)
            and not any(low < at[1] / self._unit[1] < top for low, top in self._texts)
        ]
        if not free:
            return False
        best = min(free, key=lambda one: one[0])[1]
        self._taken = np.vstack([self._taken, [*best, wide]])
        x, y = best / self._unit
        name = write_over(self._ax, x, y, line.name, gid="gattn-heads", va="center")
        self.written.append(name)
        return True

    def _hidden(self, at: NDArray[np.float64], wide: float, high: float, own: Line) -> float:
        """Weigh what a name hides: of its own line less than a third is nothing."""
        across, up = np.moveaxis(np.abs(self._courses - at), -1, 0)
        shares = ((across < wide / 2) & (up < high / 2)).mean(1)
        is_own = np.array([line is own for line in self._lines], dtype=bool)
        beside = _ASIDE * abs(own.size) * (not (is_own & (shares > 0)).any())
        shares[is_own] = np.maximum(shares[is_own] - _HIDDEN, 0)
        return float(self._sizes @ shares + beside)


def _points_of(path: Path, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find the points (shares, 2) at shares of a curve's parameter, or of a straight line."""
    corners = np.asarray(path.vertices, dtype=np.float64)
    s = shares[:, None]
    if len(corners) < 4:
        return np.asarray((1 - s) * corners[0] + s * corners[-1])
    a, b, c, d = corners[-4:]
    points: NDArray[np.float64] = (
        (1 - s) ** 3 * a + 3 * (1 - s) ** 2 * s * b + 3 * (1 - s) * s**2 * c + s**3 * d
    )
    return points


def _is_near(
    spot: NDArray[np.float64], others: NDArray[np.float64], wide: Any, high: float
) -> bool:
    """Return whether any of some points lies in a box around a spot."""
    across, up = np.abs(others - spot).T
    return bool(((across < wide) & (up < high)).any())


def write_over(ax: Axes, x: float, y: float, text: str, **style: Any) -> Text:
    """Write a small text that stays readable over lines."""
    return ax.text(
        x,
        y,
        text,
        size=0.7 * font_size(),
        ha="center",
        zorder=4,
        bbox=ground(ax, 0.12),
        **style,
    )


def heads_named(layer: int, heads: Mapping[int, float]) -> str:
    """Name the heads of an edge, the most important ones first: "2.1,2.0,2.3 + 5 more"."""
    if not heads:
        return ""
    most = ",".join(f"{layer}.{head}" for head in ranked(heads)[:MOST_HEADS])
    more = len(heads) - MOST_HEADS
    return f"{most} + {more} more" if more > 0 else most


def ranked(heads: Mapping[int, float]) -> list[int]:
    """Sort the heads of an edge, the most important ones first, those of NaN last."""
    return sorted(heads, key=lambda head: (isnan(heads[head]), -heads[head]))


def lay(
    kind: str, x: float, y: float, x_end: float, y_end: float, *, rise: float = 0.0
) -> tuple[Path, tuple[float, float]]:
    """Lay an edge, which goes straight up by `rise` first, and say where its middle is."""
    if kind == "stream":
        return Path([(x, y), (x_end, y_end)]), (x, (y + y_end) / 2)
    if rise:
        own, middle = lay(kind, x, y + rise, x_end, y_end)
        codes = [Path.MOVETO, Path.LINETO, *[Path.CURVE4] * 3]
        return Path(np.vstack([[(x, y)], np.asarray(own.vertices)]), codes), middle
    high = y_end - y
    if kind in ("self", "mlp"):
        out = 0.34 if kind == "self" else -0.34
        points = [(x, y), (x + out, y + 0.25 * high), (x + out, y + 0.75 * high), (x, y_end)]
        middle = (x + 0.75 * out, y + 0.5 * high)
    else:
        points = [(x, y), (x, y + 0.55 * high), (x_end, y + 0.45 * high), (x_end, y_end)]
        middle = ((x + x_end) / 2, y + 0.5 * high)
    return Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]), middle


def draw_nodes(ax: Axes, where: Sequence[tuple[float, float, bool]]) -> None:
    """Draw a dot at each (x, y), a larger one where a layer begins."""
    places = np.array(where, dtype=np.float64).reshape(-1, 3)
    ink = "white" if is_dark() else "0.2"
    shrink = min(1.0, 60 / max(len(np.unique(places[:, 0])), 1))
    thick = max(usual_thickness(), 1.0) ** 2
    sizes = np.where(places[:, 2] > 0, 14.0, 6.0) * shrink * thick
    style: dict[str, Any] = {"lw": 0, "color": ink, "zorder": 3, "clip_on": False}
    ax.scatter(places[:, 0], places[:, 1], s=sizes, gid="gattn-nodes", **style)


def key_of_kinds(pen: Pen, *kinds: str) -> list[Entry]:
    """Name the lines that are not attention, for a key."""
    dark = is_dark()
    return [
        (Line2D([], [], color=_COLOURS[kind][dark], lw=pen.scale.widest / 2), _NAMES[kind])
        for kind in kinds
    ]
