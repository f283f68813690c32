"""Finds where the residual stream goes after attention: on as it is, or through a norm.

Both are told by what the layer does, not by the order of its modules. Where a module gives what is
added to the stream, their sums tell. Else a copy of the layer runs again (`Replay`): with all that
its modules gave held, what the attention adds is changed, or what a norm of the sum gives. The end
of the layer changes by as much where the one or the other is the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from gattn.models.stream.events import Event, Key
from gattn.models.stream.replays import Moved, Replay
from gattn.models.stream.rounding import factor_of
from gattn.models.stream.sublayers import Branch, FixedNorm
from gattn.normalizers.base import widened

_FEW = 4
"""Of how many tokens sums are compared first: most are no sums, and need no look at all tokens."""

Noise = Callable[[Moved], Tensor]
Share = Callable[[Event | None, Event | None], float | None]
"""By how much the end, or what a last module is given, follows the sum, or what a module gives."""


@dataclass(frozen=True, eq=False)
class Source:
    """What attention adds to the stream, in a layer that runs again.

    Parameters
    ----------
    replay : Replay
        The layer.
    branch : Tensor (tokens, dim)
        What is multiplied by a factor and added.
    factor : float
        About by which number.
    noise : callable, optional
        By how much the sum changes, if not by that number alone.
    written : Event, optional
        A norm of the sum that no module applies, where its output is given.
    """

    replay: Replay
    branch: Tensor
    factor: float
    noise: Noise | None = None
    written: Event | None = None

    @cached_property
    def _keys(self) -> frozenset[Key]:
        return self.replay.branch(self.branch)

    def moved(self, start: Event | None = None, *, is_held: bool = True) -> Moved:
        """Move it, or what another module gives; all else is held, or only the attention."""
        if start is not None and start is not self.written:
            return self.replay.moved([start.key], start.output)
        found = self.replay.moved(self._keys, self.branch, self.factor, is_held=is_held)
        if start is not None:
            return replace(found, noise=found.changes[start.key])
        return found if self.noise is None else replace(found, noise=self.noise(found))

    @cached_property
    def _moved(self) -> dict[Event | None, Moved]:
        return {}

    def share(self, start: Event | None, last: Event | None) -> float | None:
        """Return by how much a target follows the sum, or what a module gives."""
        if start not in self._moved:
            self._moved[start] = self.moved(start)
        return self._moved[start].share(None if last is None else last.key)


def lasts_of(events: Sequence[Event], end: Tensor) -> list[Event]:
    """List the modules in which a layer ends."""
    return [x for x in events if x.changes and is_same(x.output, end)]


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether numbers are the same, in whatever precision."""
    return one.shape == other.shape and torch.equal(widened(one), widened(other))


def followed(
    part: Branch, after: Tensor, events: Sequence[Event], again: Callable[[], Source | None]
) -> Branch:
    """Find the norm that reads the sum, whether it gives the stream, and what ends the layer."""

    def share(leads: Callable[..., bool], start: Event | None, last: Event | None) -> float | None:
        if any(x is not None and x.norm is None for x in (start, last)):
            return None  # It may add to the stream itself.
        one = after if start is None else start.output
        return 1.0 if leads(one, part.end if last is None else last.given, events) else None

    found, _ = _followed(part, after, events, partial(share, _is_next))
    if found is None:
        found, _ = _followed(part, after, events, partial(share, _leads))
    if found is None and (source := again()) is not None:
        events = [*source.replay.events, *filter(None, [source.written])]
        found, is_read_only = _followed(part, after, events, source.share)
        readers = [x for x in source.replay.events if is_same(x.given, after)]
        is_read_only &= bool(readers) and all(source.share(None, x) == 1 for x in readers)
        if found is None and is_read_only:
            # Nothing is added to the sum, which is the layer's last stream.
            return replace(part, norm=next(_norms(after, events), None))
    return replace(part, norm=None, is_post_norm=True) if found is None else found


def _followed(
    part: Branch, after: Tensor, events: Sequence[Event], share: Share
) -> tuple[Branch | None, bool]:
    """Follow the stream; else say whether the layer's end does not depend on the sum directly."""
    lasts = lasts_of(events, part.end)
    readers = [x for x in events if x.changes and is_same(x.given, after)]
    readers.sort(key=lambda x: x.norm is None)
    is_read_only = True
    for start in (None, *readers):
        if start in lasts:
            if start is not None and start.norm is not None:
                return replace(part, norm=start.norm, is_post_norm=True), False
            continue  # What an MLP gives may end a layer, too, where nothing is added to it.
        stream = after if start is None else start.output
        for last in (None, *lasts):
            # Nothing was added to what is read there.
            if last is not None and is_same(last.given, stream):
                continue
            size = share(start, last)
            is_read_only &= size == 0
            if size:
                norm = next(_norms(after, events), None) if start is None else start.norm
                one = replace(part, norm=norm, is_post_norm=start is not None)
                return _ended(one, size, last), False
    return None, is_read_only


def _norms(after: Tensor, events: Sequence[Event]) -> Iterator[FixedNorm]:
    """Find the norms that read the sum."""
    return (x.norm for x in events if is_same(x.given, after) and x.norm is not None)


def _ended(part: Branch, size: float, last: Event | None) -> Branch:
    """Say what makes the end of the stream: a number, or a module."""
    if last is None and size == 1:
        return part
    if last is None:
        ones = torch.ones_like(part.end)
        norm = FixedNorm(size * ones[0], 0 * ones[0], ones[:, 0], False)
        return replace(part, end_norm=norm, before_end=part.end / size)
    if size != 1 or last.norm is None:
        return replace(part, is_changed_last=True)
    return replace(part, end_norm=last.norm, before_end=widened(last.given).to(part.end))


def _is_next(stream: Tensor, target: Tensor, events: Sequence[Event]) -> bool:
    """Return whether a tensor is another, or what a module gives was added to it."""
    return is_same(stream, target) or is_sum(stream, target, events)


def _leads(stream: Tensor, target: Tensor, events: Sequence[Event]) -> bool:
    """Return whether a tensor is another, to which was added, once or more, what modules give."""
    found, others = [stream], [x.given for x in events if x.given.shape == stream.shape]
    while found:
        one = found.pop()
        further = [x for x in others if is_sum(one, x, events)]
        if any(_is_next(x, target, events) for x in further):
            return True
        others = [x for x in others if not any(x is known for known in further)]
        found += further
    return False


def is_sum(stream: Tensor, total: Tensor, events: Sequence[Event]) -> bool:
    """Return whether a tensor is another, to which was added what a module gives."""
    if total.shape != stream.shape or is_same(total, stream):
        return False
    return any(
        all(
            factor_of(event.output[rows], total[rows], [stream[rows]]) is not None
            for rows in (slice(_FEW), slice(None))
        )
        for event in reversed(events)
        if event.output is not stream and not is_same(event.output, total)
    )
