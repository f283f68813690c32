"""Pictures of tables, as analyses return them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from gattn.drawing.canvas.colours import colour_map, given_map
from gattn.drawing.canvas.fitting import Fitting, fitted, pitch, room
from gattn.drawing.canvas.frame import LARGEST, describe, new_axes
from gattn.drawing.canvas.labels import shortened, small_size, smallest, text_style, widest_of
from gattn.drawing.canvas.sides import REACH, label_rows, say_patches
from gattn.drawing.matrices.arrays import ColourCells
from gattn.drawing.matrices.heatmaps import fill_axes, hatch_missing, write_cells
from gattn.errors import SelectionError
from gattn.names.text import numbered, visible, worded, wrapped

_LINE = 1.15
"""How far apart upright names of columns stand, in font sizes."""


def draw_table(
    table: pd.DataFrame,
    *,
    ax: Axes | None = None,
    columns: Sequence[str] | None = None,
    shares: Sequence[str] = (),
    cmap: str | Colormap | None = None,
    **options: Any,
) -> Axes:
    """Draw a table of numbers as a heatmap, each column on a scale of its own.

    Scales go from 0 to the largest number, or around 0 if there are negative ones. Numbers are
    written in the cells where there is room.

    Parameters
    ----------
    table : DataFrame
        What to draw.
    columns : sequence of str, optional
        The columns to show; by default all that hold numbers.
    shares : sequence of str
        The columns drawn on a scale from 0 to 1.

    Raises
    ------
    SelectionError
        If no column holds numbers, or there is no such colour map.
    """
    cmap = cmap and given_map(cmap)
    chosen, table = _chosen_heads(table), without_only_stack(table)
    names = list(columns) if columns is not None else _numeric(table)
    check_columns(table, names)
    if not names or not len(table):
        raise SelectionError("There is nothing to draw: the table has no rows or no numbers.")
    values = table[names].to_numpy(dtype=np.float64, na_value=np.nan)
    rows = _row_names(table)
    if ax is None:
        ax = new_axes(min(LARGEST, 1.8 + 0.75 * len(names)), min(LARGEST, 1.6 + 0.24 * len(rows)))
    painted = _painted(values, np.isin(names, shares), cmap)
    fill_axes(ax, ColourCells(painted), **options)
    hatch_missing(ax, values)
    label_rows(ax, rows, _stacks(table))
    say_patches(ax, map(str, table.get("token", ())))
    if table.index.nlevels == 1 and table.index.name:
        ax.set_ylabel(str(table.index.name))
    ax.tick_params(axis="x", length=0)
    fitted(ax, partial(_name_columns, ax, names))
    write_cells(ax, values, painted)
    ax.spines[:].set_visible(False)
    said = "each column on a scale of its own" + ", shares from 0 to 1" * bool(shares)
    describe(ax, table.attrs, notes=[chosen, said])
    return ax


def _chosen_heads(table: pd.DataFrame) -> str:
    """Say how many heads are shown, if a user selected some of those that a table was made of."""
    every = table.attrs.get("num_heads", 0)
    are_some = "head" in table.index.names and len(table) < every
    return f"{len(table):,} of {every:,} heads are shown" if are_some else ""


def check_columns(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Refuse columns that a table lacks, or that hold no numbers.

    Raises
    ------
    SelectionError
        With those that it has.
    """
    known = [str(name) for name in table.columns if _has_numbers(table[name])]
    if unknown := [name for name in names if name not in known]:
        raise SelectionError(
            f"No column of numbers {unknown[0]!r:.80}; there are {', '.join(known)}."
        )


def _name_columns(ax: Axes, names: Sequence[str]) -> None:
    """Name columns in several lines, upright where these would meet, and only as many as fit."""
    apart, size = pitch(ax, len(names), "x"), small_size()
    whole = [worded(name) for name in names]
    texts = [wrapped(name, 0.0) for name in whole]
    widest = widest_of([line for text in texts for line in text.split("\n")]) * size
    is_narrow = widest + 0.5 * size > apart
    if is_narrow:
        reach = REACH * room(ax)[1]
        size = min(size, max(smallest(), min(apart / _LINE, reach / widest_of(whole))))
        texts = shortened(whole, reach / size)
    stride = max(1, ceil(_LINE * size / apart - 1e-6)) if is_narrow else 1
    Fitting.of(ax).note("columns", f"one column in {stride} is named" if stride > 1 else "")
    style = {"rotation": 90 * is_narrow, "size": size, **text_style(texts)}
    ax.set_xticks(range(0, len(names), stride), texts[::stride], **style)


def without_only_stack(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the stack from the names of rows if there is only one."""
    if "stack" in table.index.names and table.index.get_level_values("stack").nunique() == 1:
        return table.droplevel("stack")
    return table


def _numeric(table: pd.DataFrame) -> list[str]:
    return [
        str(name)
        for name in table.attrs.get("drawn", table.columns)
        if name in table.columns and _has_numbers(table[name])
    ]


def _has_numbers(column: pd.Series[Any]) -> bool:
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def _stacks(table: pd.DataFrame) -> list[str]:
    """List the stack of each row, if rows are named by stacks."""
    if not _has_stacks(table) or _parts(table):
        return []
    return list(map(str, table.index.get_level_values("stack")))


def _has_stacks(table: pd.DataFrame) -> bool:
    return "stack" in table.index.names and table.index.nlevels > 1


def _row_names(table: pd.DataFrame) -> list[str]:
    """Name the rows by their parts; otherwise by their index, and their tokens if there are any.

    Stacks are left out, if there are more levels of the index.
    """
    if parts := _parts(table):
        rows = table[parts].itertuples(index=False, name=None)
        return [" × ".join(visible(str(part), limit=24) for part in row) for row in rows]
    within = table.droplevel("stack") if _has_stacks(table) else table
    names = [_place(label) for label in within.index]
    if "token" in table.columns:
        tokens = [visible(str(token)) for token in table["token"]]
        return [numbered(name, token) for name, token in zip(names, tokens, strict=True)]
    return names


def _parts(table: pd.DataFrame) -> list[str]:
    return [name for name in ("part", "query_part", "key_part") if name in table.columns]


def _place(label: Any) -> str:
    """Name a row; a head is "1.3", as on the command line."""
    if not isinstance(label, tuple):
        return str(label)
    texts = [part for part in label if isinstance(part, str)]
    numbers = ".".join(str(part) for part in label if not isinstance(part, str))
    return " ".join([*texts, numbers]).strip()


def _painted(
    values: NDArray[np.float64], are_shares: NDArray[np.bool_], cmap: str | Colormap | None
) -> NDArray[np.float64]:
    """Colour each column, from 0, or around 0 if there are negative numbers."""
    painted = np.zeros((*values.shape, 4))
    for column, is_share in enumerate(are_shares):
        shown = values[:, column]
        finite = shown[np.isfinite(shown)]
        if finite.size:
            signed = bool((finite < 0).any())
            top = 1.0 if is_share else float(np.abs(finite).max()) or 1.0
            scale = Normalize(-top if signed else 0.0, top, clip=True)
            colours = colour_map(cmap, is_signed=signed, is_area=True)
            is_known = np.isfinite(shown)
            painted[is_known, column] = colours(scale(shown[is_known]))
    return painted
