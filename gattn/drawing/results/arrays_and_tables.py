"""Pictures of what analyses return: arrays with named axes, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize, to_rgba
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from gattn.drawing.canvas.colours import NO_NUMBER, colour_map, given_map, layer_colours
from gattn.drawing.canvas.frame import LARGEST, describe, new_axes, pitch, width_of_tokens
from gattn.drawing.canvas.heatmaps import draw_heatmap, draw_kinds, write_cells
from gattn.drawing.canvas.keys import label_layers
from gattn.drawing.canvas.labels import small_size, widest_of
from gattn.drawing.canvas.sides import label_rows, label_tokens
from gattn.errors import SelectionError
from gattn.names.text import visible


def draw_array(
    array: xr.DataArray,
    *,
    ax: Axes | None = None,
    title: str | None = None,
    cmap: str | Colormap | None = None,
    **options: Any,
) -> Axes:
    """Draw an array with named axes: points, lines, or a heatmap with its first axis going down.

    If there is one number per head and token (or eigenvalue and the like), all heads are drawn: one
    row per head, or one line per head for spectra. Other arrays with more than two axes are drawn
    at the last place of the first axes, usually the last layer; the title says which. Select
    another as in ``draw(layer=0)``. Missing numbers are grey.

    Parameters
    ----------
    array : DataArray
        What to draw.
    title : str, optional
        A title of your own; there is no caption then.
    **options
        Names of axes select a place, as in ``layer=0``; others go to ``Axes.plot`` or
        ``Axes.imshow``.

    Raises
    ------
    SelectionError
        If there is nothing to draw, or no such place or colour map.
    """
    cmap = cmap and given_map(cmap)
    chosen = {str(axis): options.pop(str(axis)) for axis in array.dims if axis in options}
    array = _selected(array, chosen)
    if array.size == 0 or array.ndim == 0:
        raise SelectionError(f"There is nothing to draw in an array of shape {array.shape}.")
    array = last_places(array)
    notes = []
    if array.attrs.get("are_kinds"):
        array = array.expand_dims("head") if array.ndim == 1 else array
        notes.append("colours compare within a head")
    if array.ndim == 1:
        ax = _draw_points(array, ax, options)
    elif array.dims[-1] == "index":
        ax = _draw_spectra(array, ax, cmap, options)
        notes.append("a line per head")
    else:
        ax = _draw_array_heatmap(array, ax, cmap, options)
    if title is None:
        describe(ax, array.attrs, array_title(array), notes)
    else:
        describe(ax, {}, title)
    return ax


def last_places(array: xr.DataArray) -> xr.DataArray:
    """Reduce an array to two axes, or to layer, head and one more; drop axes of one place."""
    for axis in [axis for axis in array.dims if array.sizes[axis] == 1]:
        if array.ndim > 1:
            array = array.isel({axis: 0})
    are_heads = array.dims[:2] == ("layer", "head")
    while array.ndim > 3 or (array.ndim == 3 and not are_heads):
        array, are_heads = array[-1], False
    return array


def _draw_points(array: xr.DataArray, ax: Axes | None, options: Mapping[str, Any]) -> Axes:
    """Draw one number per place: a line over counts, stems over tokens."""
    (axis,) = map(str, array.dims)
    values = array.to_numpy()
    ax = ax if ax is not None else new_axes(max(6.4, _matrix_size(1, array.size)[0]), 3.6)
    style: dict[str, Any] = {"marker": "o", "ms": 4} | dict(options)
    if f"{axis}_token" in array.coords or array[axis].dtype.kind in "OUT":
        style = {"ls": "none"} | style
        (line,) = ax.plot(np.arange(array.size), values, **style)
        ax.vlines(np.arange(array.size), 0, values, color=line.get_color(), lw=1.5)
        ax.axhline(0, color="0.5", lw=0.6)
    else:
        ax.plot(np.arange(array.size), values, **style)
    _label_axis(ax, array, axis, "x", array.size)
    ax.set_ylabel(array_name(array))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _draw_spectra(
    array: xr.DataArray, ax: Axes | None, cmap: str | Colormap | None, options: Mapping[str, Any]
) -> Axes:
    """Draw a line per head, in the colours of layers."""
    ax = ax if ax is not None else new_axes(6.4, 4.2)
    heads = array if array.ndim == 3 else array.expand_dims("layer")
    layers = heads["layer"].to_numpy() if "layer" in heads.coords else np.zeros(1)
    colours = layer_colours(cmap)
    norm = Normalize(layers.min(), max(layers.max(), layers.min() + 1))
    index = array["index"].to_numpy()
    for layer, some in zip(layers, heads.to_numpy(), strict=True):
        style: dict[str, Any] = {"color": colours(norm(layer)), "lw": 1, "marker": ".", "ms": 4}
        ax.plot(index, some.T, **(style | dict(options)))
    ax.set(xlabel="index", ylabel=array_name(array))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    if len(layers) > 1:
        label_layers(ax, norm, colours)
    return ax


def _draw_array_heatmap(
    array: xr.DataArray, ax: Axes | None, cmap: str | Colormap | None, options: Mapping[str, Any]
) -> Axes:
    *down, across = map(str, array.dims)
    values = array.to_numpy().reshape(-1, array.shape[-1])
    if ax is None:
        ax = new_axes(*_matrix_size(*values.shape))
    if array.attrs.get("are_kinds"):
        draw_kinds(ax, values)
    else:
        draw_heatmap(ax, values, array_name(array), cmap, **options)
    if "head" in array.dims and not any(f"{axis}_token" in array.coords for axis in array.dims):
        write_cells(ax, values, ax.images[-1].to_rgba(np.ma.masked_invalid(values)))
    _label_axis(ax, array, across, "x", array.shape[-1])
    if len(down) == 2:
        places = np.ndindex(*array.shape[:2])
        numbers = [array[axis].to_numpy().tolist() for axis in down]
        label_rows(ax, [f"{numbers[0][i]}.{numbers[1][j]}" for i, j in places])
        ax.set_ylabel("head")
    else:
        _label_axis(ax, array, down[0], "y", len(values))
    return ax


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
    table = without_only_stack(table)
    names = list(columns) if columns is not None else _numeric(table)
    if not names or not len(table):
        raise SelectionError("There is nothing to draw: the table has no rows or no numbers.")
    values = table[names].to_numpy(dtype=np.float64, na_value=np.nan)
    rows = _row_names(table)
    if ax is None:
        ax = new_axes(min(LARGEST, 1.8 + 0.75 * len(names)), min(LARGEST, 1.6 + 0.24 * len(rows)))
    painted = _painted(values, np.isin(names, shares), cmap)
    ax.imshow(painted, aspect="auto", **options)
    label_rows(ax, rows)
    if table.index.nlevels == 1 and table.index.name:
        ax.set_ylabel(str(table.index.name))
    _name_columns(ax, names)
    write_cells(ax, values, painted)
    ax.spines[:].set_visible(False)
    said = "each column on a scale of its own" + ", shares from 0 to 1" * bool(shares)
    describe(ax, table.attrs, notes=[said])
    return ax


def _name_columns(ax: Axes, names: Sequence[str]) -> None:
    """Name columns in several lines, or upright where these would meet."""
    widest = widest_of([part for name in names for part in name.split("_")]) * small_size()
    is_narrow = 0.85 * widest > pitch(ax, len(names), "x")
    texts = [name.replace("_", " " if is_narrow else "\n") for name in names]
    ax.set_xticks(range(len(names)), texts, rotation=90 * is_narrow)
    ax.tick_params(axis="x", labelsize=small_size(), length=0)


def without_only_stack(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the stack from the names of rows if there is only one."""
    if "stack" in table.index.names and table.index.get_level_values("stack").nunique() == 1:
        return table.droplevel("stack")
    return table


def _selected(array: xr.DataArray, chosen: Mapping[str, Any]) -> xr.DataArray:
    try:
        return array.sel(chosen)
    except KeyError as error:
        known = {axis: array[axis].to_numpy().tolist() for axis in chosen}
        raise SelectionError(f"There is no {dict(chosen)}; there are {known}.") from error


def _matrix_size(rows: int, columns: int) -> tuple[float, float]:
    return width_of_tokens(columns), min(LARGEST, max(3.0, 1.6 + 0.3 * rows))


def _label_axis(ax: Axes, array: xr.DataArray, axis: str, side: str, count: int) -> None:
    texts = array.coords.get(f"{axis}_token")
    labels = array[axis].to_numpy().tolist() if axis in array.coords else list(range(count))
    if texts is not None:
        label_tokens(ax, labels, [str(text) for text in texts.to_numpy()], side)
    elif labels and all(isinstance(label, str) for label in labels):
        label_tokens(ax, None, [str(label) for label in labels], side)
    else:
        ticks = ax.xaxis if side == "x" else ax.yaxis
        ticks.set_major_locator(MaxNLocator(integer=True))
        shown = [int(t) for t in ticks.get_ticklocs() if 0 <= t < count]
        ticks.set_ticks(shown, [str(labels[i]) for i in shown])
    name = axis.replace("_", " ")
    ax.set(**{f"{side}label": name})


def array_name(array: xr.DataArray) -> str:
    """Return what an array's numbers are."""
    return str(array.name or "").replace("_", " ")


def array_title(array: xr.DataArray) -> str:
    """Name an array, and the places at which it was selected."""
    chosen = [
        f"{axis} {array[axis].item()}"
        for axis in map(str, array.coords)
        if array[axis].ndim == 0 and array[axis].dtype.kind in "iu"
    ]
    return " · ".join(filter(None, [array_name(array), *chosen]))


def _numeric(table: pd.DataFrame) -> list[str]:
    return [
        str(name)
        for name in table.attrs.get("drawn", table.columns)
        if name in table.columns
        and is_numeric_dtype(table[name])
        and not is_bool_dtype(table[name])
    ]


def _row_names(table: pd.DataFrame) -> list[str]:
    """Name the rows by their parts; otherwise by their index, and their tokens if there are any."""
    parts = [name for name in ("part", "query_part", "key_part") if name in table.columns]
    if parts:
        rows = table[parts].itertuples(index=False, name=None)
        return [" × ".join(visible(str(part), limit=24) for part in row) for row in rows]
    names = [_place(label) for label in table.index]
    if "token" in table.columns:
        tokens = [visible(str(token)) for token in table["token"]]
        return [f"{name} {token}" for name, token in zip(names, tokens, strict=True)]
    return names


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
    painted = np.full((*values.shape, 4), to_rgba(NO_NUMBER))
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
