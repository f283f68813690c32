"""Finds the stream that attention is added to, where that is not what the layer is given.

A Conformer adds an MLP to it before its attention, DeepNorm multiplies it, and other layers norm it
first. As for the end of a layer, all that its modules gave is held, and what changes with the
stream shows on which way it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.adding.sums import Added, Sum
from gattn.models.stream.adding.ways import Entry, is_same, norms_along, ways
from gattn.models.stream.again.events import Event, Key
from gattn.models.stream.again.held_runs import Spot
from gattn.models.stream.again.moves import Moved
from gattn.models.stream.norms import StreamNorm
from gattn.normalizers.base import widened


@dataclass(frozen=True, eq=False)
class Entries:
    """Looks for a stream that attention is added to.

    Parameters
    ----------
    added : Added
        What attention adds, in a layer that runs again.
    """

    added: Added

    def find(self) -> Iterator[Added]:
        """List what attention adds, each to a stream that may be that of the sum."""
        twin, given = self.added.twin, self.added.given
        assert twin is not None
        moved = twin.moved_given()
        known, places = [widened(given)], list(twin.places)
        ends = [n for n, place in enumerate(places, 1) if place in self.added.keys]
        for place in places[: max(ends, default=None)]:
            stream = twin.places[place]
            if stream.shape != given.shape or any(is_same(stream, x) for x in known):
                continue
            known.append(stream)
            if place is not None and (found := self._through(place, stream, moved)) is not None:
                yield found
        yield from self._multiplied(moved)

    def _through(self, place: Key, stream: Tensor, moved: Moved) -> Added | None:
        """Follow the stream to what a module is given."""
        twin = self.added.twin
        assert twin is not None
        of: dict[Event | None, Moved] = {None: moved}

        def share(start: Event | None, last: Event | None) -> float | None:
            if start not in of:
                assert start is not None
                of[start] = twin.moved([start.key], start.output)
            assert last is not None
            return of[start].share(last.key)

        events, target = twin.events, Event(place, stream, stream, False)
        found = list(ways(None, events, [target], share, most=len(events)))
        if len(found) != 1 or any(size is None for size, _ in found[0]):
            return None
        *links, (size, _) = found[0]
        assert size is not None
        norms = norms_along([*links, (size, None)], stream)
        last = links[-1][1] if links else None
        before = [self.added.given, *(one.output for _, one in links if one is not None)]
        after = [*(one.given for _, one in links if one is not None), stream]
        adds_first = not all(map(is_same, before, after))
        return self._to(stream, norms, Entry(last, size), adds_first=adds_first)

    def _multiplied(self, moved: Moved) -> Iterator[Added]:
        """Follow the stream where it is only multiplied by a number before the sum."""
        seen: list[float] = []
        for place in moved.changes:
            about = moved.share(place)
            if not about or about == 1:
                continue
            size = self._measured(place)
            if not any(abs(size - x) <= 1e-6 * abs(x) for x in seen):
                seen.append(size)
                stream = size * widened(self.added.given)
                norms = [StreamNorm.of_number(size, stream)]
                yield self._to(stream, norms, Entry(None, size))

    def _measured(self, place: Spot) -> float:
        """Measure the number, where a place is the stream and what attention adds, each times one.

        A few numbers that changed tell it less precisely than all that are there.
        """
        assert self.added.twin is not None
        total = self.added.twin.places[place].double()
        some = [x.double() for x in (self.added.given, self.added.branch)]
        products = torch.stack([torch.stack([(x * y).sum() for y in some]) for x in some])
        wanted = torch.stack([(x * total).sum() for x in some])
        return float(torch.linalg.lstsq(products, wanted[:, None]).solution[0])

    def _to(
        self, stream: Tensor, norms: list[StreamNorm], entry: Entry, *, adds_first: bool = False
    ) -> Added:
        part = self.added.part
        residual = stream.to(part.residual)
        part = replace(
            part, residual=residual, after=residual, earlier=norms, adds_first=adds_first
        )
        stream = stream.to(self.added.given)
        return replace(self.added, part=part, given=stream, entry=entry)


def of_entry(added: Added, found: Sum) -> Sum:
    """Refuse gradients to a stream that is only known by its numbers."""
    if added.twin is not None and added.twin.is_trained:
        raise CaptureError(
            f"The stream to which {added.part.name} adds is not what its layer is given, and "
            "gradients to it are not known: run the model under torch.no_grad(), or freeze it."
        )
    return found
