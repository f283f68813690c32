"""Pictures of all heads of a trace at a glance."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, FigureBase
from matplotlib.gridspec import GridSpec

from gattn.drawing.colours import Scale, colour_map
from gattn.drawing.frame import add_colour_bar, shown_text
from gattn.drawing.labels import font_size, text_style
from gattn.drawing.matrix import cells, draw_cells
from gattn.errors import SelectionError
from gattn.trace import AttentionTrace, Stack

_MOST_CELLS = 96
_THUMBNAIL = 1.15
_MARGINS = {"left": 0.75, "right": 0.95, "top": 0.85, "bottom": 0.15}
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
    is signed). A text of more than 96 tokens is shown in blocks, each by its largest attention,
    and the figure says so.

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
    size = _thumbnail(stacks)
    heights = [_height(one, size) for one in stacks]
    broadest = max(len(one.head_numbers) for one in stacks)
    width = max(4.0, _MARGINS["left"] + _MARGINS["right"] + 1.1 * size * broadest)
    figure = figure or GridFigure(figsize=(width, sum(heights)))
    scale = Scale.of(*(head for one in stacks for head in one.values()))
    colours = colour_map(cmap, is_signed=scale.is_signed)
    parts: Sequence[FigureBase] = [figure]
    if len(stacks) > 1:
        parts = figure.subfigures(len(stacks), 1, height_ratios=heights).tolist()
    for one, part, height in zip(stacks, parts, heights, strict=True):
        name = one.name if len(trace.stacks) > 1 else ""
        _draw_stack(one, part, (width, height), scale, colours, _title(trace, one, name))
    return figure


def _thumbnail(stacks: Sequence[Stack]) -> float:
    broadest = max(len(one.head_numbers) for one in stacks)
    return min(_THUMBNAIL, (_WIDEST - _MARGINS["left"] - _MARGINS["right"]) / broadest / 1.1)


def _height(stack: Stack, size: float) -> float:
    return max(1.9, _MARGINS["top"] + _MARGINS["bottom"] + 1.1 * size * len(stack.layers))


def _title(trace: AttentionTrace, stack: Stack, name: str) -> tuple[str, str]:
    graphs = list(stack.values())
    queries, keys = graphs[0].graph.num_queries, graphs[0].graph.num_keys
    tokens = f"{keys} tokens" if queries == keys else f"{queries} queries, {keys} keys"
    title = " · ".join(filter(None, [shown_text(trace.model) if trace.model else "", name, tokens]))
    kept = sum(graph.graph.num_edges for graph in graphs)
    total = sum(int(graph.total_edges.sum()) for graph in graphs)
    caption = f"all {total:,} edges"
    if kept < total:
        mass = sum(float(graph.kept_mass.sum()) for graph in graphs)
        share = mass / max(sum(float(graph.total_mass.sum()) for graph in graphs), 1e-30)
        caption = f"{kept:,} of {total:,} edges, {share:.0%} of the mass".replace("%", " %")
    block = -(-max(queries, keys) // _MOST_CELLS)
    if block > 1:
        caption += f"; each cell the largest of {block} × {block}"
    return title, caption


def _draw_stack(
    stack: Stack,
    part: FigureBase,
    size: tuple[float, float],
    scale: Scale,
    cmap: Colormap,
    title: tuple[str, str],
) -> None:
    width, height = size
    mappable = ScalarMappable(scale.norm, cmap)
    grid = GridSpec(
        len(stack.layers),
        len(stack.head_numbers),
        figure=part,
        left=_MARGINS["left"] / width,
        right=1 - _MARGINS["right"] / width,
        top=1 - _MARGINS["top"] / height,
        bottom=_MARGINS["bottom"] / height,
        wspace=0.1,
        hspace=0.1,
    )
    for row, layer in enumerate(stack.layers):
        for column, head in enumerate(stack.head_numbers):
            ax = part.add_subplot(grid[row, column])
            _clear(ax)
            if row == 0:
                ax.set_title(f"head {head}", size=0.8 * font_size(), pad=4)
            if column == 0:
                style = {"size": 0.8 * font_size(), "rotation": 0, "ha": "right", "va": "center"}
                ax.set_ylabel(f"layer {layer}", **style)
            if (layer, head) in stack:
                graph = stack[layer, head]
                found = cells(graph, np.arange(graph.graph.num_edges), graph.attention, _MOST_CELLS)
                draw_cells(ax, found, cmap=mappable.cmap, norm=mappable.norm)
    long = min(1.5, height - _MARGINS["top"] - _MARGINS["bottom"])
    bottom = height - _MARGINS["top"] - long
    bar = part.add_axes((1 - 0.75 / width, bottom / height, 0.09 / width, long / height))
    add_colour_bar(mappable, scale.ticks, cax=bar)
    _write_lines(part, title, size)


def _clear(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.patch.set_visible(False)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _write_lines(part: FigureBase, lines: tuple[str, str], size: tuple[float, float]) -> None:
    width, height = size
    for text, down, points in zip(lines, (0.14, 0.38), (1.0, 0.75), strict=True):
        part.text(
            _MARGINS["left"] / width,
            1 - down / height,
            text,
            ha="left",
            va="top",
            size=points * font_size(),
            alpha=1.0 if points == 1.0 else 0.75,
            **text_style([text]),
        )
