"""The tokens of all sequences of a call, one after another, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gattn.models.read.places import Place


@dataclass(frozen=True, eq=False)
class Rows:
    """Which sequence each row of a call's tokens belongs to, and where it stands there.

    Parameters
    ----------
    place : Place
        Where the call is.
    slots : int
        How many slots of queries each sequence has in the call's tensors.
    device : torch.device
        Where the tensors are.
    """

    place: Place
    slots: int
    device: torch.device

    @cached_property
    def at(self) -> Tensor:
        """The slot of each row, if the sequences' slots are joined: (rows,)."""
        sides = self.place.queries
        found = [n * self.slots + side.slots.to(self.device) for n, side in enumerate(sides)]
        return torch.cat(found)

    @cached_property
    def element(self) -> Tensor:
        """The number of the sequence of each row in its batch."""
        counts = torch.tensor([len(side) for side in self.place.queries], device=self.device)
        return torch.arange(len(counts), device=self.device).repeat_interleave(counts)

    @cached_property
    def position(self) -> Tensor:
        """The position of each row in its sequence."""
        return torch.cat([side.at.to(self.device) for side in self.place.queries])

    @cached_property
    def are_whole(self) -> bool:
        """Whether the call's keys are its queries, and no earlier tokens, as those of a cache."""
        sides = zip(self.place.queries, self.place.keys, strict=True)
        return all(torch.equal(query.at, key.at) for query, key in sides)

    def of(self, values: Tensor) -> Tensor:
        """Take the rows of a tensor (sequences, slots, ...)."""
        return values.flatten(0, 1)[self.at]

    def put(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return a tensor (sequences, slots, ...) with other rows; padding stays."""
        return values.flatten(0, 1).index_copy(0, self.at, rows.to(values.dtype)).view_as(values)

    def mean(self, rows: Tensor) -> Tensor:
        """Give each row the mean over its sequence: (rows, dim)."""
        count = len(self.place.queries)
        total = rows.new_zeros(count, rows.shape[-1]).index_add(0, self.element, rows)
        size = torch.bincount(self.element, minlength=count).clamp_min(1)
        return (total / size[:, None])[self.element]
