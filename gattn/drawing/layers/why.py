"""The largest pairs of parts of scores as paths in the text, from key to query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.path import Path

from gattn.analysis.circuits.measuring.measured import percent
from gattn.analysis.scores.taken_apart import Why
from gattn.checks import whole
from gattn.drawing.canvas.colours import Scale, colour_map, is_dark
from gattn.drawing.canvas.fitting import fitted, points, room
from gattn.drawing.canvas.fonts import has_glyph
from gattn.drawing.canvas.frame import LARGEST, describe, given_axes, name_side, new_axes
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import font_size, in_digits, shortened, text_style
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.sides import REACH, label_tokens
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.layers.layered import LayeredEdges, Line
from gattn.errors import SelectionError
from gattn.models.stream.writers.parts import Writer
from gattn.names.text import numbered, visible

Point: TypeAlias = tuple[float, float]

_MOST_TOKENS = 40

_LONGEST = 24
"""How many characters of the name of a part are written."""


@dataclass(frozen=True)
class Pair:
    """A pair of parts of an edge's score."""

    query: int
    key: int
    query_part: Writer
    key_part: Writer
    score: float

    def ends(self) -> list[tuple[Writer, int]]:
        """Return its parts, each with the token at which it was written."""
        return [(self.key_part, self.key), (self.query_part, self.query)]


@checks_given
def draw_why(
    found: Why,
    *,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    most: int = 4,
    edges: int = 3,
    cmap: str | Colormap | None = None,
    labels: bool = True,
) -> Axes:
    """Draw the largest pairs of parts of scores as paths in the text.

    Tokens stand from left to right, parts upwards in the order in which they wrote. A pair is a
    curve from the token and the part that wrote the key to the token and the part that wrote the
    query, with its score as width and colour; one below zero is dashed. The caption says which
    share of an edge's score its pairs are. The largest of each edge
    has its score as a number. Where the part of a head is split by the token that it read, a dotted
    line leads from there. In long texts only tokens on a path are shown.

    Parameters
    ----------
    found : Why
        The head, and the edges that are asked about, from `gattn.why`.
    most : int
        How many pairs of each edge to draw.
    edges : int
        How many edges, those with the most attention.

    Raises
    ------
    SelectionError
        If `most` or `edges` are not positive numbers.
    """
    most = whole("most", most, 1, SelectionError)
    chosen, every = _edges(found, whole("edges", edges, 1, SelectionError))
    of_edges = [_pairs(found, query, key, most) for query, key in chosen]
    pairs = [pair for some in of_edges for pair in some]
    rows = _rows(pairs)
    tokens = _tokens(found.tokens, pairs)
    ax = given_axes(ax, figsize)
    ax = ax if ax is not None else new_axes(*_size(len(tokens), len(rows)))
    scale = Scale(max(abs(pair.score) for pair in pairs) or 1.0, _is_signed(pairs), widest=4.0)
    pen = Pen(scale, colour_map(cmap, is_signed=scale.is_signed), "score")
    lines = LayeredEdges(ax, pen)
    named = {id(some[0]) for some in of_edges}
    ends = [_add(lines, pair, rows, list(tokens), id(pair) in named) for pair in pairs]
    top = max(path_top for *_, path_top in ends)
    ax.set(xlim=(-0.7, len(tokens) - 0.3), ylim=(-0.5, top + 0.35))
    lines.draw()
    is_split = _draw_sources(ax, pairs, rows, list(tokens))
    _mark(ax, {start for start, *_ in ends}, {end for _, end, _ in ends})
    add_line_key(ax, pen)
    _name_sides(ax, tokens, rows, labels=labels)
    some = f"{len(chosen):,} of {every:,} edges, those with the most attention"
    notes = [*[some] * (len(chosen) < every), _pairs_said(found, chosen, of_edges)]
    read = "dotted lines lead from the token that was read"
    _describe(ax, found, [*notes, *[read] * is_split])
    if labels:
        lines.name_strongest(len(of_edges))
    return ax


def _describe(ax: Axes, found: Why, notes: Sequence[str]) -> None:
    notes = ["curves lead from who wrote the key to who wrote the query", *notes]
    facts = {"computed_from": found.computed_from, "notes": found.notes}
    describe(ax, facts, f"why head {found.layer}.{found.head} attends", notes)


def _edges(found: Why, most: int) -> tuple[list[tuple[int, int]], int]:
    """Choose the edges with the most attention among those asked about; count these."""
    keys = range(len(found.tokens)) if found.key is None else found.key
    asked = [(i, j) for i in found.query for j in keys if found.scores[i, j] > -torch.inf]
    asked.sort(key=lambda edge: (-float(found.attention[edge]), edge))
    return asked[:most], len(asked)


def _pairs(found: Why, query: int, key: int, most: int) -> list[Pair]:
    """List the largest pairs of an edge's score."""
    matrix = found.among([query], [key]).matrix()
    values = matrix.to_numpy()
    one, other = (matrix[axis].to_numpy().tolist() for axis in ("query_part", "key_part"))
    order = np.argsort(-abs(values), axis=None, kind="stable")[:most].tolist()
    places = [divmod(place, values.shape[1]) for place in order]
    named = {str(writer): writer for writer in found.writers}
    return [
        Pair(query, key, named[one[a]], named[other[b]], float(values[a, b])) for a, b in places
    ]


def _pairs_said(
    found: Why, edges: Sequence[tuple[int, int]], of_edges: Sequence[Sequence[Pair]]
) -> str:
    """Say how many pairs are shown of all, and what share of the score of an edge they are."""
    each = " of each edge" * (len(edges) > 1)
    said = f"{len(of_edges[0]):,} of {len(found.writers) ** 2:,} pairs{each}"
    scores = [float(found.scores[edge]) for edge in edges]
    if not all(scores):
        return said
    sums = (sum(pair.score for pair in some) for some in of_edges)
    shares = sorted(total / score for total, score in zip(sums, scores, strict=True))
    ends = dict.fromkeys(percent(share, 0) for share in (shares[0], shares[-1]))
    return f"{said}, {' to '.join(ends)} of {'its' if each else 'the'} score"


def _is_signed(pairs: Sequence[Pair]) -> bool:
    return any(pair.score < 0 for pair in pairs)


def _row(part: Writer) -> str:
    """Name who wrote a part, whatever it read."""
    return str(replace(part, source=None))


def _rows(pairs: Sequence[Pair]) -> list[str]:
    """List who wrote the parts of some pairs, in the order in which they wrote."""
    used = {_row(part): part for pair in pairs for part, _ in pair.ends()}
    return sorted(used, key=lambda name: (*_time(used[name]), name))


def _time(part: Writer) -> tuple[float, int]:
    """Say when a part was written: its layer, and what comes first in a layer."""
    outside = {"embedding": -1.0, "given": -1.0}.get(part.kind, float("inf"))
    layer = outside if part.layer is None else float(part.layer)
    return layer, ("head", "bias", "mlp").index(part.kind) if part.layer is not None else 0


def _tokens(texts: Sequence[str], pairs: Sequence[Pair]) -> dict[int, str]:
    """Choose the tokens to show, by position."""
    if len(texts) <= _MOST_TOKENS:
        return dict(enumerate(texts))
    known = [(at, part.source) for pair in pairs for part, at in pair.ends()]
    ends = sorted({end for some in known for end in some if end is not None})
    return {n: numbered(n, visible(texts[n], has_glyph=has_glyph)) for n in ends}


def _size(tokens: int, rows: int) -> tuple[float, float]:
    return min(LARGEST, 2.6 + 0.42 * max(tokens, 5)), min(LARGEST, 2.6 + 0.4 * rows)


def _add(
    lines: LayeredEdges, pair: Pair, rows: Sequence[str], tokens: Sequence[int], is_named: bool
) -> tuple[Point, Point, float]:
    """Add the curve of a pair; return where it begins and ends, and how high it goes."""
    x, y = tokens.index(pair.key), rows.index(_row(pair.key_part))
    x_end, y_end = tokens.index(pair.query), rows.index(_row(pair.query_part))
    out = 0.55 if x == x_end else 0.0
    high = len(rows) + 0.4 + 2.0 * abs(x_end - x) / max(len(tokens), 5)
    points = [(x, y), (x - out, high), (x_end + out, high), (x_end, y_end)]
    peak = (x + x_end) / 2, 0.125 * (y + y_end) + 0.75 * high
    path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    name = in_digits(pair.score) if is_named else ""
    lines.add(Line(pair.score, "attention", path, peak, name))
    return (x, y), (x_end, y_end), peak[1]


def _name_sides(ax: Axes, tokens: dict[int, str], rows: list[str], *, labels: bool) -> None:
    if labels:
        label_tokens(ax, list(tokens), list(tokens.values()), "x")
    else:
        ax.set_xticks([])
    fitted(ax, partial(_name_rows, ax, rows))
    ax.tick_params(axis="y", length=0)
    name_side(ax, "y", "written by")
    ax.grid(axis="y", lw=0.5, alpha=0.4)
    ax.spines[:].set_visible(False)


def _name_rows(ax: Axes, rows: Sequence[str]) -> None:
    low, high = ax.get_ylim()
    size = min(font_size(), 0.9 * points(ax)[1] / (high - low))
    names = [visible(name, limit=_LONGEST, has_glyph=has_glyph) for name in rows]
    names = shortened(names, REACH * room(ax)[0] / size)
    ax.set_yticks(range(len(rows)), names, size=size, **text_style(names))


def _draw_sources(
    ax: Axes, pairs: Sequence[Pair], rows: Sequence[str], tokens: Sequence[int]
) -> bool:
    """Join what a head read to where it wrote; return whether parts are split by this."""
    ink = "white" if is_dark() else "0.2"
    ends = {(part, at) for pair in pairs for part, at in pair.ends() if part.source is not None}
    for part, at in sorted(ends, key=lambda end: (str(end[0]), end[1])):
        y, x = rows.index(_row(part)), [tokens.index(n) for n in (part.source, at)]
        ax.plot(x, [y, y], color=ink, lw=1.2, ls=(0, (1, 1.5)), gid="gattn-sources")
        ax.plot(x[:1], [y], "o", ms=5, mfc="none", mec=ink, gid="gattn-sources")
    return bool(ends)


def _mark(ax: Axes, keys: set[Point], queries: set[Point]) -> None:
    """Mark where curves begin, and where they arrive, from above."""
    ink = "white" if is_dark() else "0.2"
    for places, marker, size in ((keys, "o", 16), (queries, "v", 34)):
        x, y = np.array(sorted(places), dtype=float).T
        ax.scatter(x, y, s=size, marker=marker, lw=0, color=ink, zorder=3, gid="gattn-nodes")
