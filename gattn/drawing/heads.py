"""Pictures of all heads of a trace at a glance."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D

from gattn.drawing.colours import Scale, colour_map
from gattn.drawing.frame import POINTS_PER_INCH, add_colour_bar, shown_text
from gattn.drawing.labels import font_size, text_style
from gattn.drawing.matrix import Cells, add_sink, block_size, cells, draw_cells
from gattn.drawing.shown import all_of, largest_of, share_of
from gattn.drawing.text import width, wrapped
from gattn.errors import SelectionError
from gattn.head import AttentionGraph
from gattn.trace import AttentionTrace, Stack

_CELLS_PER_INCH = 60
_STEP = 1.25
_MARGINS = {"left": 0.75, "right": 0.95, "top": 0.95, "bottom": 0.15}
_GROUPS = 0.25
"""The height in inches of the names of key-value heads."""
_WIDEST = 14.0


class GridFigure(Figure):
    """A figure without pyplot that a notebook shows where it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def draw_heads(
    trace: AttentionTrace,
    *,
    stack: str | None = None,
    cmap: str | Colormap | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw every head of a trace as a small matrix: layers are rows, heads are columns.

    In each matrix rows are queries and columns keys, a sink on the right, and every kept edge is
    shown. All share one scale from 0 to 1 (further where attention exceeds 1, and from -1 where it
    is signed). A long text is shown in blocks, each by its largest attention, and the figure says
    so. With grouped queries, a line above the heads that share a key-value head names it.

    Parameters
    ----------
    trace : AttentionTrace
        The trace.
    stack : str, optional
        The stack to draw; all of them, one below the other, where not given.
    cmap : str or Colormap, optional
        The colours.
    figure : Figure, optional
        Where to draw. By default a new figure that pyplot does not know: a notebook shows it where
        it is the last value of a cell, and nothing has to be closed. Give ``plt.figure()`` for a
        window with ``plt.show()``.

    Returns
    -------
    Figure
        The figure; never shown, saved or closed here.

    Raises
    ------
    SelectionError
        Where there is no such stack, or nothing to draw.
    """
    stacks = [trace[stack]] if stack is not None else list(trace.stacks.values())
    stacks = [one for one in stacks if one.heads]
    if not stacks:
        raise SelectionError("There is nothing to draw: this trace holds no heads.")
    columns = max(len(one.head_numbers) for one in stacks)
    wanted_width, wanted_heights = _size(stacks, columns)
    if figure is None:
        figure = GridFigure(figsize=(wanted_width, sum(wanted_heights)))
    wide, height = (float(side) for side in figure.get_size_inches())
    heights = [height * one / sum(wanted_heights) for one in wanted_heights]
    scale = Scale.of(*(head for one in stacks for head in one.values()))
    cmap = colour_map(cmap, is_signed=scale.is_signed, is_area=True)
    parts: Sequence[Figure | SubFigure] = [figure]
    if len(stacks) > 1:
        below = figure.subfigures(len(stacks), 1, squeeze=False, height_ratios=heights)
        parts = below.ravel().tolist()
    for one, part, tall in zip(stacks, parts, heights, strict=True):
        place = _Place(part, wide, tall, _top(one))
        most = place.most_cells(len(one.layers), columns)
        _draw_stack(place, one, columns, scale, cmap)
        _write(place, _title(trace, one), _caption(one, most))
    return figure


def _size(stacks: Sequence[Stack], columns: int) -> tuple[float, list[float]]:
    """Find the width of the figure and the heights of its stacks, in inches."""
    room = _WIDEST - _MARGINS["left"] - _MARGINS["right"]
    step = min(_STEP, room / columns)
    wide = max(5.0, _MARGINS["left"] + _MARGINS["right"] + step * columns)
    margins = [_top(one) + _MARGINS["bottom"] for one in stacks]
    rows = [len(one.layers) for one in stacks]
    return wide, [max(2.4, margin + step * row) for margin, row in zip(margins, rows, strict=True)]


def _top(stack: Stack) -> float:
    return _MARGINS["top"] + _GROUPS * bool(_groups(stack))


def _groups(stack: Stack) -> list[tuple[int, int, int]]:
    """Find the runs of columns that share a key-value head: the head, first and last column.

    There are none where queries are not grouped, or not alike in all layers.
    """
    read = {place: head.key_value_head for place, head in stack.items()}
    columns = [{read[place] for place in read if place[1] == head} for head in stack.head_numbers]
    if any(len(found) > 1 for found in columns):
        return []
    runs = groupby(range(len(columns)), lambda column: next(iter(columns[column])))
    listed = [(number, list(run)) for number, run in runs]
    return [(number, run[0], run[-1]) for number, run in listed if number is not None]


@dataclass(frozen=True)
class _Place:
    """A part of a figure, `width` by `height` inches, its heads `top` inches below its edge."""

    part: Figure | SubFigure
    width: float
    height: float
    top: float

    def grid(self, rows: int, columns: int) -> GridSpec:
        return self.part.add_gridspec(
            rows,
            columns,
            left=_MARGINS["left"] / self.width,
            right=1 - _MARGINS["right"] / self.width,
            top=1 - self.top / self.height,
            bottom=_MARGINS["bottom"] / self.height,
            wspace=0.1,
            hspace=0.1,
        )

    def most_cells(self, rows: int, columns: int) -> int:
        down = (self.height - self.top - _MARGINS["bottom"]) / rows
        return max(16, int(_CELLS_PER_INCH * min(self.pitch(columns), down)))

    def pitch(self, columns: int) -> float:
        return (self.width - _MARGINS["left"] - _MARGINS["right"]) / columns

    def key_axes(self) -> Axes:
        long = min(1.5, self.height - self.top - _MARGINS["bottom"])
        bottom = (self.height - self.top - long) / self.height
        place = (1 - 0.75 / self.width, bottom, 0.09 / self.width, long / self.height)
        return self.part.add_axes(place)


def _draw_stack(place: _Place, stack: Stack, columns: int, scale: Scale, cmap: Colormap) -> None:
    grid = place.grid(len(stack.layers), columns)
    most = place.most_cells(len(stack.layers), columns)
    size = 0.8 * font_size()
    aside: dict[str, Any] = {"rotation": 0, "ha": "right", "va": "center"}
    tops = []
    for row, layer in enumerate(stack.layers):
        for column, head in enumerate(stack.head_numbers):
            ax = place.part.add_subplot(grid[row, column])
            _clear(ax)
            if row == 0:
                tops.append(ax)
            if column == 0:
                ax.set_ylabel(f"layer {layer}", size=size, **aside)
            if (layer, head) in stack.heads:
                draw_cells(ax, _thumbnail(stack[layer, head], most), cmap, scale.norm)
    room = place.pitch(columns) * POINTS_PER_INCH
    _name_heads(tops, stack.head_numbers, room)
    _name_groups(place, tops, _groups(stack), room)
    add_colour_bar(ScalarMappable(scale.norm, cmap), scale.ticks, cax=place.key_axes())


def _name_heads(axes: Sequence[Axes], heads: Sequence[int], room: float) -> None:
    """Write "head 3" above each column, or where these do not fit, "head" once and numbers."""
    size = 0.8 * font_size()
    names = [f"head {head}" for head in heads]
    if not _fits(names, room, size):
        _write_aside(axes[0], "head", 4, size)
        names = [str(head) for head in heads]
    for ax, name in zip(axes, names, strict=True):
        ax.set_title(name, size=size, pad=4)


def _name_groups(
    place: _Place, axes: Sequence[Axes], groups: Sequence[tuple[int, int, int]], room: float
) -> None:
    """Draw a line above the columns that share a key-value head, and name it."""
    if not groups:
        return
    size = 0.8 * font_size()
    line = 4 + 1.6 * size
    narrowest = room * min(last - first + 1 for _, first, last in groups)
    names = [f"key-value head {number}" for number, _, _ in groups]
    if not _fits(names, narrowest, size):
        _write_aside(axes[0], "key-value", line + 3, size)
        names = [str(number) for number, _, _ in groups]
    for name, (_, first, last) in zip(names, groups, strict=True):
        for column in (first, last):
            axes[column].apply_aspect()
        left, right = axes[first].get_position(), axes[last].get_position()
        x, y = (left.x0, right.x1), left.y1 + line / POINTS_PER_INCH / place.height
        style = {"color": mpl.rcParams["text.color"], "linewidth": 0.8, "alpha": 0.75}
        place.part.add_artist(Line2D(x, (y, y), transform=place.part.transSubfigure, **style))
        above = y + 3 / POINTS_PER_INCH / place.height
        place.part.text(sum(x) / 2, above, name, ha="center", va="baseline", size=size)


def _fits(names: Sequence[str], room: float, size: float) -> bool:
    return (max(map(width, names)) + 0.5) * size <= room


def _write_aside(ax: Axes, text: str, up: float, size: float) -> None:
    """Write left of axes, some points above their top."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    ax.annotate(text, (0, 1), (-4, up), ha="right", va="baseline", size=size, **place)


def _thumbnail(head: AttentionGraph, most: int) -> Cells:
    found = cells(head, np.arange(head.graph.num_edges), head.attention, most)
    return add_sink(found, head, np.arange(head.graph.num_queries))


def _clear(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.patch.set_visible(False)
    ax.spines[:].set_visible(False)


def _title(trace: AttentionTrace, stack: Stack) -> str:
    graph = next(iter(stack.values())).graph
    tokens = f"{graph.num_tokens} tokens"
    if graph.is_bipartite or graph.num_queries != graph.num_keys:
        tokens = f"{graph.num_queries} queries, {graph.num_keys} keys"
    if trace.generated and stack.name == "decoder":
        tokens += f", {trace.generated} generated"
    name = stack.name if len(trace.stacks) > 1 else ""
    return " · ".join(filter(None, [shown_text(trace.model), shown_text(name), tokens]))


def _caption(stack: Stack, most: int) -> str:
    graphs = list(stack.values())
    kept = sum(graph.graph.num_edges for graph in graphs)
    total = sum(int(graph.total_edges.sum()) for graph in graphs)
    caption = all_of(total)
    if kept < total:
        mass = sum(float(graph.kept_mass.sum()) for graph in graphs)
        whole = sum(float(graph.total_mass.sum()) for graph in graphs)
        caption = f"{kept:,} of {total:,} edges" + share_of(mass, whole)
    caption += "; rows are queries, columns keys"
    if any(graph.sink is not None for graph in graphs):
        caption += ", the last one the sink"
    if not _groups(stack) and any(graph.key_value_head is not None for graph in graphs):
        caption += "; key-value heads differ between layers"
    return caption + largest_of(block_size(graphs[0], most))


def _write(place: _Place, title: str, caption: str) -> None:
    small = 0.75 * font_size()
    caption = wrapped(caption, (place.width - 0.3 - _MARGINS["left"]) * POINTS_PER_INCH / small)
    for text, down, size in ((title, 0.14, font_size()), (caption, 0.38, small)):
        place.part.text(
            _MARGINS["left"] / place.width,
            1 - down / place.height,
            text,
            ha="left",
            va="top",
            size=size,
            alpha=0.75 if text is caption else 1.0,
            **text_style([text]),
        )
