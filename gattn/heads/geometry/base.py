"""What grids, times and layouts have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gattn.errors import ShapeError


class Geometry:
    """Where the tokens of one side lie.

    A geometry has one entry per token: those that lie nowhere, such as a class token, have NaN as
    coordinates. Tokens that are left out leave their places behind, so that a part of a picture
    still knows where it lies.
    """

    AXES: ClassVar[tuple[str, ...]]
    """The names of the coordinates."""
    PER_TOKEN: ClassVar[str]
    """The field with one entry per token."""

    def __len__(self) -> int:
        """Count the tokens."""
        return len(getattr(self, self.PER_TOKEN))

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Self:
        """Take some of the tokens, by their indices, by a mask or by a slice."""
        parts: dict[str, Any] = {self.PER_TOKEN: getattr(self, self.PER_TOKEN)[chosen]}
        return replace(self, **parts)  # type: ignore[type-var]

    def __eq__(self, other: object) -> bool:
        """Compare places, and what else is known of them."""
        if type(other) is not type(self):
            return NotImplemented
        return all(
            np.array_equal(one, two, equal_nan=True) if isinstance(one, np.ndarray) else one == two
            for one, two in (
                (getattr(self, field.name), getattr(other, field.name))
                for field in fields(self)  # type: ignore[arg-type]
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def coordinates(self) -> dict[str, NDArray[np.float64]]:
        """Return the tokens' coordinates by name, NaN where a token lies nowhere."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return what the coordinates do not say, as JSON can hold it."""
        return {}

    @classmethod
    def of(cls, facts: Mapping[str, Any], coordinates: Mapping[str, NDArray[np.float64]]) -> Self:
        """Undo `facts` and `coordinates`."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Name the tokens by where they lie, if that is a name, for those without a text."""
        return []

    def described(self) -> str:
        """Say in a few words what the tokens are."""
        return f"{len(self)} {self.noun}s"

    @property
    def noun(self) -> str:
        """What one of them is called: "token", unless all are something else."""
        return "token"

    @property
    def is_somewhere(self) -> NDArray[np.bool_]:
        """Which tokens lie somewhere, shape (tokens,)."""
        return ~np.isnan(self.coordinates()[self.AXES[0]])

    def _named(self, somewhere: list[str]) -> list[str]:
        """Name a single token that lies nowhere and comes first "class", others "special 0" ..."""
        apart = np.flatnonzero(~self.is_somewhere).tolist()
        others = ["class"] if apart == [0] else [f"special {n}" for n in range(len(apart))]
        for place, name in zip(apart, others, strict=True):
            somewhere[place] = name
        return somewhere


def as_places(values: Any, name: str, axes: tuple[str, ...]) -> NDArray[np.float64]:
    """Read one row of finite coordinates per token, or of NaN; of any library.

    Raises
    ------
    ShapeError
        If the numbers have another shape, or are infinite or partly NaN.
    """
    wanted = f"{name} must hold ({', '.join(axes)}) for each token, (tokens, {len(axes)})"
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu().double().numpy()
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{wanted}, as numbers, not {values!r:.80}.") from error
    if found.ndim != 2 or found.shape[1] != len(axes):
        more = " Project it to two dimensions first." if found.shape[1:] == (3,) else ""
        raise ShapeError(f"{wanted}, not {found.shape}.{more}")
    missing = np.isnan(found)
    if np.isinf(found).any() or (missing.any(1) != missing.all(1)).any():
        row = int(np.flatnonzero(np.isinf(found).any(1) | (missing.any(1) != missing.all(1)))[0])
        raise ShapeError(
            f"The place of token {row} is {tuple(found[row].tolist())}: it must be finite, or NaN "
            "throughout for a token that lies nowhere."
        )
    return found
