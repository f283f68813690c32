"""Tokens on the grid of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import whole
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry.base import Geometry


@dataclass(frozen=True, eq=False, repr=False)
class Grid(Geometry):
    """Patches of a picture, in rows and columns.

    Parameters
    ----------
    rows, columns : int
        How many rows and columns of patches the picture has.
    cells : array of int (tokens,)
        The cell of each token, ``row * columns + column``, counted from the top left; -1 for a
        class, register or other token that is no patch. Cells may be in any order, as in windows,
        and need not all have a token.
    image_size : (int, int), optional
        The height and width in pixels of the picture that the model reads.
    patch_size : (float, float), optional
        The height and width in pixels of a patch; by default the picture's, shared out evenly. The
        first patch lies at the top left, so pixels may be left over on the right and below.

    Raises
    ------
    ShapeError
        If a cell is outside of the grid or has two tokens, or patches lie outside of the picture.
    """

    AXES: ClassVar[tuple[str, ...]] = ("row", "column")
    PER_TOKEN: ClassVar[str] = "cells"

    rows: int
    columns: int
    cells: NDArray[np.int64]
    image_size: tuple[int, int] | None = None
    patch_size: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        rows, columns = (whole(n, getattr(self, n), 1, ShapeError) for n in ("rows", "columns"))
        cells = _cells(self.cells, rows, columns)
        found: dict[str, Any] = {"rows": rows, "columns": columns, "cells": cells}
        if self.image_size is not None:
            found["image_size"] = _pair("image_size", self.image_size, whole_only=True)
        if self.patch_size is not None:
            found["patch_size"] = _pair("patch_size", self.patch_size, whole_only=False)
            _check_patches(rows, columns, found.get("image_size"), found["patch_size"])
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        apart = int((self.cells < 0).sum())
        size = "" if self.image_size is None else f", image_size={self.image_size}"
        return (
            f"Grid({self.rows} × {self.columns}, {len(self) - apart} patches, {apart} apart{size})"
        )

    @classmethod
    def regular(
        cls,
        rows: int,
        columns: int,
        tokens: int,
        *,
        prefix: int | None = None,
        image_size: tuple[int, int] | None = None,
        patch_size: tuple[float, float] | None = None,
    ) -> Grid:
        """Lay tokens out row by row, after `prefix` tokens that are no patches.

        By default there is no such token or one, whichever fits.

        Raises
        ------
        ShapeError
            If there are more or fewer tokens than rows * columns + prefix.
        """
        rows = whole("rows", rows, 1, ShapeError)
        columns = whole("columns", columns, 1, ShapeError)
        patches = rows * columns
        if prefix is None:
            prefix = tokens - patches if tokens - patches in (0, 1) else None
        else:
            prefix = whole("prefix", prefix, 0, ShapeError)
        if prefix is None or patches + prefix != tokens:
            raise ShapeError(_what_fits(rows, columns, prefix, tokens))
        cells = np.concatenate([np.full(prefix, -1), np.arange(patches)])
        return cls(rows, columns, cells, image_size, patch_size)

    def coordinates(self) -> dict[str, NDArray[np.float64]]:
        """Return the row and column of each token, NaN for those that are no patches."""
        row, column = np.divmod(self.cells, self.columns)
        is_patch = self.cells >= 0
        return {
            "row": np.where(is_patch, row, np.nan),
            "column": np.where(is_patch, column, np.nan),
        }

    def facts(self) -> dict[str, Any]:
        """Return the sizes of the grid, the picture and its patches."""
        sizes = {"image_size": self.image_size, "patch_size": self.patch_size}
        known = {name: list(size) for name, size in sizes.items() if size is not None}
        return {"rows": self.rows, "columns": self.columns, **known}

    @classmethod
    def of(cls, facts: Mapping[str, Any], coordinates: Mapping[str, NDArray[np.float64]]) -> Self:
        """Undo `facts` and `coordinates`."""
        row, column = coordinates["row"], coordinates["column"]
        columns = whole("columns", facts["columns"], 1, ShapeError)
        is_whole = (column >= 0) & (column < columns) & (row == np.round(row))
        if (wrong := ~(is_whole | np.isnan(row))).any():
            raise ShapeError(
                f"row {row[wrong][0]:g}, column {column[wrong][0]:g} is no place of a grid of "
                f"{columns} columns."
            )
        cells = np.where(np.isnan(row), -1, row * columns + column)
        sizes = {name: tuple(facts[name]) for name in ("image_size", "patch_size") if name in facts}
        return cls(facts["rows"], columns, cells, **sizes)

    def names(self) -> list[str]:
        """Name patches "row,column"."""
        places = zip(*(part.tolist() for part in np.divmod(self.cells, self.columns)), strict=True)
        return self._named([f"{row},{column}" for row, column in places])

    def described(self) -> str:
        """Say how many rows and columns of patches there are."""
        return f"{self.rows} × {self.columns} patches"

    @property
    def noun(self) -> str:
        """What one of them is called; a class token is no patch."""
        return "patch" if len(self) and bool(self.is_somewhere.all()) else "token"

    @property
    def covered(self) -> tuple[float, float]:
        """Which share of the picture's height and width the patches cover."""
        if self.image_size is None or self.patch_size is None:
            return 1.0, 1.0
        counts = self.rows, self.columns
        parts = zip(counts, self.patch_size, self.image_size, strict=True)
        down, across = (count * patch / size for count, patch, size in parts)
        return down, across

    def token_at(self, row: int, column: int, name: str = "query") -> int:
        """Find the index of the token of a patch.

        Raises
        ------
        SelectionError
            If there is no such patch, or it has no token.
        """
        try:
            place = (
                whole("row", row, 0, SelectionError, most=self.rows - 1),
                whole("column", column, 0, SelectionError, most=self.columns - 1),
            )
        except SelectionError as error:
            raise SelectionError(
                f"{name}=({row!r:.40}, {column!r:.40}) is no patch: rows are 0 .. {self.rows - 1}, "
                f"columns 0 .. {self.columns - 1}."
            ) from error
        if not (found := self.tokens_at(*place)):
            raise SelectionError(
                f"The patch in row {row}, column {column} has no token among these {len(self)}."
            )
        return found[0]

    def tokens_at(self, row: int, column: int) -> list[int]:
        """List the tokens of a patch; empty if there is no such patch, or it has no token."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            return []
        found: list[int] = np.flatnonzero(self.cells == row * self.columns + column).tolist()
        return found

    def spread(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Lay one number per token out as (rows, columns), NaN where there is no token."""
        laid = np.full(self.rows * self.columns, np.nan)
        is_patch = self.cells >= 0
        laid[self.cells[is_patch]] = np.asarray(values, dtype=np.float64)[is_patch]
        return laid.reshape(self.rows, self.columns)


def _cells(given: Any, rows: int, columns: int) -> NDArray[np.int64]:
    found = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if found.dtype.kind == "f" and np.isfinite(found).all() and (found == np.round(found)).all():
        found = found.astype(np.int64)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        raise ShapeError(
            f"cells must be whole numbers, one per token, not {found.dtype} {found.shape}."
        )
    cells: NDArray[np.int64] = found.astype(np.int64)
    outside = (cells < -1) | (cells >= rows * columns)
    if outside.any():
        token = int(np.flatnonzero(outside)[0])
        raise ShapeError(
            f"The cell of token {token} is {cells[token]}, but those of a grid of {rows} × "
            f"{columns} are 0 .. {rows * columns - 1}, and -1 for tokens that are no patches."
        )
    used, count = np.unique(cells[cells >= 0], return_counts=True)
    if (count > 1).any():
        twice = int(used[count > 1][0])
        one, two, *_ = np.flatnonzero(cells == twice).tolist()
        raise ShapeError(
            f"The tokens {one} and {two} both lie in cell {twice}: a patch has one token."
        )
    return cells


def _pair(name: str, given: Any, *, whole_only: bool) -> tuple[Any, Any]:
    try:
        height, width = given
        pair = tuple(
            whole(name, side, 1, ShapeError) if whole_only else float(side)
            for side in (height, width)
        )
    except (TypeError, ValueError) as error:
        unit = "whole numbers" if whole_only else "numbers above 0"
        raise ShapeError(
            f"{name} is (height, width) in pixels, two {unit}, not {given!r:.80}."
        ) from error
    if not all(0 < side < float("inf") for side in pair):
        raise ShapeError(f"{name} is (height, width) in pixels above 0, not {given!r:.80}.")
    return pair[0], pair[1]


def _check_patches(
    rows: int, columns: int, image_size: tuple[int, int] | None, patch_size: tuple[float, float]
) -> None:
    if image_size is None:
        raise ShapeError("patch_size needs image_size, the picture's height and width in pixels.")
    sides = zip(("rows", "columns"), (rows, columns), patch_size, image_size, strict=True)
    for what, count, patch, size in sides:
        if (count - 1) * patch >= size:  # the last one may reach beyond, where pictures are padded
            raise ShapeError(
                f"{count} {what} of {patch:g} pixels do not fit a picture of {size} pixels."
            )


def _what_fits(rows: int, columns: int, prefix: int | None, tokens: int) -> str:
    patches = rows * columns
    said = "no class token or one" if prefix is None else f"prefix={prefix}"
    wanted = f"{patches} or {patches + 1}" if prefix is None else str(patches + prefix)
    fits = []
    if tokens - patches > 0:
        fits.append(f"prefix={tokens - patches} fits if so many tokens at the front are no patches")
    for before in sorted({0, 1, prefix or 0}):
        side = isqrt(max(tokens - before, 0))
        if side and side * side == tokens - before and (side, side) != (rows, columns):
            fits.append(f"a grid of {side} × {side} with prefix={before} fits")
    fits.append("cells= gives the cell of each token, row * columns + column or -1")
    return (
        f"A grid of {rows} × {columns} with {said} has {wanted} tokens, but there are {tokens}: "
        f"{'; '.join(fits)}."
    )
