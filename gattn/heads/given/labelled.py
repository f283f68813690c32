"""Reads arrays of attention with named axes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gattn.errors import ShapeError
from gattn.heads.geometry import Geometry
from gattn.heads.geometry.written import axes_of, from_text

if TYPE_CHECKING:
    import xarray as xr

_AXES = ("layer", "head", "query", "key")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Attention (layers, heads, queries, keys) and what its labels say.

    Parameters
    ----------
    numbers : array (layers, heads, queries, keys)
        The attention.
    layers, heads, queries, keys : tuple of int
        The numbers of layers and heads, and the positions of queries and keys.
    query_tokens, key_tokens : tuple of str
        Their texts; empty if unknown.
    source : str
        What the array says it was computed from.
    edits : tuple of str
        The edits of the run, as `gattn.edit_records.identities` writes them.
    holds_residual : bool
        Whether the numbers include the residual stream.
    geometry, query_geometry : Geometry or None
        Where keys and queries lie.
    """

    numbers: NDArray[Any]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    query_tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]
    source: str
    edits: tuple[str, ...]
    holds_residual: bool
    geometry: Geometry | None
    query_geometry: Geometry | None

    @property
    def is_square(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.keys == self.queries


def is_labelled(attention: Any) -> bool:
    """Return whether it is an array with named axes, or a list that contains one."""
    if isinstance(attention, (list, tuple)):
        return any(map(has_names, attention))
    return has_names(attention)


def has_names(attention: Any) -> TypeGuard[xr.DataArray]:
    """Return whether it is one array with named axes."""
    xarray = sys.modules.get("xarray")  # Slow to import, and whoever has an array has imported it.
    return xarray is not None and isinstance(attention, xarray.DataArray)


def read_labelled(attention: Any) -> Labelled:
    """Read an array with named axes, or a list of such layers."""
    values = attention if has_names(attention) else _joined(attention)
    _check_axes(values, "An array of attention", _AXES)
    whole = values
    for axis in ("head", "layer"):
        if axis not in whole.dims:
            whole = whole.expand_dims(axis)
    numbers: NDArray[Any] = whole.transpose(*_AXES).to_numpy()
    sizes = dict(zip(_AXES, numbers.shape, strict=True))
    sides = {"query": "key", "key": "query"}

    def labels(axis: str) -> tuple[int, ...]:
        other = sides.get(axis)
        if axis in values.coords:
            return _whole_labels(values, axis)
        if other in values.coords and sizes[axis] == sizes[str(other)]:
            return _whole_labels(values, str(other))
        return tuple(range(sizes[axis]))

    def texts(axis: str) -> tuple[str, ...]:
        name = f"{axis}_token"
        if name not in values.coords:
            return ()
        if values[name].dims != (axis,):
            raise ShapeError(
                f"The layers have different tokens along {axis!r}: a trace is of one text."
            )
        return tuple(map(str, values[name].to_numpy()))

    layers, heads, queries, keys = map(labels, _AXES)
    return Labelled(
        numbers,
        layers=layers,
        heads=heads,
        queries=queries,
        keys=keys,
        query_tokens=texts("query"),
        key_tokens=texts("key"),
        source=str(values.attrs.get("computed_from", "")),
        edits=tuple(values.attrs.get("edits", ())),
        holds_residual=bool(values.attrs.get("holds_residual", False)),
        geometry=geometry_of(values, "key"),
        query_geometry=geometry_of(values, "query"),
    )


def _check_axes(values: xr.DataArray, what: str, axes: Sequence[str]) -> None:
    in_order = tuple(axis for axis in axes if axis in values.dims)
    if values.dims != in_order or not {"query", "key"} <= set(in_order):
        first = " and ".join(axes[:-2])
        raise ShapeError(
            f"{what} has the axes ({', '.join(axes)}), of which {first} may be missing, not "
            f"{values.dims}; transpose it, as in array.transpose(..., 'query', 'key')."
        )


def _whole_labels(values: xr.DataArray, axis: str) -> tuple[int, ...]:
    found = np.atleast_1d(values[axis].to_numpy())
    if found.dtype.kind not in "iu":
        texts = f"; the tokens' texts go into {axis}_token" if axis in ("query", "key") else ""
        raise ShapeError(
            f"The labels of {axis!r} must be whole numbers, not {found.tolist()!r:.60}{texts}."
        )
    if len(set(found.tolist())) < len(found):
        raise ShapeError(f"The labels of {axis!r} must differ, not {found.tolist()!r:.60}.")
    return tuple(found.tolist())


def _joined(parts: Sequence[Any]) -> xr.DataArray:
    """Join labelled layers into one array."""
    import xarray as xr

    for n, part in enumerate(parts):
        if not has_names(part):
            raise ShapeError(
                f"Layer {n} is a {type(part).__name__}, but others have named axes: give all "
                "layers with names, or none."
            )
        _check_axes(part, f"Layer {n}", _AXES[1:])
    facts: list[Any] = [list(part.attrs.get("edits", ())) for part in parts]
    if any(edits != facts[0] for edits in facts):
        raise ShapeError("The layers are of runs with different edits: a trace is of one run.")
    try:
        joined: xr.DataArray = xr.concat(
            list(parts), "layer", join="exact", coords="different", compat="equals",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
        return joined
    except ValueError as error:
        raise ShapeError(f"The layers must have the same axes and labels: {error}.") from error


def geometry_of(result: xr.DataArray, axis: str) -> Geometry | None:
    """Return where the tokens along an axis lie, if that is known.

    Raises
    ------
    ShapeError
        If the coordinates, such as ``key_row``, are missing or wrong.
    """
    text = result.attrs.get(f"{axis}_geometry")
    if text is None:
        return None
    try:
        places = {name: result[f"{axis}_{name}"].to_numpy() for name in axes_of(text)}
        return from_text(text, places)
    except (ValueError, TypeError, LookupError) as error:
        raise ShapeError(f"The array's {axis}_geometry cannot be read: {error}.") from error
