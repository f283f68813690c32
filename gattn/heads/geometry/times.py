"""Tokens in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from gattn.checks import finite_number, whole
from gattn.errors import ContractError, SelectionError, ShapeError
from gattn.heads.geometry.base import Geometry, as_places


@dataclass(frozen=True, eq=False, repr=False)
class Times(Geometry):
    """A stretch of time for each token, such as the frames of audio.

    Parameters
    ----------
    stretches : array (tokens, 2)
        When each token begins and ends, in seconds; NaN for a token that is no stretch of time.

    Raises
    ------
    ShapeError
        If a stretch is not finite, or ends before it begins.
    """

    AXES: ClassVar[tuple[str, ...]] = ("start", "stop")
    PER_TOKEN: ClassVar[str] = "stretches"

    stretches: NDArray[np.float64]

    def __post_init__(self) -> None:
        found = as_places(self.stretches, "stretches", self.AXES)
        wrong = found[:, 1] <= found[:, 0]
        if wrong.any():
            token = int(np.flatnonzero(wrong)[0])
            start, stop = found[token].tolist()
            raise ShapeError(f"Token {token} ends at {stop:g} s, but begins at {start:g} s.")
        object.__setattr__(self, "stretches", found)

    def __repr__(self) -> str:
        known = self.stretches[self.is_somewhere]
        span = f", {known.min():g} to {known.max():g} s" if len(known) else ""
        return f"Times({len(self)} tokens{span})"

    @classmethod
    def regular(cls, seconds: float, tokens: int, *, start: float = 0.0, prefix: int = 0) -> Times:
        """Lay tokens out one after the other, after `prefix` tokens that are no stretch of time."""
        try:
            step, begin = finite_number("seconds", seconds), finite_number("start", start)
        except ContractError as error:
            raise ShapeError(str(error)) from error
        if step <= 0:
            raise ShapeError(f"seconds must be above 0, the seconds per token, not {seconds!r}.")
        prefix = whole("prefix", prefix, 0, ShapeError, most=tokens)
        ends = begin + step * np.arange(tokens - prefix + 1)
        apart = np.full((prefix, 2), np.nan)
        return cls(np.concatenate([apart, np.stack([ends[:-1], ends[1:]], axis=1)]))

    def coordinates(self) -> dict[str, NDArray[np.float64]]:
        """Return when each token begins and ends."""
        return {"start": self.stretches[:, 0], "stop": self.stretches[:, 1]}

    @classmethod
    def of(cls, facts: Mapping[str, Any], coordinates: Mapping[str, NDArray[np.float64]]) -> Self:
        """Undo `coordinates`."""
        return cls(np.stack([coordinates[axis] for axis in cls.AXES], axis=1))

    def names(self) -> list[str]:
        """Name tokens by when they begin."""
        return self._named([f"{start:.6g} s" for start in self.stretches[:, 0]])

    def described(self) -> str:
        """Say how long the tokens last."""
        known = self.stretches[self.is_somewhere]
        return f"{known.max() - known.min():g} seconds" if len(known) else f"{len(self)} tokens"

    def token_at(self, second: float, name: str = "query") -> int:
        """Find the index of the token whose stretch holds a moment.

        Raises
        ------
        SelectionError
            If there is none.
        """
        found = np.flatnonzero((self.stretches[:, 0] <= second) & (second < self.stretches[:, 1]))
        if not len(found):
            raise SelectionError(f"No token holds the {name} at {second:g} s; this is {self}.")
        return int(found[0])
