"""Finds where the residual stream goes after attention: on as it is, or through a norm.

Both are told by what the layer does, not by the order of its modules. Where a module gives what is
added to the stream, their sums tell. Else a copy of the layer runs again (`Twin`): with all that
its modules gave held, the stream before the layer and what attention adds are changed, each
otherwise, or what a norm of the sum gives. The end of the layer changes by as much as the one or
the other if that is the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from torch import Tensor

from gattn.models.stream.again.events import Event, Key
from gattn.models.stream.again.moves import Moved
from gattn.models.stream.again.twins import Twin
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.norms import FixedNorm, StreamNorm
from gattn.models.stream.rounding import factor_of
from gattn.models.stream.sublayers import Branch
from gattn.normalizers.base import widened

Noise = Callable[[Moved], Tensor]
Link = tuple[float | None, Event | None]
Share = Callable[[Event | None, Event | None], float | None]
"""By how much the end, or what a last module is given, follows the sum, or what a module gives.

None if it does in another way than multiplied by a number, or it is not known.
"""


@dataclass(frozen=True)
class Entry:
    """How the stream comes to a sum: what a norm gives, or the layer is given, times a number."""

    start: Event | None = None
    size: float = 1.0


GIVEN = Entry()
"""What the layer is given."""


@dataclass(frozen=True, eq=False)
class Source:
    """What attention adds to the stream, in a layer that runs again.

    Parameters
    ----------
    twin : Twin
        The layer.
    branch : Tensor (tokens, dim)
        What is multiplied by a factor and added.
    factor : float
        About by which number.
    noise : callable, optional
        By how much the sum changes, if not by that number alone.
    written : Event, optional
        A norm of the sum that no module applies, where its output is given.
    entry : Entry
        How the stream comes to the sum.
    """

    twin: Twin
    branch: Tensor
    factor: float
    noise: Noise | None = None
    written: Event | None = None
    entry: Entry = GIVEN

    @cached_property
    def _keys(self) -> frozenset[Key]:
        return self.twin.branch(self.branch)

    def moved(self, start: Event | None) -> Moved:
        """Move the sum, or what another module gives; all else is held.

        The stream before the layer moves otherwise than what attention adds: where their sum tells
        how a number changes, it is made of the sum, and of neither alone.
        """
        if start is not None and start is not self.written:
            return self.twin.moved([start.key], start.output)
        found = self.twin.moved_with_stream(
            self._keys, self.branch, self.factor, self.entry.start, self.entry.size
        )
        if start is not None:
            return replace(found, noise=found.at(start.key))
        return found if self.noise is None else replace(found, noise=self.noise(found))

    @cached_property
    def _moved(self) -> dict[Event | None, Moved]:
        return {}

    def share(self, start: Event | None, last: Event | None) -> float | None:
        """Return by how much a target follows the sum, or what a module gives."""
        if last is not None and last is self.written:
            return float(start is None)
        if start is None and self.written is not None and self.share(self.written, last):
            return 0.0  # All goes through the norm, which is moved by moving the sum.
        if start not in self._moved:
            self._moved[start] = self.moved(start)
        return self._moved[start].share(None if last is None else last.key)


def lasts_of(events: Sequence[Event], end: Tensor) -> list[Event]:
    """List the modules in which a layer ends."""
    return [x for x in events if x.changes and is_same(x.output, end)]


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether numbers are the same, in whatever precision."""
    return one.shape == other.shape and takes(widened(one), widened(other))


def followed(
    part: Branch,
    after: Tensor,
    branches: Sequence[Tensor],
    events: Sequence[Event],
    again: Callable[[], Source | None],
) -> Branch:
    """Find the norm that reads the sum, whether it gives the stream, and what ends the layer.

    `branches` are what attention added, and that before norms, which nothing else adds.
    """
    added = [x for x in events if not any(takes(x.output, one) for one in branches)]
    others = [x for x in added if not (is_same(x.given, after) and x.norm is not None)]

    def share(leads: Callable[..., bool], start: Event | None, last: Event | None) -> float | None:
        if any(x is not None and x.norm is None for x in (start, last)):
            return None  # It may add to the stream itself.
        one, target = after if start is None else start.output, part.end
        target = target if last is None else last.given
        return float(leads(one, target, events, added if start is None else others))

    for leads in (_is_next, _leads):
        found, _ = _found(part, after, events, partial(share, leads), most=1)
        if found is not None:
            return found
    if (source := again()) is not None:
        events = [*source.twin.events, *filter(None, [source.written])]
        found, has_ways = _found(part, after, events, source.share, most=len(events))
        if found is not None:
            return found
        if not has_ways and _is_only_read(after, events, lasts_of(events, part.end), source.share):
            norm = next(_norms(after, events), None)
            return replace(part, norm=norm, is_changed_last=True)
    return replace(part, norm=None, is_post_norm=True)


def _found(
    part: Branch, after: Tensor, events: Sequence[Event], share: Share, most: int
) -> tuple[Branch | None, bool]:
    """Follow the stream through `most` norms, if it has one way; beside another, none is its own.

    Also return whether there are ways.
    """
    lasts = lasts_of(events, part.end)

    def ends(start: Event | None, last: Event | None) -> float | None:
        stream = after if start is None else start.output
        if last in lasts and last is not None and last.norm is None and is_same(last.given, stream):
            return 0.0  # It is an MLP's, to which nothing is added.
        return share(start, last)

    found = list(ways(None, events, (None, *lasts), ends, most))
    return _along(part, after, events, found[0]) if len(found) == 1 else None, bool(found)


def _is_only_read(
    after: Tensor, events: Sequence[Event], lasts: Sequence[Event], share: Share
) -> bool:
    """Return whether the sum, which has no way on, is just what an MLP makes the end of."""
    readers = [x for x in events if is_same(x.given, after)]
    others = [x for x in readers if x.changes and x.norm is None and x not in lasts]
    return (
        bool(readers)
        and all(share(None, x) == 1 for x in readers)
        and all(share(x, last) == 0 for x in others for last in (None, *lasts))
    )


def ways(
    start: Event | None,
    events: Sequence[Event],
    targets: Sequence[Event | None],
    share: Share,
    most: int,
) -> Iterator[list[Link]]:
    """List the ways of a stream to the layer's end, or what modules are given, through norms."""
    for last in targets:
        if (size := share(start, last)) != 0:
            yield [(size, last)]
            return
    for one in events if most else ():
        if one.changes and one.norm is not None and (size := share(start, one)) != 0:
            for way in ways(one, events, targets, share, most - 1):
                yield [(size, one), *way]


def _along(
    part: Branch, after: Tensor, events: Sequence[Event], way: Sequence[Link]
) -> Branch | None:
    """Say through which norms the stream goes; None if it is not just multiplied between them."""
    (size, first), *_ = way
    if any(size is None for size, _ in way):
        return None
    norm = next(_norms(after, events), None)
    is_post_norm = first is not None and size == 1 and is_same(first.given, after)
    if is_post_norm and first is not None:
        norm, way = first.norm, way[1:]
    if any(one is not None and one.norm is None for _, one in way):
        return replace(part, norm=norm, is_post_norm=is_post_norm, is_changed_last=True)
    later = norms_along(way, part.end)
    return replace(part, norm=norm, is_post_norm=is_post_norm, later=later)


def norms_along(way: Sequence[Link], end: Tensor) -> list[StreamNorm]:
    """List norms, and numbers by which the stream is multiplied between them."""
    found: list[StreamNorm] = []
    for size, one in way:
        given = end if one is None else widened(one.given).to(end)
        if size is not None and size != 1:
            found.append(StreamNorm.of_number(size, given))
        if one is not None and one.norm is not None:
            found.append(StreamNorm(one.norm, given))
    return found


def _norms(after: Tensor, events: Sequence[Event]) -> Iterator[FixedNorm]:
    """Find the norms that read the sum."""
    return (x.norm for x in events if is_same(x.given, after) and x.norm is not None)


def _is_next(
    stream: Tensor, target: Tensor, events: Sequence[Event], added: Sequence[Event]
) -> bool:
    """Return whether a tensor is another, or what a module gives was added to it."""
    return is_same(stream, target) or is_sum(stream, target, added)


def _leads(stream: Tensor, target: Tensor, events: Sequence[Event], added: Sequence[Event]) -> bool:
    """Return whether a tensor is another, to which was added, once or more, what modules give."""
    found, others = [stream], [x.given for x in events if x.given.shape == stream.shape]
    while found:
        one = found.pop()
        further = [x for x in others if is_sum(one, x, added)]
        if any(_is_next(x, target, events, added) for x in further):
            return True
        others = [x for x in others if not any(x is known for known in further)]
        found += further
    return False


def is_sum(stream: Tensor, total: Tensor, added: Sequence[Event]) -> bool:
    """Return whether a tensor is another, to which was added what a module gives."""
    if total.shape != stream.shape or is_same(total, stream):
        return False
    return any(
        factor_of(event.output, total, [stream]) is not None
        for event in reversed(added)
        if not any(is_same(event.output, one) for one in (stream, total))
    )
