"""Where the edges of a head begin and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.curves import Points
from gattn.drawing.canvas.fitting import Fitting
from gattn.drawing.canvas.layouts import Positions
from gattn.drawing.chosen.shown import Shown
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK


@dataclass(frozen=True)
class PlacedEdges:
    """The edges to draw, the weakest first so that strong ones lie on top.

    Parameters
    ----------
    start, end : array (edges, 2)
        Where the key and the query stand.
    attention : array (edges,)
        The attention of each.
    kind : array of int (edges,)
        Which of several heads in one picture each is from, which gives it its colour.
    """

    start: Points
    end: Points
    attention: NDArray[np.float64]
    kind: NDArray[np.int64]

    @classmethod
    def of(
        cls, head: AttentionGraph, shown: Shown, positions: Positions, *, split: bool = False
    ) -> PlacedEdges:
        """Place the edges that are shown, those from a sink among them."""
        parts = shown.parts or ((head, shown),)
        placed = [cls._of_one(one, some, positions, split) for one, some in parts]
        start, end, attention = (np.concatenate(part) for part in zip(*placed, strict=True))
        kind = np.repeat(np.arange(len(placed)), [len(sizes) for *_, sizes in placed])
        order = np.argsort(np.abs(attention), kind="stable")
        if len(placed) > 1:  # where heads share an edge, the thinner line lies on the wider one
            order = order[::-1]
        return cls(start, end, attention, kind)[order]

    @staticmethod
    def _of_one(
        head: AttentionGraph, shown: Shown, positions: Positions, split: bool
    ) -> tuple[Points, Points, NDArray[np.float64]]:
        keys, queries = layouts.ends(head, split=split)
        of_keys = np.array([positions[node] for node in keys]).reshape(-1, 2)
        of_queries = np.array([positions[node] for node in queries]).reshape(-1, 2)
        start, end = of_keys[head.key[shown.edges]], of_queries[head.query[shown.edges]]
        attention = head.attention[shown.edges].astype(np.float64)
        if head.sink is not None:
            start = np.concatenate([start, np.tile(positions[SINK], (len(shown.sinks), 1))])
            end = np.concatenate([end, of_queries[shown.sinks]])
            attention = np.concatenate([attention, head.sink[shown.sinks]])
        return start, end, attention

    def __getitem__(self, chosen: NDArray[Any]) -> PlacedEdges:
        """Take some of the edges."""
        return PlacedEdges(
            self.start[chosen], self.end[chosen], self.attention[chosen], self.kind[chosen]
        )

    @property
    def is_loop(self) -> NDArray[np.bool_]:
        """Which edges run from a token to itself."""
        loop: NDArray[np.bool_] = (self.start == self.end).all(axis=1)
        return loop


def say_direction(ax: Axes, found: PlacedEdges, way: str) -> None:
    """Say in the caption which way arrows run, if there are any."""
    Fitting.of(ax).note("arrows", f"arrows: {way}" * bool(len(found.start)))
