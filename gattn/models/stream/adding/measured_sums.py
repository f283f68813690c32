"""Measures sums that no module reads, by what changes where attention adds something else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.adding.sums import Added, Sum
from gattn.models.stream.adding.ways import lasts_of
from gattn.models.stream.again.events import Event
from gattn.models.stream.again.held_runs import Spot
from gattn.models.stream.again.twins import Twin
from gattn.models.stream.norms import FixedNorm
from gattn.models.stream.rounding import factor_of, is_half, tolerance
from gattn.normalizers.base import widened


class MeasuredSums:
    """Looks for gains and norms that no module applies, before the sum or to it.

    Parameters
    ----------
    added : Added
        What attention adds, but for these.
    twin : Twin
        The layer, which runs again.
    """

    hides = False
    """Whether it found that what is added changes nothing, or no more than rounding hides."""

    def __init__(self, added: Added, twin: Twin) -> None:
        self._added, self._twin = added, twin
        self._given, self._branch, self._keys = widened(added.given), added.branch, added.keys

    def find(self) -> Sum | None:
        """Find a gain, or a norm, that no module applies, before the sum or to it."""
        moved = self._twin.moved(self._keys, self._branch)
        places = [place for place, change in moved.changes.items() if bool(change.any())]
        self.hides = not places
        for find in (self._gained, self._with_mlp, self._normed):
            for place in places:
                found = find(place)
                if found is not None and self._is_hidden(found):
                    self.hides = True
                elif found is not None:
                    if self._twin.is_trained:
                        raise CaptureError(_MEASURED.format(self._added.part.name))
                    return found
        return None

    def _is_hidden(self, found: Sum) -> bool:
        """Return whether rounding of the stream hides what is added to it."""
        added, given = found.added, self._added.given
        if is_half(given) or is_half(self._branch) or not bool(added.any()):
            return True
        total = (widened(given) + added).to(given.dtype)
        return factor_of(added.to(self._branch.dtype), total, [given]) is None

    def _gained(self, place: Spot) -> Sum | None:
        """Find a sum in which what was added is multiplied by numbers, or normed."""
        total = self._twin.places[place]
        norm = self._norm(place, self._given, self._branch, total - self._given)
        # Of one token, what an MLP adds looks like a shift.
        if norm is None or (len(total) == 1 and bool(norm.shift.any())):
            return None
        return self._folded(norm, place, total, total - self._given)

    def _with_mlp(self, place: Spot) -> Sum | None:
        """Find a sum, at a layer's end, of the stream, what was added, times numbers, and more."""
        lasts = lasts_of(self._twin.events, self._twin.end)
        last = next((x for x in lasts if x.key == place), None)
        if place is not None and last is None:
            return None
        total = self._twin.places[place]
        base = self._twin.at(place, dict.fromkeys(self._keys, torch.zeros_like(self._branch)))
        norm = self._norm(place, base, self._branch, total - base)
        if norm is None or norm.is_centred or bool((norm.factor != 1).any()):
            return None
        added = total - base
        if not self._is_of_stream(place, added):
            return None
        size = float(norm.gain.abs().mean())
        held, alive = (
            self._twin.moved(self._keys, self._branch, size, is_held=x) for x in (True, False)
        )
        change = held.at(place) - alive.at(place)
        is_parallel = bool((change.abs() <= held.limit).all())
        total = total if is_parallel else self._given + added
        found = self._folded(norm, place, total, added)
        return replace(found, is_parallel=is_parallel, last=last if is_parallel else None)

    def _is_of_stream(self, place: Spot, added: Tensor) -> bool:
        """Return whether a place is the stream, what attention added, and what modules give.

        The attention must read the stream before any of these.
        """
        if self._twin.moved_given().share(place) != 1:
            return False
        rest = self._twin.without_others(self._keys, self._branch, place) - self._given - added
        shift = rest[:1] if len(rest) > 1 else 0 * rest  # Of one token, anything looks like one.
        limit = tolerance(self._branch) * self._twin.end.abs().amax(-1, keepdim=True)
        is_known = bool(((rest - shift).abs() <= limit).all())
        return is_known and not self._twin.reads_earlier(self._keys, place)

    def _normed(self, place: Spot) -> Sum | None:
        """Find a norm of the sum that no module applies."""
        total = self._given + widened(self._branch)
        norm = self._norm(place, 0 * total, total, self._twin.places[place], self._given)
        if norm is None or place is None:
            return None
        is_scale = not norm.is_centred and bool((norm.factor == 1).all())
        if len(total) == 1 and is_scale and bool(norm.shift.any()):
            return None  # Of one token, whatever else is added looks like a shift.
        # Then it does not matter which of both moves.
        moved = self._twin.moved(self._keys, self._branch)
        change = moved.at(place) - self._twin.moved_given().at(place)
        if bool((change.abs() > moved.limit).any()):
            return None
        written = Event(place, total, self._twin.places[place], True, known=norm)
        found = self._added.sum(total, 1.0, self._twin.events)
        return replace(found, source=self._added.source(1.0, None, written))

    def _norm(
        self,
        place: Spot,
        base: Tensor,
        given: Tensor,
        output: Tensor,
        less: Tensor | float = 0.0,
    ) -> FixedNorm | None:
        """Read a place, but for a base, as a norm or a gain of what is given.

        What is given is what is put in place of what attention adds, but for what is `less`.
        """

        def apply(probes: Tensor) -> Tensor:
            rows = (x.expand_as(self._branch) - less for x in probes[0])
            found = [self._twin.at(place, dict.fromkeys(self._keys, x)) - base for x in rows]
            return torch.stack([x[0] for x in found])[None]

        return FixedNorm.of(apply, given, output)

    def _folded(self, norm: FixedNorm, place: Spot, total: Tensor, added: Tensor) -> Sum:
        folded = replace(self._added.part, norm=norm).normed()
        part = replace(folded, residual=self._added.part.residual, norm=None)
        size = float(added.norm() / widened(self._branch).norm())
        source = self._added.source(size, lambda x: x.at(place))
        added = added.to(part.residual)
        return Sum(part, self._added.branches, total, added, source, self._twin.events)


_MEASURED = (
    "What multiplies what {} adds to the residual stream is only measured, and gradients to it are "
    "not known: run the model under torch.no_grad(), or freeze it."
)
