"""Numbers of patches, from arrays with one number per token."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from gattn.drawing.canvas.frame import marked_edited, shown_text
from gattn.drawing.chosen.queries import Tokens
from gattn.drawing.over_image.patches import Patches, grid_of
from gattn.drawing.results.arrays import array_name, array_title
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Grid
from gattn.heads.geometry.written import to_text
from gattn.heads.given.labelled import geometry_of


def labelled(values: Any, query: Any, grid: Any) -> xr.DataArray:
    """Name the axes of an array without names."""
    if isinstance(values, xr.DataArray):
        return values
    numbers = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    if numbers.ndim == 2 and query is None and grid is None:  # one number per patch
        rows, columns = numbers.shape
        laid = Grid.regular(rows, columns, rows * columns)
        return xr.DataArray(
            numbers.ravel(),
            coords={f"key_{n}": ("key", c) for n, c in laid.coordinates().items()},
            dims="key",
            attrs={"key_geometry": to_text(laid)},
        )
    if numbers.ndim not in (1, 2):
        raise ShapeError(
            "An array over an image is (tokens,), (queries, keys) with query=, or (rows, columns), "
            f"not {numbers.shape}."
        )
    return xr.DataArray(numbers, dims=("query", "key")[2 - numbers.ndim :])


def of_array(array: xr.DataArray, query: Any, grid: Any) -> Patches:
    """Read an array with named axes; see `gattn.drawing.draw_image`."""
    axes = [axis for axis in ("key", "token", "query") if axis in array.dims]
    if not axes:
        raise ShapeError(
            f"An array over an image has an axis of tokens: key, token or query, not {array.dims}."
        )
    axis = axes[0]
    others = [a for a in array.dims if a not in (axis, "query")]
    array = array.isel(dict.fromkeys(others, -1))
    tokens = array.sizes[axis]
    why = "the array does not say which patches its tokens are"
    found = grid_of(geometry_of(array, axis), grid, tokens, why)
    outlined: list[tuple[int, int]] = []
    said = [str(array.attrs.get("computed_from", ""))]
    if axis != "query" and "query" in array.dims:
        rows = Tokens(
            _counts(array, "query"),
            _texts(array, "query"),
            geometry_of(array, "query") or (found if array.sizes["query"] == tokens else None),
            "query",
        )
        chosen = rows.usual() if query is None else rows.find(query)
        array = array.isel(query=chosen).mean("query", keep_attrs=True)
        said.insert(0, f"of {rows.called(chosen)}{', on average' * (len(chosen) > 1)}")
        if isinstance(rows.geometry, Grid) and len(chosen) < len(rows.positions):
            spots = (int(rows.geometry.cells[token]) for token in chosen)
            outlined = [divmod(spot, found.columns) for spot in spots if spot >= 0]
    elif query is not None:
        raise SelectionError(f"query={query!r:.40}, but the array has no axis of queries.")
    numbers = array.to_numpy().astype(np.float64)
    if np.isinf(numbers).any():
        raise ShapeError("The array holds infinite numbers, which have no colour.")
    notes = array.attrs.get("notes", ())
    said += notes.splitlines() if isinstance(notes, str) else list(notes)
    title = marked_edited(array_title(array), array.attrs.get("edits"))
    return Patches(
        found.spread(numbers),
        found,
        array_name(array) or "number",
        title,
        tuple(shown_text(text, limit=400) for text in said if text),
        tuple(outlined),
    )


def _counts(array: xr.DataArray, axis: str) -> list[int]:
    return (
        array[axis].to_numpy().tolist() if axis in array.coords else list(range(array.sizes[axis]))
    )


def _texts(array: xr.DataArray, axis: str) -> list[str]:
    name = f"{axis}_token" if f"{axis}_token" in array.coords else axis
    return [str(text) for text in array[name].to_numpy()]
