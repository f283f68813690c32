"""Stretches of time in order, as they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.chosen.queries import Tokens
from gattn.errors import ShapeError
from gattn.heads.geometry import Times


@dataclass(frozen=True)
class Steps:
    """The stretches of tokens in the order of time, those that overlap cut in the middle.

    Parameters
    ----------
    tokens : array of int
        The tokens, in the order of time.
    starts, stops : array
        When the stretch that is drawn of each begins and ends.
    overlap : bool
        Whether stretches overlap.
    """

    tokens: NDArray[np.int64]
    starts: NDArray[np.float64]
    stops: NDArray[np.float64]
    overlap: bool

    @classmethod
    def of(cls, timed: Tokens) -> Steps:
        """Order the stretches of tokens.

        Raises
        ------
        ShapeError
            If it is not known when they are, or some have no time of their own.
        """
        if not isinstance(timed.geometry, Times):
            raise ShapeError(
                f"It is not known when the {timed.plural} are: say so, as in "
                f'head.at_times(0.02, side="{timed.name}"), the seconds per token.'
            )
        stretches = timed.geometry.stretches
        tokens = np.flatnonzero(timed.geometry.is_somewhere)
        if not len(tokens):
            raise ShapeError(f"None of the {timed.plural} is a stretch of time.")
        tokens = tokens[np.argsort(stretches[tokens].sum(1), kind="stable")]
        starts, stops = stretches[tokens].T.copy()
        over = stops[:-1] - starts[1:] > 1e-9 * np.maximum(np.abs(stops[:-1]), 1)
        middle = (stops[:-1] + starts[1:]) / 2
        stops[:-1][over] = middle[over]
        starts[1:][over] = middle[over]
        if (covered := _covered(stretches[tokens], stops - starts)) is not None:
            one, other = sorted(timed.positions[token] for token in tokens[list(covered)])
            raise ShapeError(
                f"The {timed.plural} {one} and {other} share a time, so that on an axis of seconds "
                "one has no place of its own: draw those of one channel, the times of all others "
                "NaN, or draw them without times, as in head.draw()."
            )
        return cls(tokens, starts, stops, bool(over.any()))

    @property
    def start(self) -> float:
        """When the first begins."""
        return float(self.starts.min())

    @property
    def stop(self) -> float:
        """When the last ends."""
        return float(self.stops.max())

    def with_gaps(self, values: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return numbers (rows, steps), NaN where no stretch is, and the edges of the steps."""
        edges, columns = [float(self.starts[0])], []
        for n, (start, stop) in enumerate(zip(self.starts, self.stops, strict=True)):
            if start > edges[-1] + 1e-9 * max(abs(start), 1):
                edges.append(float(start))
                columns.append(-1)
            edges.append(float(max(stop, edges[-1])))
            columns.append(n)
        chosen = np.array(columns)
        laid = np.where(chosen >= 0, values[:, self.tokens][:, chosen], np.nan)
        return laid, np.array(edges)


def _covered(stretches: NDArray[np.float64], widths: NDArray[np.float64]) -> tuple[int, int] | None:
    """Find two neighbours of one stretch, or of which one leaves the other no width."""
    same = np.flatnonzero((np.diff(stretches, axis=0) == 0).all(1))
    gone = np.flatnonzero(widths <= 1e-9 * np.diff(stretches)[:, 0])
    if len(same):
        return int(same[0]), int(same[0]) + 1
    if len(gone):
        n = int(gone[0])
        others = np.flatnonzero(
            (stretches[:, 0] < stretches[n, 1]) & (stretches[:, 1] > stretches[n, 0])
        )
        return n, int(others[others != n][0])
    return None
