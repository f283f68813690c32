"""How many edges a rule has: by closed sums if it has them, else query by query."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.checks import check_memory
from gattn.graph.rules.base import BLOCK_PAIRS, Rule
from gattn.graph.rules.combined import MOST_TERMS, Combined, Disjoint
from gattn.graph.rules.folding import balanced, parts_of
from gattn.graph.rules.keys import between
from gattn.graph.rules.simple import Blocks, Complete, Crossing, Globals, Strided, Window

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


_FEW_QUERIES = 1 << 12


def degrees_of(graph: TokenGraph) -> Tensor:
    """Count the keys of each query."""
    if graph.num_queries > _FEW_QUERIES:
        check_memory(8 * graph.num_queries, f"The numbers of keys of all queries of {graph}")
    device = graph.rule.device or torch.device("cpu")
    positions = torch.arange(graph.num_queries, device=device) + graph.query_offset
    degrees = graph.rule.degrees(positions, graph.num_keys)
    if degrees is None:
        counts = [allowed.sum(1) for _, _, allowed in graph.row_blocks()]
        degrees = torch.cat([positions[:0], *counts])
    return degrees


def number_of_edges(graph: TokenGraph) -> int:
    """Count all edges, without listing them."""
    if graph.num_queries <= _FEW_QUERIES:
        return int(graph.in_degree.sum())
    found = count_edges(graph.rule, graph.query_offset, graph.num_queries, graph.num_keys)
    return int(graph.in_degree.sum()) if found is None else found


def count_edges(
    rule: Rule, first: int, num_queries: int, num_keys: int, most: int | None = None
) -> int | None:
    """Count the edges of the queries from `first` on without a walk over all pairs.

    Parameters
    ----------
    rule : Rule
        Which pairs are edges.
    first, num_queries, num_keys : int
        The first query's position, and how many queries and keys there are.
    most : int, optional
        A count query by query stops once it is past this number.

    Returns
    -------
    int or None
        How many; None if only a walk can tell.
    """
    if not num_queries or not num_keys:
        return 0
    if isinstance(rule, Disjoint):
        return _of_parts(rule, first, num_queries, num_keys, most)
    last = first + num_queries - 1
    found = _sum(rule, first, last, num_keys) if rule.terms <= MOST_TERMS else None
    return _by_query(rule, first, last, num_keys, most) if found is None else found


def _of_parts(
    rule: Disjoint, first: int, num_queries: int, num_keys: int, most: int | None
) -> int | None:
    """Count each different part once."""
    parts: Counter[tuple[Rule, int, int, int]] = Counter()
    stop = first + num_queries
    queries, keys = (*rule.query_starts[1:], stop), (*rule.key_starts[1:], num_keys)
    ends = zip(rule.query_starts, queries, rule.key_starts, keys, strict=True)
    for part, (start, end, key_start, key_end) in zip(rule.rules, ends, strict=True):
        low, high = max(start, first), min(end, stop)
        width = min(key_end, num_keys) - key_start
        if low < high and width > 0:
            parts[part, low - start, high - low, width] += 1
    total = 0
    for place, times in parts.items():
        found = count_edges(*place, None if most is None else most // times)
        if found is None:
            return None
        total += times * found
        if most is not None and total > most:
            break
    return total


def _by_query(rule: Rule, first: int, last: int, num_keys: int, most: int | None) -> int | None:
    """Ask for the degrees of many queries at once; all queries of a block have the same."""
    size = rule.size if isinstance(rule, Blocks) else 1
    total = 0
    for start in range(first // size, last // size + 1, BLOCK_PAIRS):
        block = torch.arange(start, min(start + BLOCK_PAIRS, last // size + 1), device="cpu")
        low, high = (block * size).clamp_min(first), ((block + 1) * size).clamp_max(last + 1)
        degrees = rule.degrees(low.to(rule.device or "cpu"), num_keys)
        if degrees is None:
            return None
        total += int((degrees.cpu() * (high - low)).sum())
        if most is not None and total > most:
            break
    return total


def _sum(rule: Rule, first: int, last: int, num_keys: int) -> int | None:
    """Count edges by what each rule has and what the other adds or removes."""
    found = _closed(parts_of("&", *_undilated(rule)), first, last, num_keys)
    if found is None and (edges := rule.listed()) is not None:
        return len(edges.key)
    if found is not None or not isinstance(rule, Combined):
        return found
    both = Combined("&", rule.left, rule.right)
    if rule.operation == "&":
        return _sum_of_both(rule, first, last, num_keys)
    left, shared = (_sum(part, first, last, num_keys) for part in (rule.left, both))
    right = _sum(rule.right, first, last, num_keys) if rule.operation == "|" else 0
    return None if left is None or shared is None or right is None else left + right - shared


def _sum_of_both(rule: Combined, first: int, last: int, num_keys: int) -> int | None:
    """Count what all parts have in common, with the first combined part taken apart."""
    parts = parts_of("&", rule)
    for part in parts:
        if isinstance(part, Combined):
            others = [other for other in parts if other is not part]
            sides = (balanced("&", [side, *others]) for side in (part.left, part.right))
            return _sum(Combined(part.operation, *sides), first, last, num_keys)
    return None


def _undilated(rule: Rule) -> list[Rule]:
    """Split dilated windows into a window and a stride, and join all strides to one."""
    found: list[Rule] = []
    strides = []
    for part in parts_of("&", rule):
        if isinstance(part, Window) and part.dilation > 1:
            found.append(Window(part.before, part.after))
            strides.append(part.dilation)
        elif isinstance(part, Strided):
            strides.append(part.stride)
        else:
            found.append(part)
    return [*found, Strided(lcm(*strides))] if strides else found


@dataclass(frozen=True)
class _Run:
    """Queries start .. stop whose keys are [low, high): each end stays, or moves with them."""

    start: int
    stop: int
    low: int
    high: int
    low_moves: bool
    high_moves: bool

    @property
    def size(self) -> int:
        return self.stop - self.start + 1

    @property
    def edges(self) -> int:
        last = self.high - self.low + (self.size - 1) * (self.high_moves - self.low_moves)
        return self.size * (self.high - self.low + last) // 2

    def ends(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Find the keys of queries of the run."""
        step = query - self.start
        return self.low + step * self.low_moves, self.high + step * self.high_moves

    def readers(self, key: Tensor) -> Tensor:
        """Count the queries of the run that have each key."""
        after = self.start + key - self.high + 1
        until = self.start + key - self.low
        first = after.clamp_min(self.start) if self.high_moves else torch.full_like(key, self.start)
        last = until.clamp_max(self.stop) if self.low_moves else torch.full_like(key, self.stop)
        counts = (last - first + 1).clamp_min(0)
        if not self.high_moves:
            counts = counts * (key < self.high)
        return counts if self.low_moves else counts * (key >= self.low)

    def within(self, positions: Tensor) -> Tensor:
        """Choose the positions that are queries of the run."""
        return positions[(positions >= self.start) & (positions <= self.stop)]


def _closed(parts: list[Rule], first: int, last: int, num_keys: int) -> int | None:
    """Count the edges of intervals, and of at most one rule of another kind among them."""
    query = torch.tensor([first, last], device="cpu")
    others = [part for part in parts if part.interval(query) is None]
    if len(others) > 1 or not all(isinstance(x, (Strided, Globals, Crossing)) for x in others):
        return None
    spans = [part for part in parts if part not in others] or [Complete()]
    runs = _runs(balanced("&", spans), first, last, num_keys)
    if runs is None:
        return None
    return sum(_count_in(run, others[0]) if others else run.edges for run in runs)


def _count_in(run: _Run, rule: Rule) -> int:
    if isinstance(rule, Strided):
        return _multiples(run, run.high, run.high_moves, rule.stride) - _multiples(
            run, run.low, run.low_moves, rule.stride
        )
    if isinstance(rule, Globals):
        rows, columns = (
            _crossing(run, *ends) for ends in ((rule.ordered, None), (None, rule.ordered))
        )
        return rows + columns - _crossing(run, rule.ordered, rule.ordered)
    if isinstance(rule, Crossing):
        sides = (None if x is None else torch.unique(x).long() for x in (rule.queries, rule.keys))
        return _crossing(run, *sides)
    raise TypeError(rule)


def _multiples(run: _Run, end: int, moves: bool, stride: int) -> int:
    """Sum (end - 1 - query) // stride over the queries of a run."""
    if moves:
        return run.size * ((end - 1 - run.start) // stride)
    return _floors(end - run.start, stride) - _floors(end - 1 - run.stop, stride)


def _floors(stop: int, stride: int) -> int:
    """Sum x // stride over x < stop, up to a constant."""
    steps = stop // stride
    return stride * steps * (steps - 1) // 2 + steps * (stop - steps * stride)


def _crossing(run: _Run, queries: Tensor | None, keys: Tensor | None) -> int:
    """Count the edges from sorted queries to sorted keys; None stands for all."""
    if queries is None:
        return run.edges if keys is None else int(run.readers(keys).sum())
    low, high = run.ends(run.within(queries))
    return int((high - low if keys is None else between(keys, low, high)).sum())


def _runs(rule: Rule, first: int, last: int, num_keys: int) -> list[_Run] | None:
    """Cut queries into runs along which each end of their keys stays or moves on by one.

    From one position to the next an end does one or the other; a run in which it does both is
    halved.
    """
    found, waiting = [], [(first, last)]
    while waiting:
        span = rule.interval(torch.tensor(waiting, device="cpu"))
        if span is None:
            return None
        low, high = (torch.clamp(end, 0, num_keys).tolist() for end in span)
        halves = []
        for (start, stop), lows, highs in zip(waiting, low, high, strict=True):
            steps = stop - start
            sizes = [b - a for a, b in zip(lows, highs, strict=True)]
            is_linear = all(b - a in (0, steps) for a, b in (lows, highs))
            if max(sizes) <= 0 and is_linear:
                continue
            if is_linear and min(sizes) >= 0:
                moves = (steps > 0 and b > a for a, b in (lows, highs))
                found.append(_Run(start, stop, lows[0], highs[0], *moves))
            else:
                middle = (start + stop) // 2
                halves += [(start, middle), (middle + 1, stop)]
        waiting = halves
    return found
