"""Pictures of attention as a matrix: rows are queries, columns keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import Normalize
from numpy.typing import NDArray

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.colours import beyond_said
from gattn.drawing.canvas.fitting import fitted, points, room
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.labels import Labels, fit, text_style
from gattn.drawing.canvas.sides import REACH
from gattn.drawing.chosen.shown import Shown
from gattn.drawing.matrices.cells import EdgeCells, sink_columns
from gattn.drawing.matrices.heatmaps import aspect_of, fill_axes
from gattn.drawing.matrices.minus import mark_negative
from gattn.drawing.one_head.look import Look
from gattn.drawing.one_head.marks import mark_cells
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph


def draw_matrix(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw queries as rows and keys as columns, a sink as one more column apart."""
    is_attention = look.values == "attention"
    found = EdgeCells.of(head, shown.edges, look.values, sinks=shown.sinks, pool=look.pool)
    norm = look.pen.norm if is_attention else norm_of(found.values, look.values, look.vmax)
    image = fill_axes(ax, found, cmap=look.pen.cmap, norm=norm, aspect=aspect_of(found.shape))
    name_sides(ax)
    if look.legend:
        ticks = look.pen.scale.ticks if is_attention else None
        add_colour_bar(image, look.values, ax, ticks=ticks)
    if look.labels:
        label_cells(ax, head, found.shape, rows=shown.rows, columns=shown.columns)
    mark_cells(ax, head)
    if is_attention and look.pen.scale.is_signed:
        mark_negative(ax, found, image)


def norm_of(values: NDArray[Any], name: str, vmax: float | None = None) -> Normalize:
    """Scale scores from the least to the most, lengths from 0, either to vmax if it is given."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Normalize(0, vmax or 1)
    begin = finite.min() if name == "score" else 0.0
    if vmax is not None and vmax <= begin:
        raise SelectionError(
            f"vmax={vmax:g} is no end of a scale that begins with the least score, {begin:.3g}: "
            "give a larger number."
        )
    return Normalize(begin, vmax or finite.max())


def beyond_end(head: AttentionGraph, shown: Shown, look: Look) -> str:
    """Say that other numbers than attention exceed the user's end of their scale."""
    values = head.edge_values[look.values][shown.edges]
    norm_of(values, look.values, look.vmax)  # which refuses it before there is a figure
    return beyond_said(float(values[np.isfinite(values)].max(initial=-np.inf)), look.vmax)


def name_sides(ax: Axes) -> None:
    """Say which side of a matrix is which, and nothing else."""
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel("key", usetex=False)
    ax.set_ylabel("query", usetex=False)


def label_cells(
    ax: Axes,
    head: AttentionGraph,
    shape: tuple[int, ...],
    *,
    rows: Sequence[int] = (),
    columns: Sequence[int] = (),
) -> None:
    """Write tokens beside the rows and below the columns, some before others."""
    fitted(ax, partial(_label_cells, ax, head, shape, rows, columns))


def _label_cells(
    ax: Axes,
    head: AttentionGraph,
    shape: tuple[int, ...],
    first_rows: Sequence[int],
    first_columns: Sequence[int],
) -> None:
    keys, queries = layouts.ends(head)
    rows, columns = shape
    (width, height), (across, down) = points(ax), room(ax)
    below = fit(
        dict(zip(keys, head.labels(), strict=False)),
        width / columns,
        rotations=(0, 45, 90),
        reach=REACH * down,
        first=[keys[j] for j in first_columns],
    )
    beside = fit(
        dict(zip(queries, head.query_labels(), strict=True)),
        height / rows,
        rotations=(90,),
        reach=REACH * across,
        first=[queries[i] for i in first_rows],
    )
    sink = {columns - (1 + sink_columns(head)) / 2: "<sink>"} if head.sink is not None else {}
    _set_ticks(ax.xaxis, below, below.rotation, sink)
    _set_ticks(ax.yaxis, beside, 0, {})


def _set_ticks(axis: Axis, labels: Labels, rotation: int, more: Mapping[float, str]) -> None:
    named = [(float(index), text) for index, text in enumerate(labels.texts) if text]
    named += list(more.items())
    if not named:
        return
    places, texts = zip(*named, strict=True)
    slanted: dict[str, Any] = {"ha": "center", "rotation_mode": "default"}
    if rotation == 45:
        slanted = {"ha": "right", "rotation_mode": "anchor"}
    style = text_style(texts) | (slanted if isinstance(axis, XAxis) else {})
    axis.set_ticks(places, texts, size=labels.size, rotation=rotation, gid="gattn-label", **style)
    axis.set_tick_params(length=0, pad=3)
