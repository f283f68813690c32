"""The attention kernels that ran, and which of their numbers doors saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from gattn.models.doors.functions.calling.memory import Memory, memory_of


@dataclass(eq=False)
class Event:
    """A kernel that ran in a module, and the parts of it that products took, and doors saw.

    A softmax over another dimension than the last one may be something else than attention. It is
    missed if a product took all of it unseen, or doors saw less of it than there is, and a product
    took another part.
    """

    where: str
    is_attention: bool = True
    is_own: bool = False
    size: int = 1
    taken: set[tuple[int, ...]] = field(default_factory=set)
    seen: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def is_missed(self) -> bool:
        """Whether no door saw all of it that products took."""
        is_whole = sum(self.seen.values()) >= self.size
        is_in_parts = not self.seen and () not in self.taken
        return not (self.is_own or is_whole or is_in_parts or self.taken <= self.seen.keys())


@dataclass(frozen=True, eq=False)
class Part:
    """So many of the numbers of an event, which lie in some place among them."""

    event: Event
    size: int = 1
    place: tuple[int, ...] = ()

    def take(self) -> None:
        """Note that a product takes them."""
        self.event.taken.add(self.place)

    def claim(self) -> None:
        """Note that a door saw what takes them."""
        self.event.seen[self.place] = self.size


@dataclass(frozen=True, eq=False)
class Softmax:
    """A softmax, or a part of it, that is followed to the product that takes it."""

    part: Part
    memory: Memory | None
    stride: int


def softmax_of(event: Event, x: Tensor, stride: int) -> Softmax:
    """Follow what a softmax gave, whose keys are so far apart."""
    return Softmax(Part(event, x.numel()), memory_of(x), stride)
