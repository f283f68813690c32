"""Tokens at places of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from gattn.errors import ShapeError
from gattn.heads.geometry.base import Geometry, as_places

_MOST_SAID = 8
"""How many tokens without a place an error lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Geometry):
    """A place for each token, such as the positions of a graph's nodes.

    Parameters
    ----------
    places : array (tokens, 2)
        x and y of each token, as torch-geometric's ``data.pos``; NaN for a token that lies nowhere.

    Raises
    ------
    ShapeError
        If a place is infinite, or there are not two coordinates.
    """

    AXES: ClassVar[tuple[str, ...]] = ("x", "y")
    PER_TOKEN: ClassVar[str] = "places"

    places: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", as_places(self.places, "places", self.AXES))

    def __repr__(self) -> str:
        return f"Layout({len(self)} {self.noun}s)"

    @property
    def noun(self) -> str:
        """What one of them is called."""
        return "node"

    @classmethod
    def named(cls, places: Any, positions: Sequence[int], labels: Sequence[str]) -> Layout:
        """Read one place per token, in order, or by its position or name as NetworkX has them.

        Raises
        ------
        ShapeError
            If a token has no place, or there is another number of them.
        """
        if isinstance(places, Mapping):
            places = _in_order(places, positions, labels)
        found = cls(places)
        if len(found) != len(positions):
            raise ShapeError(f"There are {len(found)} places, but {len(positions)} tokens.")
        return found

    def coordinates(self) -> dict[str, NDArray[np.float64]]:
        """Return x and y of each token."""
        return {"x": self.places[:, 0], "y": self.places[:, 1]}

    @classmethod
    def of(cls, facts: Mapping[str, Any], coordinates: Mapping[str, NDArray[np.float64]]) -> Self:
        """Undo `coordinates`."""
        return cls(np.stack([coordinates[axis] for axis in cls.AXES], axis=1))


def _in_order(
    places: Mapping[Any, Any], positions: Sequence[int], labels: Sequence[str]
) -> list[Any]:
    by_name = all(label in places for label in labels)
    by_position = not by_name and any(position in places for position in positions)
    nodes: Sequence[Any] = positions if by_position else labels
    if not by_position and len(set(labels)) < len(labels):
        raise ShapeError("Several tokens have the same name: give their places by position.")
    if missing := [node for node in nodes if node not in places]:
        some = ", ".join(map(repr, missing[:_MOST_SAID])) + ", ..." * (len(missing) > _MOST_SAID)
        what = "position" if by_position else "token"
        raise ShapeError(
            f"There is no place for the {what}{'s' * (len(missing) > 1)} {some}: give (x, y) for "
            "each position, or for each name; (nan, nan) for a token that lies nowhere."
        )
    return [places[node] for node in nodes]
