"""The layouts of effects: bars, heatmaps of heads or of edges, arcs, and all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.curves import half_ellipses, loops
from gattn.drawing.canvas.fitting import Fitting, fitted, pitch, points, room
from gattn.drawing.canvas.frame import name_side, new_axes, shown_text
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.labels import (
    font_size,
    shortened,
    smallest,
    text_style,
    widest_of,
    width_of,
)
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.sides import REACH, label_tokens, space_numbers
from gattn.drawing.layers.band_names import name_lowest, set_up_bands
from gattn.drawing.layers.bands import Band
from gattn.drawing.layers.layered import LayeredEdges, Line, draw_nodes, lay
from gattn.drawing.layers.numbered import layered_axes
from gattn.drawing.matrices.heatmaps import aspect_of, draw_heatmap, size_of_squares, write_cells
from gattn.drawing.results.effects.names import EditNames
from gattn.drawing.results.effects.sides import Sides
from gattn.names.text import wrapped

MOST_EDGES = 300
_CLOSE = 0.92
"""The line spacing within a name: closer than names of two bars stand."""
_MOST_BARS = 40
_WIDE = 12.0


@dataclass(frozen=True)
class Changes:
    """What all layouts need: the numbers, with their name and colours."""

    values: NDArray[np.float64]
    pen: Pen
    cmap: str | Colormap | None

    @classmethod
    def of(cls, table: pd.DataFrame, tokens: int, cmap: str | Colormap | None) -> Changes:
        """Read a table's estimates, or its effects."""
        column = "estimate" if "estimate" in table else "effect"
        values = table[column].to_numpy(dtype=np.float64)
        finite = values[np.isfinite(values)]
        top = float(np.abs(finite).max(initial=0)) or 1.0
        widest = max(1.5, 6.5 / max(tokens, 5) ** 0.25)
        scale = Scale(top, bool((finite < 0).any()), widest)
        metric = shown_text(str(table.attrs.get("metric", "")), limit=80)
        name = "estimated change" if column == "estimate" else "change"
        name = f"{name} in {metric}" if metric else name
        return cls(values, Pen(scale, colour_map(cmap, is_signed=scale.is_signed), name), cmap)

    def strongest(self, most: int) -> NDArray[np.int64]:
        """Choose at most so many rows that can be seen, the weakest first."""
        sizes = np.abs(np.nan_to_num(self.values))
        order = np.argsort(sizes, kind="stable")[-most:]
        found: NDArray[np.int64] = order[sizes[order] > 0]
        return found


def _draw_edits(
    table: pd.DataFrame, changes: Changes, sides: Sides, ax: Axes | None
) -> tuple[Axes, list[str]]:
    shown = np.arange(len(table))
    if len(table) > _MOST_BARS:
        shown = changes.strongest(_MOST_BARS)[::-1]
    ax = ax if ax is not None else new_axes(7.2, 1.4 + 0.26 * len(shown))
    values = changes.values[shown]
    rows = np.arange(len(shown))
    ax.barh(rows, values, color=changes.pen.colours(values), edgecolor="0.5", lw=0.4)
    ax.axvline(0, color=ax.xaxis.label.get_color(), lw=0.8)
    names = EditNames.of(table, shown)
    fitted(ax, partial(_name_edits, ax, names, shown, values))
    space_numbers(ax)
    ax.invert_yaxis()
    name_side(ax, "x", changes.pen.name)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax, [*strongest_said(changes, shown, "edits"), *names.said]


def _name_edits(
    ax: Axes, names: EditNames, rows: NDArray[np.int64], values: NDArray[np.float64]
) -> None:
    """Name the bars in a smaller font or shorter where there is no room, the largest bars first."""
    apart = pitch(ax, len(rows), "y")
    size = min(0.85 * font_size(), max(smallest(), apart / 1.15))
    texts, said = _told_apart(names, rows, REACH * room(ax)[0] / size, int(apart / (1.15 * size)))
    shown = _largest_apart(values, 1.15 * size / max(apart, 1e-9))
    style: dict[str, Any] = {"size": size, "linespacing": _CLOSE, **text_style(texts)}
    ax.set_yticks(shown, [texts[n] for n in shown], **style)
    few = f"{len(shown)} of {len(rows)} bars are named, the largest that have room"
    Fitting.of(ax).note("names", "; ".join([said] * bool(said) + [few] * (len(shown) < len(rows))))


def _largest_apart(values: NDArray[np.float64], least: float) -> list[int]:
    """Choose places of numbers, the largest first, that are so far apart at least."""
    found: list[int] = []
    for place in np.argsort(-np.abs(np.nan_to_num(values)), kind="stable").tolist():
        if all(abs(place - other) >= least - 1e-6 for other in found):
            found.append(place)
    return sorted(found)


def _told_apart(
    names: EditNames, rows: NDArray[np.int64], room: float, lines: int
) -> tuple[list[str], str]:
    """Write the names of rows in some lines, or so short that they read differently; say how."""
    for every, said in ((names.whole, ""), (names.brief, names.shared)):
        texts = [wrapped(name, room, width_of) for name in every]
        fit = widest_of(line for text in texts for line in text.split("\n")) <= room
        if fit and all(text.count("\n") < max(1, lines) for text in texts):
            return texts, said
    texts = shortened(names.brief, room)
    if len(set(texts)) == len(set(names.whole)):
        return texts, names.shared
    widest = max(width_of(f"{row}: ") for row in rows)
    shorter = shortened(names.brief, room - widest)
    texts = [f"{row}: {text}" for row, text in zip(rows, shorter, strict=True)]
    return texts, "bars are named by their rows in the table, from 0"


def _draw_heads(
    table: pd.DataFrame, changes: Changes, sides: Sides, ax: Axes | None
) -> tuple[Axes, list[str]]:
    layers, heads = (sorted(set(table[name].astype(int))) for name in ("layer", "head"))
    values = np.full((len(layers), len(heads)), np.nan)
    for layer, head, value in zip(table["layer"], table["head"], changes.values, strict=True):
        values[layers.index(layer), heads.index(head)] = value
    if ax is None:
        ax = new_axes(*size_of_squares(*values.shape))
    draw_heatmap(ax, values, changes.pen.name, changes.cmap, aspect=aspect_of(values.shape))
    write_cells(ax, values, ax.images[-1].to_rgba(np.ma.masked_invalid(values)))
    ax.set_xticks(range(len(heads)), [str(head) for head in heads])
    ax.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    ax.set(xlabel="head", ylabel="layer")
    ax.tick_params(length=0)
    return ax, []


def _draw_edge_matrix(
    table: pd.DataFrame, changes: Changes, sides: Sides, ax: Axes | None
) -> tuple[Axes, list[str]]:
    values = np.full((len(sides.queries), len(sides.keys)), np.nan)
    row, column = ({place: n for n, place in enumerate(x)} for x in (sides.queries, sides.keys))
    for query, key, value in zip(table["query"], table["key"], changes.values, strict=True):
        values[row[query], column[key]] = value
    if ax is None:
        ax = new_axes(*size_of_squares(*values.shape))
    draw_heatmap(ax, values, changes.pen.name, changes.cmap, aspect=aspect_of(values.shape))
    for side_of, name, texts in (("x", "key", sides.keys), ("y", "query", sides.queries)):
        label_tokens(ax, list(texts), list(texts.values()), side_of)
        ax.set(**{f"{side_of}label": name})
    missing = int(np.isnan(values).sum())
    return ax, ["hatched: no such edge, or not measured"] if missing else []


def _draw_arcs(
    table: pd.DataFrame, changes: Changes, sides: Sides, ax: Axes | None
) -> tuple[Axes, list[str]]:
    if ax is None:
        wide = min(13.0, max(5.0, 2.2 + 0.42 * len(sides)))
        ax = new_axes(wide, max(3.2, 0.42 * wide))
    chosen = changes.strongest(MOST_EDGES)
    bands = sides.bands()
    places = {
        side: {place: band.left + n for n, place in enumerate(band.tokens)}
        for side, band in zip(("key", "query"), _both(bands), strict=True)
    }
    ends = [np.array([row[place] for place in table[side]])[chosen] for side, row in places.items()]
    start, end = (np.stack([x, np.zeros(len(x))], axis=1).astype(float) for x in ends)
    is_loop = ends[0] == ends[1]
    up = np.tile([[0.0, 1.0]], (int(is_loop.sum()), 1))
    paths: NDArray[Any] = np.empty(len(chosen), dtype=object)
    reach = [float((end - start)[:, 0].max(initial=0)), float((start - end)[:, 0].max(initial=0))]
    high = max(reach[0] / 2, reach[1] / 2, 1.0)
    paths[~is_loop] = half_ellipses(start[~is_loop], end[~is_loop])
    paths[is_loop] = loops(start[is_loop], up, (0.5, 0.22 * high))
    changes.pen.draw(ax, list(paths), changes.values[chosen])
    low = -reach[1] / 2 if reach[1] else -0.06 * high
    ax.set(xlim=(-0.7, len(sides) - 0.3), ylim=(1.08 * low, 1.08 * max(reach[0] / 2, 0.3 * high)))
    nodes = sorted({x for row in places.values() for x in row.values()})
    ax.scatter(nodes, np.zeros(len(nodes)), s=10, color="0.5", zorder=3)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if sides.are_other:
        ax.tick_params(axis="x", length=0)
        name_lowest(ax, bands)
        ax.set_xlabel("keys on the left → queries on the right")
    else:
        label_tokens(ax, list(sides.keys), list(sides.keys.values()), "x")
        fitted(ax, partial(_say_directions, ax, two_sided=bool(reach[1])))
    _add_bar(ax, changes.pen)
    return ax, strongest_said(changes, chosen) or [f"{len(chosen):,} edges"] * (len(chosen) > 1)


def _say_directions(ax: Axes, *, two_sided: bool) -> None:
    """Write which way edges run, in as many lines as needed."""
    said = "above: key → query to the right" + "; below: to the left" * two_sided
    size = float(ax.xaxis.label.get_fontsize())
    ax.set_xlabel(wrapped(said, points(ax)[0] / size, width_of))


def _draw_edges_by_layer(
    table: pd.DataFrame, changes: Changes, sides: Sides, ax: Axes | None
) -> tuple[Axes, list[str]]:
    layers = range(int(table["layer"].min()), int(table["layer"].max()) + 1)
    bands = sides.bands(layers)
    of_keys, of_queries = _both(bands)
    ax = ax if ax is not None else layered_axes(len(sides), len(layers))
    lines = LayeredEdges(ax, changes.pen)
    order = changes.strongest(MOST_EDGES)
    drawn: dict[tuple[int, int, int], int] = {}
    for n in order:  # The strongest head of an edge comes last.
        layer, query, key = (int(table[name].iloc[n]) for name in ("layer", "query", "key"))
        drawn[layer, query, key] = n
    for (layer, query, key), n in drawn.items():
        depth = layer - layers[0]
        kind = "self" if query == key and not sides.are_other else "attention"
        ends = (*of_keys.place(key, depth), *of_queries.place(query, depth + 1))
        path, peak = lay(kind, *ends)
        name = f"{layer}.{table['head'].iloc[n]}"
        lines.add(Line(float(changes.values[n]), kind, path, peak, name))
    lines.draw()
    nodes = [
        (float(band.left + n), float(depth), True)
        for band in bands.values()
        for n in range(len(band.tokens))
        for depth in range(len(layers) + 1)
    ]
    draw_nodes(ax, nodes)
    set_up_bands(ax, bands, [sides.stack], labels=True)
    lines.name_strongest(12)
    _add_bar(ax, changes.pen)
    notes = strongest_said(changes, order)
    if len(drawn) < len(order):
        notes.append("each edge by its strongest head")
    notes.append("curves are named by their heads")
    return ax, notes


def _both(bands: Mapping[str, Band]) -> tuple[Band, Band]:
    """Return the keys and the queries, which may be the same."""
    found = list(bands.values())
    return found[0], found[-1]


def strongest_said(changes: Changes, chosen: NDArray[np.int64], what: str = "edges") -> list[str]:
    """Say how many changes are shown of how many, if these are not all, and what the others do."""
    count, every = len(chosen), len(changes.values)
    if count in (0, every):
        return []
    zeros, unknown = int((changes.values == 0).sum()), int((~np.isfinite(changes.values)).sum())
    if count < every - zeros - unknown:
        said = f"the {count:,} strongest of {every:,} {what}"
        return [said + f", {zeros:,} {'is' if zeros == 1 else 'are'} 0" * bool(zeros)]
    return [f"{count:,} of {every:,} {what}, the others 0" + " or not measured" * bool(unknown)]


def none_said(changes: Changes, what: str = "edges") -> list[str]:
    """Say that nothing changes, if so."""
    is_known = np.isfinite(changes.values)
    if changes.values[is_known].any():
        return []
    every, others = len(changes.values), " or not measured" * (not is_known.all())
    if every == 1:
        return ["the change is 0" if is_known.all() else "the change is not measured"]
    return [f"all {every:,} {what} are 0{others}" if is_known.any() else f"no {what} are measured"]


def _add_bar(ax: Axes, pen: Pen) -> None:
    add_colour_bar(ScalarMappable(pen.norm, pen.cmap), pen.name, ax, ticks=pen.scale.ticks)


LAYOUTS: Mapping[
    str,
    Callable[
        [pd.DataFrame, Changes, Sides, Axes | None],
        tuple[Axes, list[str]],
    ],
] = {
    "edits": _draw_edits,
    "heads": _draw_heads,
    "arcs": _draw_arcs,
    "matrix": _draw_edge_matrix,
    "layered": _draw_edges_by_layer,
}
