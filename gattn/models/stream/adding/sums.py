"""The sum of the residual stream and what a layer's attention adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from gattn.models.stream.adding.ways import GIVEN, Entry, Noise, Source, followed
from gattn.models.stream.again.events import Event, Key
from gattn.models.stream.again.twins import Twin
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.sublayers import Branch
from gattn.normalizers.base import widened


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of the stream and what attention adds.

    Parameters
    ----------
    part : Branch
        What attention adds, as it is added.
    branches : sequence of Tensor (tokens, dim)
        What attention gave, and norms of that; the last one was multiplied, and added.
    total, added : Tensor (tokens, dim)
        The sum, and what was added.
    source : callable
        What is added, in a layer that runs again.
    events : sequence of Event
        What may read the sum.
    is_parallel : bool
        Whether what an MLP gives is in the sum, too.
    last : Event, optional
        What reads such a sum, and ends the layer.
    """

    part: Branch
    branches: Sequence[Tensor]
    total: Tensor
    added: Tensor
    source: Callable[[], Source | None]
    events: Sequence[Event]
    is_parallel: bool = False
    last: Event | None = None

    def followed(self) -> Branch:
        """Return what attention adds, and the stream around it."""
        after = self.part.residual + self.added
        part = replace(self.part, after=after, is_parallel=self.is_parallel)
        if not self.is_parallel:
            return followed(part, self.total, self.branches, self.events, self.source)
        if self.last is None:
            return part
        return replace(part, norm=self.last.norm, is_post_norm=True)


@dataclass(frozen=True, eq=False)
class Added:
    """What attention adds to the stream, but for a factor.

    Parameters
    ----------
    part : Branch
        It, without the factor.
    given : Tensor (tokens, dim)
        The stream.
    branches : sequence of Tensor (tokens, dim)
        What attention gave, and norms of that, one after another; the last one is multiplied by the
        factor, and added.
    again : callable
        Makes a layer that runs again, if it can.
    entry : Entry
        How the stream comes from what the layer is given.
    """

    part: Branch
    given: Tensor
    branches: Sequence[Tensor]
    again: Callable[[], Twin | None]
    entry: Entry = GIVEN

    @property
    def branch(self) -> Tensor:
        """What is multiplied by the factor, and added."""
        return self.branches[-1]

    @cached_property
    def twin(self) -> Twin | None:
        """The layer, if it can run again, and gives the branch again."""
        twin = self.again()
        return twin if twin is not None and twin.branch(self.branch) else None

    @cached_property
    def keys(self) -> frozenset[Key]:
        """The calls that give the branch."""
        return frozenset() if self.twin is None else self.twin.branch(self.branch)

    def after_norms(self, events: Sequence[Event]) -> Added:
        """Follow norms and scales that are given the branch."""
        part, branches = self.part, self.branches
        for event in events:
            norm = event.norm if takes(event.given, branches[-1]) else None
            if norm is not None:
                folded = replace(part, norm=norm).normed()
                part = replace(folded, residual=part.residual, after=part.after)
                branches = [*branches, event.output]
        if len(branches) == len(self.branches):
            return self
        return replace(self, part=part, branches=branches)

    def sum(self, total: Tensor, size: float, events: Sequence[Event]) -> Sum:
        """Make a sum of the factor that was found."""
        part = replace(self.part, factor=self.part.factor * size, bias=self.part.bias * size)
        added = size * widened(self.branch).to(part.residual.dtype)
        return Sum(part, self.branches, total, added, self.source(size), events)

    def source(
        self, size: float, noise: Noise | None = None, written: Event | None = None
    ) -> Callable[[], Source | None]:
        """Return what makes the source of a sum, if the layer runs again."""

        def source() -> Source | None:
            known = self.branch, size, noise, written, self.entry
            return None if self.twin is None else Source(self.twin, *known)

        return source
