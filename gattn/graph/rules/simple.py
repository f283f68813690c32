"""Rules that a few numbers, or a few lists of positions, describe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gattn.graph.rules.base import Rule
from gattn.graph.rules.keys import (
    FARTHEST,
    Keys,
    Span,
    as_run,
    between,
    every,
    ranges,
    run_of,
    within,
)


@dataclass(frozen=True)
class Complete(Rule):
    """Every query attends to every key."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(torch.broadcast_tensors(query, key)[0], dtype=torch.bool)

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), torch.full_like(query, FARTHEST)

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return torch.full_like(query, num_keys)


@dataclass(frozen=True)
class Causal(Rule):
    """k <= q: no query sees the future."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), query + 1

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return (query + 1).clamp(0, num_keys)


@dataclass(frozen=True)
class Window(Rule):
    """q - before <= k <= q + after, and (q - k) mod dilation = 0."""

    before: int
    after: int
    dilation: int = 1

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        before, after = self._ends
        near = (key >= query - before) & (key <= query + after)
        return near if self.dilation == 1 else near & Strided(self.dilation).allowed(query, key)

    @property
    def _ends(self) -> tuple[int, int]:
        """How far it reaches on each side, in numbers to which positions can be added."""
        return min(self.before, FARTHEST), min(self.after, FARTHEST)

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        span = run_of(first - self.before, last + self.after + 1, num_keys)
        return every(self.dilation, first, last, span)

    def interval(self, query: Tensor) -> Span | None:
        return None if self.dilation > 1 else self._near(query)

    def _near(self, query: Tensor) -> Span:
        before, after = self._ends
        return query - before, query + after + 1

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        if self.dilation == 1:
            return super().count(query, low, high)
        return Strided(self.dilation).count(query, *within(self._near(query), low, high))


@dataclass(frozen=True)
class Strided(Rule):
    """(q - k) mod stride = 0, the far-reaching half of the Sparse Transformer."""

    stride: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        stride = min(self.stride, FARTHEST)
        return query % stride == key % stride

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        return every(self.stride, first, last, slice(0, num_keys))

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        stride = min(self.stride, FARTHEST)
        return (high - 1 - query) // stride - (low - 1 - query) // stride


@dataclass(frozen=True)
class Prefix(Rule):
    """k < length: a prompt that everyone reads."""

    length: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        keys: Tensor = torch.broadcast_tensors(query, key)[1]
        return keys < min(self.length, FARTHEST)

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), torch.full_like(query, min(self.length, FARTHEST))


@dataclass(frozen=True, eq=False)
class Documents(Rule):
    """Query and key carry the same document id."""

    ids: Tensor

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        ids = self.ids.to(query.device)
        return ids[query] == ids[key]

    @cached_property
    def _start(self) -> Tensor:
        """The lowest code that a position of each position's document could have."""
        document: Tensor = torch.unique(self.ids, return_inverse=True)[1]
        return document * len(self.ids)

    @cached_property
    def _codes(self) -> Tensor:
        """One rising number per position, document by document."""
        return torch.sort(self._start + torch.arange(len(self.ids), device=self.ids.device)).values

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        size = len(self.ids)
        codes, least = self._codes, torch.unique(self._start[first : last + 1])
        start = torch.searchsorted(codes, least)
        stop = torch.searchsorted(codes, least + min(num_keys, size))
        start, stop = start[start < stop], stop[start < stop]
        if not len(start):
            return slice(0, 0)
        low, high = int((codes[start] % size).min()), int((codes[stop - 1] % size).max()) + 1
        if high - low == int((stop - start).sum()):
            return slice(low, high)
        return torch.sort(codes[ranges(start, stop)] % size).values

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        size, codes = len(self.ids), self._codes.to(query.device)
        start = self._start.to(query.device)[query]
        return between(codes, start + low.clamp_max(size), start + high.clamp_max(size))


@dataclass(frozen=True, eq=False)
class Globals(Rule):
    """Full rows and full columns for a few positions."""

    positions: Tensor

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        positions = self.positions.to(query.device)
        return torch.isin(query, positions) | torch.isin(key, positions)

    @cached_property
    def ordered(self) -> Tensor:
        """The positions, each once."""
        positions: Tensor = torch.unique(self.positions)
        return positions.long()

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        positions = self.ordered
        before, inside = torch.searchsorted(
            positions, torch.tensor([first, last + 1], device="cpu")
        ).tolist()
        if before < inside:
            return slice(0, num_keys)
        return as_run(positions[positions < num_keys].cpu())

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        positions = self.ordered.to(query.device)
        is_full = torch.isin(query, positions)
        return torch.where(is_full, high - low, between(positions, low, high))


@dataclass(frozen=True, eq=False)
class Crossing(Rule):
    """Every pair of the given queries and keys; None stands for all."""

    queries: Tensor | None
    keys: Tensor | None

    def __repr__(self) -> str:
        sides = ("all" if x is None else str(len(x)) for x in (self.queries, self.keys))
        return f"Crossing({' x '.join(sides)})"

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        inside = torch.ones_like(torch.broadcast_tensors(query, key)[0], dtype=torch.bool)
        if self.queries is not None:
            inside &= torch.isin(query, self.queries.to(query.device))
        if self.keys is not None:
            inside &= torch.isin(key, self.keys.to(key.device))
        return inside

    @cached_property
    def _sorted(self) -> Tensor | None:
        return None if self.keys is None else torch.unique(self.keys).long()

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        keys = self._sorted
        count = high - low if keys is None else between(keys.to(query.device), low, high)
        if self.queries is None:
            return count
        return count * torch.isin(query, self.queries.to(query.device))


@dataclass(frozen=True)
class Blocks(Rule):
    """A rule between blocks of `size` neighbouring positions instead of single positions."""

    size: int
    rule: Rule

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return self.rule.allowed(query // self.size, key // self.size)

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        blocks = math.ceil(num_keys / self.size)
        keys = self.rule.reach(first // self.size, last // self.size, blocks)
        if isinstance(keys, slice):
            return run_of(keys.start * self.size, keys.stop * self.size, num_keys)
        inside = torch.arange(self.size, device=keys.device)
        keys = (keys[:, None] * self.size + inside).flatten()
        return as_run(keys[keys < num_keys])

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        up_to_low, up_to_high = self._count_up_to(query, low), self._count_up_to(query, high)
        return None if up_to_low is None or up_to_high is None else up_to_high - up_to_low

    def _count_up_to(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Count the keys before `key`: those in whole blocks, and in the block that it cuts."""
        block, rest = key // self.size, key % self.size
        blocks = self.rule.count(query // self.size, torch.zeros_like(block), block)
        if blocks is None:
            return None
        cut = self.rule.allowed(query // self.size, block)
        return blocks * self.size + torch.where(cut, rest, 0)
