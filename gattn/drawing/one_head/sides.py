"""Where labels of nodes have room: beside their node, or at the end of a line from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.curves import Points
from gattn.drawing.one_head.boxes import around, cross, directions, distances, meet, to_lines

_UPRIGHT = ((0, 1), (0, -1), (1, 0), (-1, 0))
_CORNERS = ((1, 1), (-1, 1), (1, -1), (-1, -1))
_LENGTHS = (0.4, 0.7, 1.0, 1.4, 1.9, 2.5, 3.2)
"""How long lines to labels may be, in heights of the label."""
_TURNS = 24
"""In how many directions lines to labels may run."""
_CLOSER = (1.0, 0.75, 0.55)
"""How near labels stand beside their nodes where there is little room, as shares of the gap."""
_NEARER = 1.5
"""How much nearer, in points, a label without a line is to its own node than to any other."""
_CLEAR = 0.5
"""How far labels and lines stay from nodes that they do not belong to, in points."""
_ROUNDS = 4
"""How often labels are placed, those that had no room before first."""
_MOST_LEFT = 0.25
"""The share of labels without room above which no other order would help."""
_HIDES = 0.5
"""The cost from which a label stands at the end of a line rather than beside its node."""
_RANK, _FARTHER = 0.02, 0.03
"""What a worse side, and a point of a line, count against covering a label's area of edges."""


class Side(NamedTuple):
    """Where a label stands, in points: its middle from its node, and the line's two ends."""

    offset: NDArray[np.float64]
    line: Points | None = None


class _Options(NamedTuple):
    """Places for one label, from the lower left corner, and how bad each is."""

    middles: Points
    lines: Points | None
    costs: NDArray[np.float64]


class Sides:
    """Places labels where they meet no node, no loop, no label and as few edges as can be.

    A label beside its node is nearer to it than to any other; one that stands further away is
    joined to it by a line, which crosses no node, label or other such line.

    Parameters
    ----------
    nodes : array (nodes, 2)
        Where all nodes lie, in points from the lower left corner.
    room : (float, float)
        The width and height in points.
    radius : float
        The radius of nodes.
    gap : float
        How far a label stays from the middle of its node.
    edges, loops : array (points, 2)
        Points on edges, and within those from a node to itself, which hold no label.
    """

    def __init__(
        self,
        nodes: Points,
        room: tuple[float, float],
        radius: float,
        gap: float,
        edges: Points,
        loops: Points,
    ) -> None:
        self._nodes, self._room = nodes, np.array(room)
        self._radius, self._gap = radius, gap
        self._ink, self._loops = self._summed(edges), self._summed(loops)

    def placed(
        self,
        own: Points,
        half: Points,
        above: Sequence[bool],
        tips: Points,
        *,
        lines: bool,
        chief: int = 0,
    ) -> list[Side | None]:
        """Return where each label stands; None if it has no room.

        Parameters
        ----------
        own : array (labels, 2)
            The nodes that have labels, those that come first before others.
        half : array (labels, 2)
            Half the width and height of each label.
        above : sequence of bool
            Whether a label would rather stand above its node than below.
        tips : array (labels, 2)
            How far from its node the edge of each to itself reaches; 0 where there is none.
        lines : bool
            Whether labels may stand at the ends of lines.
        chief : int
            How many of the first labels none of the others may displace, nor one of them an earlier
            one; their lines may lead over nodes.
        """
        beside = cache(lambda i: self._beside(own[i], half[i], above[i], tips[i]))
        afar = cache(lambda i: self._afar(own[i], half[i]))
        ways = (beside, afar) if lines else (beside,)
        if lines:
            ways = (_clear(beside), _clear(afar), *ways)

        def tried(order: Iterable[tuple[Callable[[int], _Options], int]]) -> dict[int, Side]:
            found: dict[int, Side] = {}
            taken = _Taken()
            for options, i in order:
                if i not in found and (side := self._best(own[i], half[i], options(i), taken)):
                    found[i] = side
            return found

        best: dict[int, Side] = {}
        first: list[int] = []
        for _ in range(_ROUNDS):
            rest = [i for i in range(len(own)) if i not in first]
            found = tried((way, i) for some in (first, rest) for way in ways for i in some)
            best = max(best, found, key=len)
            missing = [i for i in range(len(own)) if i not in found]
            if not lines or not missing or len(missing) > _MOST_LEFT * len(own):
                break
            first = missing + [i for i in first if i not in missing]
        if any(i not in best for i in range(chief)):
            over = cache(lambda i: self._afar(own[i], half[i], over=True))
            in_turn = [(way, i) for i in range(chief) for way in (beside, afar, over)]
            others = [(way, i) for way in ways for i in range(chief, len(own))]
            best = tried([*in_turn, *others])
        return [best.get(i) for i in range(len(own))]

    def _best(
        self, node: NDArray[np.float64], half: NDArray[np.float64], options: _Options, taken: _Taken
    ) -> Side | None:
        """Choose the best of the places that are free, if there is one, and take it."""
        middles, lines, costs = options
        free = np.flatnonzero(np.isfinite(costs))
        free = free[taken.leaves(middles[free], half, None if lines is None else lines[free])]
        if not len(free):
            return None
        best = free[np.argmin(costs[free])]
        line = None if lines is None else lines[best]
        taken.add(middles[best], half, line)
        return Side(middles[best] - node, line)

    def _beside(
        self,
        node: NDArray[np.float64],
        half: NDArray[np.float64],
        above: bool,
        tip: NDArray[np.float64],
    ) -> _Options:
        """Return the places that touch a node, its preferred side first, or its loop's tip."""
        upright = np.array(_UPRIGHT, dtype=float) * ([1, 1] if above else [1, -1])
        corners = np.array(_CORNERS, dtype=float)
        places = node + np.concatenate(
            [upright * (self._gap + half), corners * (0.75 * self._gap + half)]
        )
        ranks = np.arange(len(places), dtype=float)
        closer = np.concatenate([around(half, share * self._gap, _TURNS) for share in _CLOSER])
        places = np.concatenate([places, node + closer])
        ranks = np.concatenate([ranks, np.full(len(closer), float(len(ranks)))])
        if reach := float(np.hypot(*tip)):
            there = tip * (1 + _CLEAR / reach) + tip / np.abs(tip).max() * half
            places = np.concatenate([places, [node + there]])
            ranks = np.append(ranks, ranks.max())
        costs = self._costs(places, half) + _RANK * ranks
        own = distances(node[None], places, half)[:, 0]
        others = self._distances(node, places, half)
        nearest = np.maximum(own + _NEARER, self._radius + _CLEAR)
        return _Options(places, None, np.where(others < nearest, np.inf, costs))

    def _afar(
        self, node: NDArray[np.float64], half: NDArray[np.float64], *, over: bool = False
    ) -> _Options:
        """Return the places at the ends of lines.

        They are farther from other nodes than labels beside these would be, and lines lead over no
        other node; `over` allows both, where nothing else has room.
        """
        towards = np.tile(directions(_TURNS), (len(_LENGTHS), 1))
        lengths = 2 * half[1] * np.repeat(_LENGTHS, _TURNS)
        ends = towards * (self._gap + lengths)[:, None]
        offsets = ends + towards / np.abs(towards).max(1, keepdims=True) * half
        near = np.clip(0.0, offsets - half, offsets + half)
        begins = near / np.hypot(*near.T)[:, None] * self._radius
        lines = node + np.stack([begins, near], axis=1)
        costs = self._costs(node + offsets, half, over=over) + _FARTHER * lengths
        least = self._radius + _CLEAR if over else self._gap + _NEARER
        costs[self._distances(node, node + offsets, half) < least] = np.inf
        others = self._nodes[(self._nodes != node).any(1)]
        met = (to_lines(lines, others) < self._radius + _CLEAR).sum(1)
        costs = costs + met if over else np.where(met, np.inf, costs)
        return _Options(node + offsets, lines, costs)

    def _distances(
        self, node: NDArray[np.float64], places: Points, half: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how far boxes are from the nearest node but this one."""
        others = self._nodes[(self._nodes != node).any(1)]
        return np.asarray(distances(others, places, half).min(1, initial=np.inf))

    def _summed(self, points: Points) -> NDArray[np.float64]:
        """Sum up, from the lower left corner, which cells of a point's size hold some points."""
        shape = np.maximum(np.ceil(self._room).astype(int), 1)
        within = np.stack([np.zeros_like(shape), shape], axis=1)
        ink = np.histogram2d(points[:, 0], points[:, 1], bins=shape.tolist(), range=within)[0]
        return np.asarray(np.pad(np.minimum(ink, 1), ((1, 0), (1, 0))).cumsum(0).cumsum(1))

    def _costs(
        self, middles: Points, half: NDArray[np.float64], *, over: bool = False
    ) -> NDArray[np.float64]:
        """Return the share of each box that lies on edges.

        It is infinite for those that are cut, and, unless they may lie `over` them, on loops.
        """
        limit = np.array(self._ink.shape) - 1
        x0, y0 = np.clip(np.rint(middles - half).astype(int), 0, limit).T
        x1, y1 = np.clip(np.rint(middles + half).astype(int), 0, limit).T
        ink, loops = (
            of[x1, y1] - of[x0, y1] - of[x1, y0] + of[x0, y0] for of in (self._ink, self._loops)
        )
        is_cut = ((middles < half) | (middles > self._room - half)).any(1)
        costs = (ink + loops) / np.maximum((x1 - x0) * (y1 - y0), 1)
        return np.where(is_cut | ((loops > 0) & (not over)), np.inf, costs)


def _clear(options: Callable[[int], _Options]) -> Callable[[int], _Options]:
    """Leave out the places in which a label would hide much of edges."""

    def left(i: int) -> _Options:
        found = options(i)
        return found._replace(costs=np.where(found.costs > _HIDES, np.inf, found.costs))

    return left


class _Taken:
    """The labels and lines that have their places."""

    def __init__(self) -> None:
        self._middles, self._halves = np.empty((0, 2)), np.empty((0, 2))
        self._lines = np.empty((0, 2, 2))

    def leaves(
        self, middles: Points, half: NDArray[np.float64], lines: Points | None
    ) -> NDArray[np.int64]:
        """Return which labels, with their lines, meet none of these."""
        apart = np.abs(middles[:, None] - self._middles) >= self._halves + half
        free = np.flatnonzero(apart.any(-1).all(-1))
        free = free[~meet(self._lines, middles[free], half + _CLEAR).any(0)]
        if lines is not None:
            free = free[~cross(lines[free], self._lines).any(1)]
            free = free[~meet(lines[free], self._middles, self._halves + _CLEAR).any(1)]
        return free

    def add(
        self, middle: NDArray[np.float64], half: NDArray[np.float64], line: Points | None
    ) -> None:
        """Take a place."""
        self._middles = np.concatenate([self._middles, middle[None]])
        self._halves = np.concatenate([self._halves, half[None]])
        if line is not None:
            self._lines = np.concatenate([self._lines, line[None]])
