"""Finds the sum of the residual stream and what attention adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.adding.entries import Entries, of_entry
from gattn.models.stream.adding.measured_sums import MeasuredSums
from gattn.models.stream.adding.sums import Added, Sum
from gattn.models.stream.adding.ways import lasts_of
from gattn.models.stream.again.events import Event
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.rounding import factor_of, is_half
from gattn.normalizers.base import widened


class SumSearch:
    """Looks for the sum: among what modules take and give, else by what changes in copies.

    Parameters
    ----------
    added : Added
        What attention adds.
    events : sequence of Event
        What ran since the attention was projected.
    attended : Tensor (tokens, dim), optional
        What the attention was given.
    """

    def __init__(self, added: Added, events: Sequence[Event], attended: Tensor | None) -> None:
        self._added, self._events, self._attended = added, events, attended

    def find(self) -> Sum:
        """Find the sum."""
        found, added = self._in_order(self._events) or self._beside(), self._added
        hides = False
        if found is None and (twin := added.twin) is not None:
            found = self._in_order(twin.events)
            normed = added.after_norms(twin.events)
            if found is None and normed is not added:  # The layer's own code norms it.
                return SumSearch(normed, twin.events, self._attended).find()
            if found is None:
                measured = MeasuredSums(added, twin)
                found, hides = measured.find(), measured.hides
            if found is None:
                found = self._entered()
        if found is None:
            raise CaptureError(
                f"What {added.part.name} adds to the residual stream was not found: no module of "
                "its layer reads their sum. The layer has no residual stream, scales or gates it, "
                "or adds in another way"
                f"{self._hint(hides)}."
            )
        return found

    def _hint(self, hides: bool) -> str:
        branch = self._added.branch
        lost = f"{branch.dtype}".removeprefix("torch.")
        if is_half(branch):
            return f", or rounding to {lost} hides it: try model.float()"
        return f"; or it adds nothing that rounding to {lost} leaves" if hides else ""

    def _entered(self) -> Sum | None:
        """Find it where the stream changes before attention is added to it."""
        for added in Entries(self._added).find():
            assert added.twin is not None
            found = SumSearch(added, self._events, self._attended)._in_order(added.twin.events)
            if found is not None:
                return of_entry(added, found)
        return None

    def _in_order(self, events: Sequence[Event]) -> Sum | None:
        """Find it among what modules are given, and give."""
        known = chain.from_iterable((event.given, event.output) for event in events)
        for total in (*known, self._added.part.end):
            if total.shape == self._added.given.shape:
                size = factor_of(self._added.branch, total, [self._added.given])
                if size is not None:
                    return self._added.sum(total, size, events)
        return None

    def _beside(self) -> Sum | None:
        """Find it where what a module gives is added in one sum with it, or to it."""
        end, given = self._added.part.end, self._added.given
        alike = [x for x in self._events if x.given.shape == x.output.shape]
        for last in (None, *lasts_of(self._events, end)):
            total = end if last is None else last.given
            for event in alike:
                others = [given, event.output]
                size = None if event is last else factor_of(self._added.branch, total, others)
                if size is not None:
                    return self._told(total, size, event, last)
        return None

    def _told(self, total: Tensor, size: float, event: Event, last: Event | None) -> Sum | None:
        """Tell whether what a module gives depends on what attention adds."""
        if self._reads_residual(event):
            return replace(self._added.sum(total, size, self._events), is_parallel=True, last=last)
        twin = self._added.twin
        if twin is None:
            return None
        moved = twin.moved(self._added.keys, self._added.branch, size, is_held=False)
        targets = (None, *(x.key for x in lasts_of(twin.events, twin.end)))
        if any(moved.share(place) == 1 for place in targets):
            return replace(self._added.sum(total, size, self._events), is_parallel=True, last=last)
        found = self._in_order(twin.events)
        if found is None:
            after = self._added.given + (size * widened(self._added.branch)).to(self._added.given)
            found = self._added.sum(after, size, twin.events)
        return found

    def _reads_residual(self, event: Event) -> bool:
        """Return whether a module is given the stream before the attention, or a norm of it."""
        if not event.is_alone:
            return False
        known = [
            self._added.given,
            *(x.output for x in self._events if takes(x.given, self._added.given)),
        ]
        known += [] if self._attended is None else [self._attended]
        return any(takes(event.given, x) for x in known)
