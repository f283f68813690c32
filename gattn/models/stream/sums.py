"""Finds the sum of the residual stream and what attention adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.events import Event
from gattn.models.stream.held_runs import Spot
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.replays import Replay
from gattn.models.stream.rounding import factor_of, is_half
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
            return followed(part, self.total, self.events, self.source)
        if self.last is None:
            return part
        return replace(part, norm=self.last.norm, is_post_norm=True)


def after_norms(part: Branch, branch: Tensor, events: Sequence[Event]) -> tuple[Branch, Tensor]:
    """Follow norms and scales of what is projected; also give what is added to the stream."""
    for event in events:
        norm = event.norm if takes(event.given, branch) else None
        if norm is not None:
            folded = replace(part, norm=norm).normed()
            part = replace(folded, residual=part.residual, after=part.after)
            branch = event.output
    return part, branch


class Sums:
    """Looks for a sum.

    Parameters
    ----------
    part : Branch
        What attention adds, but for a factor.
    given, branch : Tensor (tokens, dim)
        The stream, and what is multiplied by the factor and added to it.
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
        branch: Tensor,
        events: Sequence[Event],
        attended: Tensor | None,
        again: Callable[[], Replay | None],
    ) -> None:
        self._part, self._given, self._branch = part, given, branch
        self._events, self._attended, self._again = events, attended, again
        self._hides = False

    def find(self) -> Sum:
        """Find the sum."""
        found = self._in_order(self._events) or self._beside()
        if found is None and (replay := self._again()) is not None:
            found = self._in_order(replay.events)
            part, branch = after_norms(self._part, self._branch, replay.events)
            if found is None and branch is not self._branch:  # The layer's own code norms it.
                some = self._given, branch, replay.events, self._attended, self._again
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
        replay = self._again()
        if replay is None:
            return None
        moved = Source(replay, self._branch, size).moved(is_held=False)
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
        known = [self._given, *(x.output for x in self._events if takes(x.given, self._given))]
        known += [] if self._attended is None else [self._attended]
        return any(takes(event.given, x) for x in known)

    def _sum(self, total: Tensor, size: float, events: Sequence[Event]) -> Sum:
        part = replace(self._part, factor=self._part.factor * size, bias=self._part.bias * size)
        added = size * widened(self._branch).to(part.residual.dtype)
        return Sum(part, total, added, self._source(size), events)

    def _source(
        self, size: float, noise: Noise | None = None, written: Event | None = None
    ) -> Callable[[], Source | None]:
        def source() -> Source | None:
            replay = self._again()
            known = self._branch, size, noise, written
            return None if replay is None else Source(replay, *known)

        return source

    # By what changes where others are put in place of what was added

    def _measured(self, replay: Replay) -> Sum | None:
        """Find a gain, or a norm, that no module applies, before the sum or to it."""
        keys = replay.branch(self._branch)
        moved = replay.moved(keys, self._branch)
        places = [place for place, change in moved.changes.items() if bool(change.any())]
        self._hides = bool(keys) and not places
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
        return self._folded(replay, norm, total, total - given, lambda x: x.changes[place])

    def _with_mlp(self, replay: Replay, place: Spot) -> Sum | None:
        """Find a sum, at a layer's end, of the stream, what was added, times numbers, and more."""
        last = next((x for x in lasts_of(replay.events, replay.end) if x.key == place), None)
        if place is not None and last is None:
            return None
        keys, total = replay.branch(self._branch), replay.places[place]
        base = replay.with_output(keys, torch.zeros_like(self._branch))[place]
        norm = self._norm(replay, place, base, self._branch, total - base)
        if norm is None or norm.is_centred or bool((norm.factor != 1).any()):
            return None
        if replay.moved_given().share(place) != 1:
            return None
        size = float(norm.gain.abs().mean())
        held, alive = (replay.moved(keys, self._branch, size, is_held=x) for x in (True, False))
        change = held.changes[place] - alive.changes[place]
        is_parallel = bool((change.abs() <= held.limit).all())
        added = total - base
        total = total if is_parallel else widened(self._given) + added
        found = self._folded(replay, norm, total, added, lambda x: x.noise * norm.gain / size)
        return replace(found, is_parallel=is_parallel, last=last if is_parallel else None)

    def _normed(self, replay: Replay, place: Spot) -> Sum | None:
        """Find a norm of the sum that no module applies."""
        given, total = widened(self._given), widened(self._given) + widened(self._branch)
        norm = self._norm(replay, place, 0 * given, total, replay.places[place], given)
        if norm is None or place is None:
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
        keys = replay.branch(self._branch)

        def apply(probes: Tensor) -> Tensor:
            rows = (x.expand_as(self._branch) - less for x in probes[0])
            found = [replay.with_output(keys, x)[place] - base for x in rows]
            return torch.stack([x[0] for x in found])[None]

        return FixedNorm.of(apply, given, output)

    def _folded(
        self, replay: Replay, norm: FixedNorm, total: Tensor, added: Tensor, noise: Noise
    ) -> Sum:
        folded = replace(self._part, norm=norm).normed()
        part = replace(folded, residual=self._part.residual, norm=None)
        size = float(added.norm() / widened(self._branch).norm())
        source = self._source(size, noise)
        return Sum(part, total, added.to(part.residual), source, replay.events)


_MEASURED = (
    "What multiplies what {} adds to the residual stream is only measured, and gradients to it are "
    "not known: run the model under torch.no_grad(), or freeze it."
)
