"""Searches for the smallest set of units that keeps a share of the metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.circuits.measuring.runs import HERE, PATH, Floats, Masks, Runs

if TYPE_CHECKING:
    from collections.abc import Callable

Ints = NDArray[np.int64]

_GROWTH = 1.4
"""By how much one size of a set exceeds the one before, in the first pass."""
_POINTS = 15
"""How many sizes are tried at once afterwards."""
_MOST_ROUNDS = 8
FEW = 512
"""The most units of which each is left out in a run of its own, the least by their estimates."""
_EXCHANGED, _CANDIDATES = 8, 12
"""The most units of a set of which two are exchanged for one, and of how many that one is."""


@dataclass(frozen=True)
class Limits:
    """What a search must reach, and must not exceed.

    Parameters
    ----------
    keep : float
        The share of the metric.
    max_edges : int or None
        How many edges the set may have.
    stop : float
        When to have ended, as `Runs.seconds` counts.
    """

    keep: float
    max_edges: int | None
    stop: float


class Search:
    """A search for a set of units; `best` is the smallest so far that keeps enough.

    It takes the fewest units, the highest estimates first, that keep enough, by bisection, and
    ranks these again, as long as that leaves fewer; then leaves out units as long as a run without
    them keeps enough, and exchanges two for one. `is_minimal` says whether each that is left is
    needed.
    """

    def __init__(self, runs: Runs, limits: Limits, tests: int, tell: Callable[[int], None]) -> None:
        self.runs, self.limits, self._tests, self._tell = runs, limits, tests, tell
        self._begun = runs.seconds, runs.count
        self.least = max(limits.keep - runs.slack, limits.keep / 2)
        self.best: Masks = np.ones(len(runs.groups), dtype=bool)
        self.is_minimal = False

    def run(self) -> None:
        """Search: `best` are the units that are kept."""
        for where in (PATH, HERE):
            for _ in range(_MOST_ROUNDS):
                if (where is HERE and self.best.sum() <= FEW) or not self._shorten(where):
                    break
        if not self.is_late:
            self._tell(int(self.best.sum()))
        self._prune()
        while self.is_minimal and self._exchange():
            self._prune()
        self._fit()

    @property
    def is_late(self) -> bool:
        """Return whether the time that is left, at most half, is what tests and a batch take."""
        begun, count = self._begun
        now = self.runs.seconds
        each = (now - begun) / max(self.runs.count - count, 1)
        reserve = each * (self._tests + self.runs.batch_size)
        return now + min(reserve, self.limits.stop / 2) >= self.limits.stop

    def _slopes(self, mask: Masks, where: Sequence[float] = HERE) -> Floats:
        """Estimate what each unit adds; what it adds exactly, if there is no gradient."""
        found = self.runs.slopes(mask, where)
        if found is None:
            found = np.zeros(len(mask))
            some = np.flatnonzero(mask)
            found[some] = self._losses(some)
        return found

    def _shorten(self, where: Sequence[float]) -> bool:
        """Take the fewest units of the best set, the highest estimates first, that keep enough.

        Returns whether these are fewer than before.
        """
        before = int(self.best.sum())
        if self.is_late:
            return False
        scores, order = self._slopes(self.best, where), np.flatnonzero(self.best)
        order = order[np.argsort(-scores[order], kind="stable")]
        sizes = _growing(before)
        while len(sizes) and not self.is_late:
            masks = np.zeros((len(sizes), len(self.best)), dtype=bool)
            for row, size in zip(masks, sizes, strict=True):
                row[order[:size]] = True
            at = self._first_enough(masks)
            low = sizes[at - 1] if at else 0
            high = sizes[at] if at < len(sizes) else int(self.best.sum())
            if at < len(sizes):
                self.best = masks[at]
            inside = np.unique(np.linspace(low, high, _POINTS + 2).astype(int))
            sizes = inside[(inside > low) & (inside < high)].tolist()
        return int(self.best.sum()) < before

    def _first_enough(self, masks: Masks) -> int:
        """Find the first set that keeps enough, batch by batch; their number if none does."""
        for start in range(0, len(masks), self.runs.batch_size):
            found = self._keeps(masks[start : start + self.runs.batch_size])
            if found.any():
                return start + int(found.argmax())
            if self.is_late:
                break
        return len(masks)

    def _keeps(self, masks: Masks) -> NDArray[np.bool_]:
        """Return which sets keep enough."""
        found: NDArray[np.bool_] = self.runs.faithfulness(masks) >= self.least
        return found

    def _without(self, some: Sequence[Ints] | Ints) -> Masks:
        """Return the best set without some of its units, one row for each choice."""
        masks = np.repeat(self.best[None], len(some), axis=0)
        for row, units in zip(masks, some, strict=True):
            row[units] = False
        return masks

    def _losses(self, some: Ints) -> Floats:
        """Measure what the best set loses without each of some units; infinity when time is up."""
        masks, losses = self._without(some), np.full(len(some), np.inf)
        (whole,), size = self.runs.faithfulness(self.best[None]), self.runs.batch_size
        for start in range(0, len(masks), size):
            if self.is_late:
                break
            part = slice(start, start + size)
            losses[part] = whole - self.runs.faithfulness(masks[part])
        return losses

    def _prune(self) -> None:
        """Leave units out until each is needed: as many at once as still keeps enough."""
        self.is_minimal = False
        while not self.is_late:
            some = np.flatnonzero(self.best)
            is_all = len(some) <= FEW
            if not is_all:
                some = some[np.argsort(self._slopes(self.best)[some], kind="stable")[:FEW]]
            losses = self._losses(some)
            (whole,) = self.runs.faithfulness(self.best[None])
            is_loose = losses <= whole - self.least
            if not is_loose.any():
                self.is_minimal = is_all and bool(np.isfinite(losses).all())
                return
            loose = some[is_loose][np.argsort(losses[is_loose], kind="stable")]
            sizes = [*_growing(len(loose)), len(loose)]
            masks = self._without([loose[:size] for size in sizes])
            self.best = masks[np.flatnonzero(self._keeps(masks))[-1]]

    def _exchange(self) -> bool:
        """Exchange two units for another one, if that keeps enough; returns whether it does."""
        some = np.flatnonzero(self.best)
        slopes = self.runs.slopes(self.best) if 2 <= len(some) <= _EXCHANGED else None
        if slopes is None:
            return False
        slopes[some] = -np.inf
        others = np.argsort(-slopes, kind="stable")[:_CANDIDATES]
        masks = self._without([np.array(pair) for pair in combinations(some, 2)])
        masks = np.repeat(masks, len(others), axis=0)
        masks[np.arange(len(masks)), np.tile(others, len(masks) // len(others))] = True
        at = self._first_enough(masks)
        if at == len(masks):
            return False
        self.best = masks[at]
        return True

    def _fit(self) -> None:
        """Leave out the units that lose least until there are no more edges than allowed."""
        most, sizes = self.limits.max_edges, self.runs.groups.sizes
        while most is not None and (excess := int(sizes[self.best].sum()) - most) > 0:
            some = np.flatnonzero(self.best)
            if self.is_late or len(some) > FEW:
                slopes = self.runs.slopes(self.best)
                losses = np.arange(len(some), dtype=float) if slopes is None else slopes[some]
            else:
                losses = self._losses(some)
            order = some[np.argsort(losses, kind="stable")]
            part = excess if self.is_late else max(1, excess // 4)
            count = 1 + int(np.searchsorted(sizes[order].cumsum(), part))
            self.best = self._without([order[:count]])[0]
            self.is_minimal = False


def _growing(most: int) -> list[int]:
    """List sizes from 1 to below `most`, each larger than the last by a share."""
    sizes, size = [], 1
    while size < most:
        sizes.append(size)
        size = max(size + 1, int(size * _GROWTH))
    return sizes
