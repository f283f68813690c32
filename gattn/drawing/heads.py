"""Pictures of all heads of a trace at a glance."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, FigureBase
from matplotlib.gridspec import GridSpec

from gattn.drawing.colours import Scale, colour_map
from gattn.drawing.frame import POINTS_PER_INCH, add_colour_bar, shown_text
from gattn.drawing.labels import font_size, text_style
from gattn.drawing.matrix import Cells, add_sink, block_size, cells, draw_cells
from gattn.drawing.shown import all_of, largest_of, share_of
from gattn.drawing.text import wrapped
from gattn.errors import SelectionError
from gattn.head import AttentionGraph
from gattn.trace import AttentionTrace, Stack

_CELLS_PER_INCH = 60
_STEP = 1.25
_MARGINS = {"left": 0.75, "right": 0.95, "top": 0.95, "bottom": 0.15}
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
    so.

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
    width, height = (float(side) for side in figure.get_size_inches())
    heights = [height * one / sum(wanted_heights) for one in wanted_heights]
    scale = Scale.of(*(head for one in stacks for head in one.values()))
    cmap = colour_map(cmap, is_signed=scale.is_signed, is_area=True)
    parts: Sequence[FigureBase] = [figure]
    if len(stacks) > 1:
        below = figure.subfigures(len(stacks), 1, squeeze=False, height_ratios=heights)
        parts = below.ravel().tolist()
    for one, part, tall in zip(stacks, parts, heights, strict=True):
        place = _Place(part, width, tall)
        most = place.most_cells(len(one.layers), columns)
        _draw_stack(place, one, columns, scale, cmap)
        _write(place, _title(trace, one), _caption(one, most))
    return figure


def _size(stacks: Sequence[Stack], columns: int) -> tuple[float, list[float]]:
    """Find the width of the figure and the heights of its stacks, in inches."""
    room = _WIDEST - _MARGINS["left"] - _MARGINS["right"]
    step = min(_STEP, room / columns)
    rows = [len(one.layers) for one in stacks]
    margin = _MARGINS["top"] + _MARGINS["bottom"]
    width = max(5.0, _MARGINS["left"] + _MARGINS["right"] + step * columns)
    return width, [max(2.4, margin + step * row) for row in rows]


@dataclass(frozen=True)
class _Place:
    """A part of a figure, `width` by `height` inches."""

    part: FigureBase
    width: float
    height: float

    def grid(self, rows: int, columns: int) -> GridSpec:
        return self.part.add_gridspec(
            rows,
            columns,
            left=_MARGINS["left"] / self.width,
            right=1 - _MARGINS["right"] / self.width,
            top=1 - _MARGINS["top"] / self.height,
            bottom=_MARGINS["bottom"] / self.height,
            wspace=0.1,
            hspace=0.1,
        )

    def most_cells(self, rows: int, columns: int) -> int:
        across = (self.width - _MARGINS["left"] - _MARGINS["right"]) / columns
        down = (self.height - _MARGINS["top"] - _MARGINS["bottom"]) / rows
        return max(16, int(_CELLS_PER_INCH * min(across, down)))

    def key_axes(self) -> Axes:
        long = min(1.5, self.height - _MARGINS["top"] - _MARGINS["bottom"])
        bottom = (self.height - _MARGINS["top"] - long) / self.height
        place = (1 - 0.75 / self.width, bottom, 0.09 / self.width, long / self.height)
        return self.part.add_axes(place)


def _draw_stack(place: _Place, stack: Stack, columns: int, scale: Scale, cmap: Colormap) -> None:
    grid = place.grid(len(stack.layers), columns)
    most = place.most_cells(len(stack.layers), columns)
    size = 0.8 * font_size()
    aside: dict[str, Any] = {"rotation": 0, "ha": "right", "va": "center"}
    for row, layer in enumerate(stack.layers):
        for column, head in enumerate(stack.head_numbers):
            ax = place.part.add_subplot(grid[row, column])
            _clear(ax)
            if row == 0:
                ax.set_title(f"head {head}", size=size, pad=4)
            if column == 0:
                ax.set_ylabel(f"layer {layer}", size=size, **aside)
            if (layer, head) in stack.heads:
                draw_cells(ax, _thumbnail(stack[layer, head], most), cmap, scale.norm)
    add_colour_bar(ScalarMappable(scale.norm, cmap), scale.ticks, cax=place.key_axes())


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
