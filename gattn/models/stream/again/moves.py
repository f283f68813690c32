"""What changes in a layer's twin where some of its calls give other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.again.held_runs import Spot


@dataclass(frozen=True, eq=False)
class Moved:
    """What changes where some calls give other numbers, all else held.

    Parameters
    ----------
    noise : Tensor (tokens, dim)
        By how much what they add to the stream changes.
    changes : dict of Tensor (tokens, dim)
        What else changes, by its place.
    limit : Tensor (tokens, 1)
        How much of a change may be rounding.
    tolerance : float
        How much of a number may be rounding.
    """

    noise: Tensor
    changes: dict[Spot, Tensor]
    limit: Tensor
    tolerance: float

    def at(self, place: Spot) -> Tensor:
        """Return what changes at a place."""
        return numbers_at(self.changes, place)

    def share(self, place: Spot) -> float | None:
        """Return by which number a change is the noise's; None if it is not just multiplied."""
        change = self.changes.get(place)
        if change is None:
            return None
        change, noise = change.detach(), self.noise.detach()
        size = float((change * noise).sum() / noise.square().sum())
        if bool(((change - size * noise).abs() > self.limit).any()):
            return None
        return next((float(x) for x in (0, 1) if abs(size - x) <= self.tolerance), size)


def numbers_at(numbers: Mapping[Spot, Tensor], place: Spot) -> Tensor:
    """Return the numbers of a place, if it was met."""
    if place not in numbers:
        raise CaptureError("A layer's code calls other modules where numbers are others.")
    return numbers[place]
