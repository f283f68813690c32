"""Results of several texts together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from gattn.analysis.heads.head_labels import head_labels
from gattn.analysis.heads.head_table import HeadTable
from gattn.analysis.reading.results import Array, Table, edits_of, told
from gattn.door import Pictured
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = TypeVar("Result", Table, Array)

_PLACES = ("query", "key", "key_value_head")
"""Columns of numbers that name something: they have no mean."""

_MOST_NOTES = 3


@dataclass(frozen=True, eq=False)
class OverTexts(Pictured, Generic[Result]):
    """A result over several texts.

    Parameters
    ----------
    mean, spread : Table or Array
        The mean, and the sample standard deviation (NaN of one text), each over the texts that have
        a number.
    count : int
        How many texts there were.
    """

    mean: Result
    spread: Result
    count: int

    @property
    def draw(self) -> Callable[..., Axes]:
        """Draw the mean: the method of its type, with the same parameters."""
        return self.mean.draw


def over_texts(results: Iterable[Result]) -> OverTexts[Result]:
    """Take mean and spread over the results of several texts.

    Results are read one by one and not kept, so that they may come from
    ``head_table(trace) for trace in gattn.capture_many(texts)``.

    Parameters
    ----------
    results : iterable of Table or Array
        Results of one analysis, one per text: tables with the same rows and columns, or arrays with
        the same axes. Texts of different lengths have no axis of tokens in common.

    Returns
    -------
    OverTexts
        Its `mean` and `spread` look like the results. Words are left out; heads are labelled anew
        by their mean scores.

    Raises
    ------
    SelectionError
        If there are no results, or they have different rows, columns or axes.
    """
    several = iter(results)
    first = next(several, None)
    if first is None:
        raise SelectionError("There are no results: give those of one text at least.")
    sums, count = _Sums.like(_numbers(first)), 0
    notes, edits = dict[str, None](), dict[str, None]()
    for count, result in enumerate(chain([first], several), start=1):
        _check_alike(first, result, count - 1)
        sums.add(_values(result))
        notes |= dict.fromkeys(result.attrs.get("notes", ()))
        edits |= dict.fromkeys(edits_of(result))
    source = first.attrs.get("computed_from", "")
    attrs = first.attrs | {"computed_from": f"{count} texts, the first one: {source}"}
    attrs |= told(list(edits))
    said: list[str] = [f"of a text: {note}" for note in list(notes)[:_MOST_NOTES]]
    mean = _made(first, sums.mean(), attrs | {"notes": ["mean", *said]})
    if isinstance(first, HeadTable):
        mean["label"] = head_labels(mean)
    notes_of_spread = ["sample standard deviation", *said]
    spread = _made(first, sums.spread(), attrs | {"notes": notes_of_spread})
    return OverTexts(mean, spread, count)


@dataclass
class _Sums:
    """Counts, means and squared deviations so far (Welford), of what is no NaN."""

    count: NDArray[np.int64]
    middle: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def like(cls, numbers: pd.DataFrame | xr.DataArray) -> _Sums:
        shape = numbers.shape
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))

    def add(self, values: NDArray[np.float64]) -> None:
        present = ~np.isnan(values)
        self.count += present
        change = np.where(present, values - self.middle, 0)
        self.middle += change / np.maximum(self.count, 1)
        self.squares += change * np.where(present, values - self.middle, 0)

    def mean(self) -> NDArray[np.float64]:
        return np.where(self.count > 0, self.middle, np.nan)

    def spread(self) -> NDArray[np.float64]:
        variance = self.squares / np.maximum(self.count - 1, 1)
        return np.where(self.count > 1, np.sqrt(variance), np.nan)


def _values(result: Any) -> NDArray[np.float64]:
    numbers = _numbers(result)
    if isinstance(numbers, pd.DataFrame):
        return numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(numbers.to_numpy(), dtype=np.float64)


def _numbers(result: Any) -> Any:
    if isinstance(result, xr.DataArray):
        return result
    if not isinstance(result, pd.DataFrame):
        raise SelectionError(
            f"over_texts takes tables or arrays, one per text, not {type(result).__name__}."
        )
    names = [
        name
        for name in result.columns
        if is_numeric_dtype(result[name])
        and not is_bool_dtype(result[name])
        and name not in _PLACES
    ]
    return result[names]


def _check_alike(first: Any, result: Any, number: int) -> None:
    if type(first) is not type(result):
        raise SelectionError(f"Result {number} is no {type(first).__name__}, as the first one is.")
    if isinstance(first, pd.DataFrame):
        if not first.index.equals(result.index):
            raise SelectionError(
                f"Result {number} has other rows than the first one, {len(result)} and "
                f"{len(first)}: take the same heads and layers of every text."
            )
        one, other = (list(_numbers(x).columns) for x in (first, result))
        if one != other:
            lone = sorted(set(one) ^ set(other)) or other
            raise SelectionError(
                f"Result {number} has other columns than the first one, such as {lone[0]!r}."
            )
        return
    if first.dims != result.dims:
        raise SelectionError(f"Result {number} has the axes {result.dims}, not {first.dims}.")
    for axis in first.dims:
        if not np.array_equal(first[axis].to_numpy(), result[axis].to_numpy()):
            raise SelectionError(
                f"Result {number} has another axis {axis!r} than the first one, of length "
                f"{result.sizes[axis]} and {first.sizes[axis]}: texts of other tokens are taken "
                f"together without it, as in result.mean({axis!r})."
            )


def _made(first: Any, values: NDArray[np.float64], attrs: dict[Any, Any]) -> Any:
    if isinstance(first, xr.DataArray):
        said = [name for name, one in first.coords.items() if one.dtype.kind not in "iu"]
        array = first.drop_vars([name for name in said if name not in first.dims])
        array = array.copy(data=values)
        array.attrs = attrs
        return array
    numbers = _numbers(first)
    made = type(first)(values, index=numbers.index, columns=numbers.columns)
    made.attrs = attrs
    return made
