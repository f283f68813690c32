"""Pictures of arrays with named axes, as analyses return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.ticker import MaxNLocator

from gattn.drawing.canvas.colours import given_map, layer_colours
from gattn.drawing.canvas.fitting import fitted, points
from gattn.drawing.canvas.frame import LARGEST, describe, name_side, new_axes, width_of_tokens
from gattn.drawing.canvas.keys import label_layers
from gattn.drawing.canvas.labels import font_size, widest_of
from gattn.drawing.canvas.sides import label_rows, label_tokens
from gattn.drawing.chosen.given import refuse_unused
from gattn.drawing.matrices.heatmaps import (
    aspect_of,
    draw_heatmap,
    draw_kinds,
    size_of_squares,
    write_cells,
)
from gattn.errors import SelectionError
from gattn.names.text import worded

_ALIKE = {"key": [("query",)], "head": [("layer",)], "other": [("head",)], "writes": [("reads",)]}
"""What goes down a matrix of square cells, by what goes across it."""


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
    another as in ``draw(layer=0)``. Missing numbers are hatched.

    Parameters
    ----------
    array : DataArray
        What to draw.
    title : str, optional
        A title of your own; there is no caption then.
    **options
        Names of axes select a place, as in ``layer=0``. In a heatmap, ``pool="max"`` lets a pixel
        that stands for several cells show the largest, not their mean. Others go to ``Axes.plot``
        or, in a heatmap, to matplotlib's ``AxesImage``.

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
    array, notes = without_later(last_places(array))
    are_kinds = bool(array.attrs.get("are_kinds"))
    coloured = "kinds have colours of their own" if are_kinds else "points are in one colour"
    is_line = array.ndim == 1 and not are_kinds
    refuse_unused("cmap", coloured, is_given=cmap is not None and (are_kinds or is_line))
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


def without_later(array: xr.DataArray) -> tuple[xr.DataArray, list[str]]:
    """Leave out the pairs of a query and a later key if the numbers of all are 0; say so.

    Mostly that is a causal mask; but other numbers may be 0, too, such as those of dropped edges.
    """
    if array.dims != ("query", "key") or not {"query", "key"} <= set(array.coords):
        return array, []
    is_later = array["key"] > array["query"]
    are_zero = is_later.any() and bool((array.where(is_later, 0) == 0).all())
    if not (are_zero and bool((array != 0).any())):
        return array, []
    return array.where(~is_later), ["hatched: later tokens, all 0"]


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
    name_side(ax, "y", array_name(array))
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
    ax.set_xlabel("index")
    name_side(ax, "y", array_name(array))
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
    are_alike = tuple(down) in _ALIKE.get(across, ())
    if ax is None:
        ax = new_axes(*(size_of_squares if are_alike else _matrix_size)(*values.shape))
    if are_alike:
        options = {"aspect": aspect_of(values.shape), **options}
    if array.attrs.get("are_kinds"):
        draw_kinds(ax, values)
    else:
        name = str(array.attrs.get("units", array_name(array)))
        draw_heatmap(ax, values, name, cmap, **options)
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
        fitted(ax, partial(_number_axis, ax, labels, side))
    name = worded(axis)
    ax.set(**{f"{side}label": name})


def _number_axis(ax: Axes, labels: Sequence[Any], side: str) -> None:
    """Write as many numbers along a side as have room, at whole places."""
    ticks = ax.xaxis if side == "x" else ax.yaxis
    size, long = font_size(), points(ax)[side == "y"]
    wide = widest_of(map(str, labels)) + 1.0 if side == "x" else 1.5
    most = int(np.clip(long / (wide * size), 1, 9))
    found = MaxNLocator(nbins=most, integer=True).tick_values(0, max(len(labels) - 1, 0))
    shown = [int(tick) for tick in found if 0 <= tick < len(labels) and tick == int(tick)]
    ticks.set_ticks(shown, [str(labels[i]) for i in shown])


def array_name(array: xr.DataArray) -> str:
    """Return what an array's numbers are."""
    return worded(str(array.name or ""))


def array_title(array: xr.DataArray) -> str:
    """Name an array, and the places at which it was selected."""
    chosen = [
        f"{axis} {array[axis].item()}"
        for axis in map(str, array.coords)
        if array[axis].ndim == 0 and array[axis].dtype.kind in "iu"
    ]
    return " · ".join(filter(None, [array_name(array), *chosen]))
