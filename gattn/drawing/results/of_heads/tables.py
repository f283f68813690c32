"""Pictures of tables of heads: their scores as colours, and the composition of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from pandas.api.types import is_float_dtype

from gattn.analysis.from_weights.composition import SIDES, Composition
from gattn.analysis.heads.summed.even_attention import EVEN_COLUMNS
from gattn.analysis.reading.results import array
from gattn.drawing.canvas.colours import given_map
from gattn.drawing.canvas.fitting import fitted, pitch, room
from gattn.drawing.canvas.frame import new_axes
from gattn.drawing.canvas.head_labels import fullest
from gattn.drawing.canvas.labels import fit, text_style
from gattn.drawing.canvas.sides import REACH
from gattn.drawing.results.arrays import draw_array
from gattn.drawing.results.tables import check_columns, draw_table
from gattn.errors import SelectionError
from gattn.names.choices import written

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
    check_columns(table, columns)
    has_labels = "label" in table.columns
    if ax is None:
        wide = min(_LARGEST, 1.2 + 0.72 * len(columns) + 1.6 * has_labels)
        ax = new_axes(wide, min(_LARGEST, 1.6 + 0.24 * len(table)))
    lengths = {column for column in scores if EVEN_COLUMNS.get(column, column) in _NO_SHARES}
    shares = [name for name in columns if name in scores and name not in lengths]
    draw_table(table, ax=ax, columns=columns, shares=shares, cmap=cmap, **options)
    ax.set_ylabel("head")
    if has_labels and len(table):
        _write_labels(ax, table["label"].tolist())
    return ax


def _write_labels(ax: Axes, labels: Sequence[str]) -> None:
    beside = ax.secondary_yaxis("right")
    beside.spines[:].set_visible(False)
    beside.tick_params(length=0)

    def step() -> None:
        found = fit(dict(enumerate(labels)), pitch(ax, len(labels), "y"), rotations=[90])
        shown = [i for i, text in enumerate(found.texts) if text]
        texts = fullest([labels[i] for i in shown], REACH * room(ax)[0] / found.size)
        beside.set_yticks(shown, texts, size=found.size, **text_style(texts))

    fitted(ax, step)


def draw_composition(
    table: Composition,
    side: Literal["query", "key", "value"] = "key",
    *,
    ax: Axes | None = None,
    title: str | None = None,
    **options: Any,
) -> Axes:
    """Draw the scores of one side: a row per head that reads, a column per head that writes.

    Pairs without a score, such as heads of one layer, are hatched.

    Parameters
    ----------
    table : Composition
        What `gattn.compose` gives, or some of its rows.
    side : {"query", "key", "value"}
        Which composition: of the queries, keys or values that are read.
    title : str, optional
        A title of your own; there is no caption then.
    **options
        As in the picture of an array, which this is.

    Raises
    ------
    SelectionError
        If there is no such side, or no score.
    """
    if side not in SIDES or side not in table:
        raise SelectionError(f"side is one of {', '.join(map(repr, SIDES))}, not {side!r}.")
    pairs = table.index.to_frame().to_numpy().tolist()
    readers = sorted({(layer, head) for layer, head, _, _ in pairs})
    writers = sorted({(layer, head) for _, _, layer, head in pairs})
    values = np.full((len(readers), len(writers)), np.nan)
    rows, columns = ({place: n for n, place in enumerate(some)} for some in (readers, writers))
    for (layer, head, *writer), score in zip(pairs, table[side], strict=True):
        values[rows[layer, head], columns[tuple(writer)]] = score
    drawn = array(
        values,
        {"reads": list(map(written, readers)), "writes": list(map(written, writers))},
        name=f"{side[0].upper()}-composition",
        computed_from=table.computed_from,
        notes=table.notes,
    )
    return draw_array(drawn, ax=ax, title=title, **options)
