"""Pictures of topology: how a number of each head's graph changes with the threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from gattn.drawing.canvas.frame import describe, new_axes
from gattn.drawing.canvas.sides import label_columns, label_rows
from gattn.drawing.matrices.heatmaps import draw_heatmap
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from gattn.analysis.shape.topology import TopologyTable


def draw_topology(
    topology: TopologyTable, column: str = "betti1", *, ax: Axes | None = None, **options: Any
) -> Axes:
    """Draw one column of a topology table: one row per head, one column per threshold.

    Parameters
    ----------
    topology : TopologyTable
        What `gattn.analysis.topology_table` returns.
    column : str
        Which of its columns.

    Raises
    ------
    SelectionError
        If there is no such column, or there are no rows.
    """
    if column not in topology or not len(topology):
        raise SelectionError(f"There is no column {column!r} to draw; {list(topology)} are there.")
    values = topology[column].unstack("threshold")
    if ax is None:
        ax = new_axes(6.4, float(np.clip(1.5 + 0.24 * len(values), 2.6, 12.0)))
    draw_heatmap(ax, values.to_numpy(dtype=np.float64), column, **options)
    label_columns(ax, [f"{threshold:g}" for threshold in values.columns])
    label_rows(ax, [f"{layer}.{head}" for layer, head in values.index])
    ax.tick_params(length=0)
    ax.set(xlabel="threshold", ylabel="head")
    describe(ax, topology.attrs)
    return ax
