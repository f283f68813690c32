"""Finds where the residual stream goes after attention: on as it is, or through a norm.

Both are told by what the layer does, not by the order of its modules. Where a module gives what is
added to the stream, their sums tell. Else a copy of the layer runs again (`Replay`): with all that
its modules gave held, the stream before the layer and what attention adds are changed, each
otherwise, or what a norm of the sum gives. The end of the layer changes by as much as the one or
the other if that is the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from gattn.models.stream.events import Event, Key
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.replays import Moved, Replay
from gattn.models.stream.rounding import factor_of
from gattn.models.stream.sublayers import Branch, FixedNorm
from gattn.normalizers.base import widened

Noise = Callable[[Moved], Tensor]
Share = Callable[[Event | None, Event | None], float | None]
"""By how much the end, or what a last module is given, follows the sum, or what a module gives.

None if it does in another way than multiplied by a number, or it is not known.
"""


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

    def moved(self, start: Event | None) -> Moved:
        """Move the sum, or what another module gives; all else is held.

        The stream before the layer moves otherwise than what attention adds: where their sum tells
        how a number changes, it is made of the sum, and of neither alone.
        """
        if start is not None and start is not self.written:
            return self.replay.moved([start.key], start.output)
        found = self.replay.moved(self._keys, self.branch, self.factor, with_given=True)
        if start is not None:
            return replace(found, noise=found.at(start.key))
        return found if self.noise is None else replace(found, noise=self.noise(found))

    @cached_property
    def _moved(self) -> dict[Event | None, Moved]:
        return {}

    def share(self, start: Event | None, last: Event | None) -> float | None:
        """Return by how much a target follows the sum, or what a module gives."""
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
        found, _ = _followed(part, after, events, partial(share, leads))
        if found is not None:
            return found
    if (source := again()) is not None:
        events = [*source.replay.events, *filter(None, [source.written])]
        found, is_read_only = _followed(part, after, events, source.share)
        if found is not None:
            return found
        starts = _passed_on(part, after, events, source.share) if is_read_only else []
        readers = [x for x in source.replay.events if is_same(x.given, after)]
        is_read = bool(readers) and all(source.share(None, x) == 1 for x in readers)
        if is_read_only and is_read and not starts:
            starts = [None]  # Nothing is added to the sum, which is the layer's last stream.
        if len(starts) == 1:
            (start,) = starts
            norm = next(_norms(after, events), None) if start is None else start.norm
            is_post_norm = start is not None
            return replace(part, norm=norm, is_post_norm=is_post_norm, is_changed_last=True)
    return replace(part, norm=None, is_post_norm=True)


def _followed(
    part: Branch, after: Tensor, events: Sequence[Event], share: Share
) -> tuple[Branch | None, bool]:
    """Follow the stream; else say whether the layer's end does not depend on the sum directly."""
    lasts = lasts_of(events, part.end)
    readers = [x for x in events if x.changes and is_same(x.given, after)]
    for one in readers:
        if one in lasts and one.norm is not None:
            return replace(part, norm=one.norm, is_post_norm=True), False
    # What an MLP gives may end a layer, too, where nothing is added to it.
    readers, is_read_only = [x for x in readers if x not in lasts], True
    for last in (None, *lasts):
        if _is_given(last, after):
            continue
        size = share(None, last)
        is_read_only &= size == 0
        if size:
            return _ended(replace(part, norm=next(_norms(after, events), None)), size, last), False
        sizes = [(x, share(x, last)) for x in readers if not _is_given(last, x.output)]
        is_read_only &= all(size == 0 for _, size in sizes)
        through = [(x, times) for x, times in sizes if x.norm is not None and times != 0]
        # Of several norms, or beside the sum itself, none is the stream.
        if size == 0 and len(through) == 1:
            (start, times), *_ = through
            if times is not None:
                return _ended(replace(part, norm=start.norm, is_post_norm=True), times, last), False
    return None, is_read_only


def _passed_on(
    part: Branch, after: Tensor, events: Sequence[Event], share: Share
) -> list[Event | None]:
    """List the streams that end the layer after further norms, as those after cross-attention."""
    lasts = lasts_of(events, part.end)
    norms = [x for x in events if x.changes and x.norm is not None]

    def ends(one: Event) -> bool:
        is_last = one in lasts or any(share(one, last) for last in (None, *lasts))
        return is_last or goes_on(one, one.output, norms[norms.index(one) + 1 :])

    def goes_on(start: Event | None, stream: Tensor, further: Sequence[Event]) -> bool:
        some = (x for x in further if not is_same(x.given, stream))
        return any(bool(share(start, x)) and ends(x) for x in some)

    starts = [None, *(x for x in norms if is_same(x.given, after))]
    return [x for x in starts if goes_on(x, after if x is None else x.output, norms)]


def _norms(after: Tensor, events: Sequence[Event]) -> Iterator[FixedNorm]:
    """Find the norms that read the sum."""
    return (x.norm for x in events if is_same(x.given, after) and x.norm is not None)


def _is_given(last: Event | None, stream: Tensor) -> bool:
    """Return whether nothing is added to a stream before the module that ends the layer."""
    return last is not None and is_same(last.given, stream)


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
