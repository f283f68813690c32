"""Finds the sum of the residual stream and what attention adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.events import Event, Key
from gattn.models.stream.held_runs import Spot
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.replays import Replay
from gattn.models.stream.rounding import factor_of, is_half, tolerance
from gattn.models.stream.sublayers import Branch, FixedNorm
from gattn.models.stream.ways import Noise, Source, followed, lasts_of
from gattn.normalizers.base import widened


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of the stream and what attention adds.

    Parameters
    ----------
    part : Branch
        What attention adds, as it is added.
    branches : sequence of Tensor (tokens, dim)
        What is multiplied and added, and what it was before norms.
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


def after_norms(
    part: Branch, branches: Sequence[Tensor], events: Sequence[Event]
) -> tuple[Branch, Sequence[Tensor]]:
    """Follow norms and scales of what is projected; the last branch is added to the stream."""
    for event in events:
        norm = event.norm if takes(event.given, branches[-1]) else None
        if norm is not None:
            folded = replace(part, norm=norm).normed()
            part = replace(folded, residual=part.residual, after=part.after)
            branches = [*branches, event.output]
    return part, branches


class Sums:
    """Looks for a sum.

    Parameters
    ----------
    part : Branch
        What attention adds, but for a factor.
    given : Tensor (tokens, dim)
        The stream.
    branches : sequence of Tensor (tokens, dim)
        What its attention gave, and norms of that, one after another. The last is multiplied by
        the factor and added to the stream.
    events : sequence of Event
        What ran since the attention was projected.
    attended : Tensor (tokens, dim), optional
        What the attention was given.
    again : callable
        Makes a layer that runs again, if it can.
    """

    def __init__(
        self,
        part: Branch,
        given: Tensor,
        branches: Sequence[Tensor],
        events: Sequence[Event],
        attended: Tensor | None,
        again: Callable[[], Replay | None],
    ) -> None:
        self._part, self._given, self._branches = part, given, branches
        self._branch = branches[-1]
        self._events, self._attended, self._again = events, attended, again
        self._hides = False

    @cached_property
    def _replay(self) -> Replay | None:
        """The layer, if it can run again and gives the branch again."""
        replay = self._again()
        return replay if replay is not None and replay.branch(self._branch) else None

    def _keys(self, replay: Replay) -> frozenset[Key]:
        return replay.branch(self._branch)

    def find(self) -> Sum:
        """Find the sum."""
        found = self._in_order(self._events) or self._beside()
        if found is None and (replay := self._replay) is not None:
            found = self._in_order(replay.events)
            part, branches = after_norms(self._part, self._branches, replay.events)
            if found is None and branches[-1] is not self._branch:  # The layer's own code norms it.
                some = self._given, branches, replay.events, self._attended, self._again
                return Sums(part, *some).find()
            found = found or self._measured(replay)
        if found is None:
            raise CaptureError(
                f"What {self._part.name} adds to the residual stream was not found: no module of "
                "its layer reads their sum. The layer has no residual stream, scales or gates it, "
                f"or adds to it in another way{self._hint()}."
            )
        return found

    def _hint(self) -> str:
        lost = f"{self._branch.dtype}".removeprefix("torch.")
        if is_half(self._branch):
            return f", or rounding to {lost} hides it: try model.float()"
        return f"; or it adds nothing that rounding to {lost} leaves" if self._hides else ""

    def _in_order(self, events: Sequence[Event]) -> Sum | None:
        """Find it among what modules are given, and give."""
        known = chain.from_iterable((event.given, event.output) for event in events)
        for total in (*known, self._part.end):
            if total.shape == self._given.shape:
                size = factor_of(self._branch, total, [self._given])
                if size is not None:
                    return self._sum(total, size, events)
        return None

    def _beside(self) -> Sum | None:
        """Find it where what a module gives is added in one sum with it, or to it."""
        end, alike = self._part.end, [x for x in self._events if x.given.shape == x.output.shape]
        for last in (None, *lasts_of(self._events, end)):
            total = end if last is None else last.given
            for event in alike:
                others = [self._given, event.output]
                size = None if event is last else factor_of(self._branch, total, others)
                if size is not None:
                    return self._told(total, size, event, last)
        return None

    def _told(self, total: Tensor, size: float, event: Event, last: Event | None) -> Sum | None:
        """Tell whether what a module gives depends on what attention adds."""
        if self._reads_residual(event):
            return replace(self._sum(total, size, self._events), is_parallel=True, last=last)
        replay = self._replay
        if replay is None:
            return None
        moved = replay.moved(self._keys(replay), self._branch, size, is_held=False)
        targets = (None, *(x.key for x in lasts_of(replay.events, replay.end)))
        if any(moved.share(place) == 1 for place in targets):
            return replace(self._sum(total, size, self._events), is_parallel=True, last=last)
        found = self._in_order(replay.events)
        if found is None:
            after = self._given + (size * widened(self._branch)).to(self._given)
            found = self._sum(after, size, replay.events)
        return found

    def _reads_residual(self, event: Event) -> bool:
        """Return whether a module is given the stream before the attention, or a norm of it."""
        if not event.is_alone:
            return False
        known = [self._given, *(x.output for x in self._events if takes(x.given, self._given))]
        known += [] if self._attended is None else [self._attended]
        return any(takes(event.given, x) for x in known)

    def _sum(self, total: Tensor, size: float, events: Sequence[Event]) -> Sum:
        part = replace(self._part, factor=self._part.factor * size, bias=self._part.bias * size)
        added = size * widened(self._branch).to(part.residual.dtype)
        return Sum(part, self._branches, total, added, self._source(size), events)

    def _source(
        self, size: float, noise: Noise | None = None, written: Event | None = None
    ) -> Callable[[], Source | None]:
        def source() -> Source | None:
            known = self._branch, size, noise, written
            return None if self._replay is None else Source(self._replay, *known)

        return source

    # By what changes where others are put in place of what was added

    def _measured(self, replay: Replay) -> Sum | None:
        """Find a gain, or a norm, that no module applies, before the sum or to it."""
        keys = self._keys(replay)
        moved = replay.moved(keys, self._branch)
        places = [place for place, change in moved.changes.items() if bool(change.any())]
        self._hides = not places
        for find in (self._gained, self._with_mlp, self._normed):
            for place in places:
                found = find(replay, place)
                if found is not None and self._is_hidden(found):
                    self._hides = True
                elif found is not None:
                    if replay.is_trained:
                        raise CaptureError(_MEASURED.format(self._part.name))
                    return found
        return None

    def _is_hidden(self, found: Sum) -> bool:
        """Return whether rounding of the stream hides what is added to it."""
        added, given = found.added, self._given
        if is_half(given) or is_half(self._branch) or not bool(added.any()):
            return True
        total = (widened(given) + added).to(given.dtype)
        return factor_of(added.to(self._branch.dtype), total, [given]) is None

    def _gained(self, replay: Replay, place: Spot) -> Sum | None:
        """Find a sum in which what was added is multiplied by numbers, or normed."""
        given = widened(self._given)
        total = replay.places[place]
        norm = self._norm(replay, place, given, self._branch, total - given)
        # Of one token, what an MLP adds looks like a shift.
        if norm is None or (len(given) == 1 and bool(norm.shift.any())):
            return None
        return self._folded(replay, norm, place, total, total - given)

    def _with_mlp(self, replay: Replay, place: Spot) -> Sum | None:
        """Find a sum, at a layer's end, of the stream, what was added, times numbers, and more."""
        last = next((x for x in lasts_of(replay.events, replay.end) if x.key == place), None)
        if place is not None and last is None:
            return None
        keys, total = self._keys(replay), replay.places[place]
        base = replay.at(place, dict.fromkeys(keys, torch.zeros_like(self._branch)))
        norm = self._norm(replay, place, base, self._branch, total - base)
        if norm is None or norm.is_centred or bool((norm.factor != 1).any()):
            return None
        added = total - base
        if not self._is_of_stream(replay, place, added):
            return None
        size = float(norm.gain.abs().mean())
        held, alive = (replay.moved(keys, self._branch, size, is_held=x) for x in (True, False))
        change = held.changes[place] - alive.changes[place]
        is_parallel = bool((change.abs() <= held.limit).all())
        total = total if is_parallel else widened(self._given) + added
        found = self._folded(replay, norm, place, total, added)
        return replace(found, is_parallel=is_parallel, last=last if is_parallel else None)

    def _is_of_stream(self, replay: Replay, place: Spot, added: Tensor) -> bool:
        """Return whether a place is the stream, what attention added, and what modules give.

        The attention must read the stream before any of these.
        """
        if replay.moved_given().share(place) != 1:
            return False
        keys = self._keys(replay)
        rest = replay.without_others(keys, self._branch, place) - widened(self._given) - added
        shift = rest[:1] if len(rest) > 1 else 0 * rest  # Of one token, anything looks like one.
        limit = tolerance(self._branch) * replay.end.abs().amax(-1, keepdim=True)
        is_known = bool(((rest - shift).abs() <= limit).all())
        return is_known and not replay.reads_earlier(keys, place)

    def _normed(self, replay: Replay, place: Spot) -> Sum | None:
        """Find a norm of the sum that no module applies."""
        given, total = widened(self._given), widened(self._given) + widened(self._branch)
        norm = self._norm(replay, place, 0 * given, total, replay.places[place], given)
        if norm is None or place is None:
            return None
        is_scale = not norm.is_centred and bool((norm.factor == 1).all())
        if len(given) == 1 and is_scale and bool(norm.shift.any()):
            return None  # Of one token, whatever else is added looks like a shift.
        # Then it does not matter which of both moves.
        moved, other = replay.moved(self._keys(replay), self._branch), replay.moved_given()
        change = moved.changes[place] - other.changes[place]
        if bool((change.abs() > moved.limit).any()):
            return None
        written = Event(place, total, replay.places[place], True, known=norm)
        found = self._sum(total, 1.0, replay.events)
        return replace(found, source=self._source(1.0, None, written))

    def _norm(
        self,
        replay: Replay,
        place: Spot,
        base: Tensor,
        given: Tensor,
        output: Tensor,
        less: Tensor | float = 0.0,
    ) -> FixedNorm | None:
        """Read a place, but for a base, as a norm or a gain of what is given.

        What is given is what is put in place of what attention adds, but for what is `less`.
        """
        keys = self._keys(replay)

        def apply(probes: Tensor) -> Tensor:
            rows = (x.expand_as(self._branch) - less for x in probes[0])
            found = [replay.at(place, dict.fromkeys(keys, x)) - base for x in rows]
            return torch.stack([x[0] for x in found])[None]

        return FixedNorm.of(apply, given, output)

    def _folded(
        self, replay: Replay, norm: FixedNorm, place: Spot, total: Tensor, added: Tensor
    ) -> Sum:
        folded = replace(self._part, norm=norm).normed()
        part = replace(folded, residual=self._part.residual, norm=None)
        size = float(added.norm() / widened(self._branch).norm())
        source = self._source(size, lambda x: x.changes[place])
        added = added.to(part.residual)
        return Sum(part, self._branches, total, added, source, replay.events)


_MEASURED = (
    "What multiplies what {} adds to the residual stream is only measured, and gradients to it are "
    "not known: run the model under torch.no_grad(), or freeze it."
)
