"""What is drawn over an image: one number per patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.errors import ShapeError
from gattn.heads.geometry import Geometry, Grid


@dataclass(frozen=True)
class Patches:
    """One number per patch, and what it is.

    Parameters
    ----------
    values : array (rows, columns)
        NaN where there is no number.
    grid : Grid
        Where the patches lie.
    name : str
        What the numbers are.
    title : str
        What they are of.
    said : tuple of str
        What the caption says.
    outlined : tuple of (int, int)
        The patches, by row and column, that are asked about.
    on_image : float, optional
        Which share of the attention lies on the image.
    """

    values: NDArray[np.float64]
    grid: Grid
    name: str
    title: str
    said: tuple[str, ...]
    outlined: tuple[tuple[int, int], ...] = ()
    on_image: float | None = None

    @property
    def top(self) -> float:
        """The largest size of a number; 1 if all are 0 or missing."""
        sizes = np.abs(self.values[np.isfinite(self.values)])
        return float(sizes.max(initial=0.0)) or 1.0

    @property
    def least(self) -> float:
        """The least number; 0 if there is none."""
        numbers = self.values[np.isfinite(self.values)]
        return float(numbers.min()) if numbers.size else 0.0

    @property
    def is_signed(self) -> bool:
        """Whether a number is negative."""
        return bool((self.values < 0).any())


def grid_of(geometry: Geometry | None, given: Any, tokens: int, why: str, how: str = "") -> Grid:
    """Take the grid that is known, or the one that is given.

    Raises
    ------
    ShapeError
        If there is none, with the reason `why` and `how` else to give it, or it does not fit.
    """
    if isinstance(given, Grid):
        if len(given) != tokens:
            raise ShapeError(f"The grid has {len(given)} tokens, but there are {tokens}.")
        return given
    if given is not None:
        try:
            rows, columns = given
        except (TypeError, ValueError) as error:
            raise ShapeError(f"grid is (rows, columns), or a Grid, not {given!r:.80}.") from error
        return Grid.regular(rows, columns, tokens)
    if isinstance(geometry, Grid):
        return geometry
    raise ShapeError(
        f"An image needs a grid of patches, but {why}: {how}pass grid=(rows, columns)."
    )
