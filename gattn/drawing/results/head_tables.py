"""Pictures of the head table: scores as colours, with the heads' labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from pandas.api.types import is_float_dtype

from gattn.analysis.heads.even_attention import EVEN_COLUMNS
from gattn.drawing.canvas.colours import given_map
from gattn.drawing.canvas.frame import new_axes, pitch
from gattn.drawing.canvas.labels import fit, font_size
from gattn.drawing.results.arrays_and_tables import draw_table

_NO_SHARES = ("entropy", "mean_distance", "edges", "edges_for_90")
_LARGEST = 14.0


def draw_head_table(
    table: pd.DataFrame,
    *,
    ax: Axes | None = None,
    columns: Sequence[str] | None = None,
    cmap: str | Colormap | None = None,
    **options: Any,
) -> Axes:
    """Draw the scores of heads as `draw_table` does, with their labels on the right.

    Parameters
    ----------
    table : DataFrame
        What `gattn.analysis.head_table` returns, or some of its rows.
    columns : sequence of str, optional
        The columns to show; by default all scores that differ between heads, but for those of
        even attention.

    Raises
    ------
    SelectionError
        If there is nothing to draw.
    """
    cmap = cmap and given_map(cmap)
    scores = [str(name) for name in table.columns if is_float_dtype(table[name])]
    if columns is None:
        measured = [name for name in scores if name not in EVEN_COLUMNS]
        columns = [name for name in measured if table[name].nunique() > 1] or measured
    has_labels = "label" in table.columns
    if ax is None:
        wide = min(_LARGEST, 1.2 + 0.72 * len(columns) + 1.6 * has_labels)
        ax = new_axes(wide, min(_LARGEST, 1.6 + 0.24 * len(table)))
    lengths = {column for column in scores if EVEN_COLUMNS.get(column, column) in _NO_SHARES}
    shares = [name for name in columns if name in scores and name not in lengths]
    draw_table(table, ax=ax, columns=columns, shares=shares, cmap=cmap, **options)
    if has_labels and len(table):
        _write_labels(ax, table["label"].tolist())
    return ax


def _write_labels(ax: Axes, labels: Sequence[str]) -> None:
    apart = pitch(ax, len(labels), "y")
    found = fit(dict(enumerate(labels)), apart, rotations=[90])
    shown = [i for i, text in enumerate(found.texts) if text]
    beside = ax.secondary_yaxis("right")
    beside.set_yticks(shown, [labels[i] for i in shown])
    beside.tick_params(length=0, labelsize=min(found.size, font_size()))
    beside.spines[:].set_visible(False)
