"""Rules: who may attend to whom, said once for all pairs of positions.

A rule answers for any block of pairs, so a graph of a million tokens costs no memory until its
edges are asked for. `TokenGraph` gives a rule its size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

BLOCK_PAIRS = 1 << 22
"""How many pairs of positions are looked at at once."""

Span: TypeAlias = tuple[Tensor, Tensor]

_FAR = 1 << 40
_MOST_TERMS = 8


class Rule(ABC):
    """Whether query q may attend to key k, for any pair of positions."""

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """Say for positions that broadcast against each other whether the edge exists.

        Parameters
        ----------
        query, key : Tensor
            Integer positions.

        Returns
        -------
        Tensor
            Booleans of the broadcast shape.
        """

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        """Bound the keys [low, high) that the queries first .. last (inclusive) can reach."""
        return 0, num_keys

    def interval(self, query: Tensor) -> Span | None:
        """Give each query's keys as [low, high), or None where they are no interval."""
        return None

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        """Count each query's keys in [low, high) without a walk over all pairs, or give None.

        Parameters
        ----------
        query : Tensor
            Positions, in any order.
        low, high : Tensor
            Of the same shape, low <= high.
        """
        keys = self.interval(query)
        if keys is None:
            return None
        return (torch.minimum(high, keys[1]) - torch.maximum(low, keys[0])).clamp_min(0)

    def degrees(self, query: Tensor, num_keys: int) -> Tensor | None:
        """Count all keys of each query; see `count`."""
        return self.count(query, torch.zeros_like(query), torch.full_like(query, num_keys))

    def listed(self) -> Edges | None:
        """List the edges where that takes no walk over all pairs, else give None."""
        return None

    @property
    def terms(self) -> int:
        """How many rules, other than lists of edges, are joined here."""
        return 1

    @property
    def device(self) -> torch.device | None:
        """The device that holds the rule's edges; None for a rule that follows its queries."""
        return None

    def to(self, device: torch.device) -> Rule:
        """Move what the rule stores."""
        return self


@dataclass(frozen=True)
class Complete(Rule):
    """Every query attends to every key."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(
            torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=query.device
        )

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), torch.full_like(query, _FAR)


@dataclass(frozen=True)
class Causal(Rule):
    """k <= q: no query sees the future."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        return 0, min(last + 1, num_keys)

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), query + 1


@dataclass(frozen=True)
class Window(Rule):
    """q - before <= k <= q + after, where also (q - k) mod dilation = 0."""

    before: int
    after: int
    dilation: int = 1

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        near = (distance <= self.before) & (distance >= -self.after)
        return near if self.dilation == 1 else near & (distance % self.dilation == 0)

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        return max(first - self.before, 0), min(last + self.after + 1, num_keys)

    def interval(self, query: Tensor) -> Span | None:
        if self.dilation > 1:
            return None
        return query - self.before, query + self.after + 1

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        if self.dilation == 1:
            return super().count(query, low, high)
        near = Combined("&", Window(self.before, self.after), Strided(self.dilation))
        return near.count(query, low, high)


@dataclass(frozen=True)
class Strided(Rule):
    """(q - k) mod stride = 0, the far-reaching half of the Sparse Transformer."""

    stride: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % self.stride == 0

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return (high - 1 - query) // self.stride - (low - 1 - query) // self.stride


@dataclass(frozen=True)
class Prefix(Rule):
    """k < length: a prompt that everyone reads."""

    length: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (key < self.length).expand(torch.broadcast_shapes(query.shape, key.shape))

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        return 0, min(self.length, num_keys)

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), torch.full_like(query, self.length)


@dataclass(frozen=True, eq=False)
class Documents(Rule):
    """Query and key carry the same document id."""

    ids: Tensor

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        ids = self.ids.to(query.device)
        return ids[query] == ids[key]

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        size = len(self.ids)
        document = torch.unique(self.ids.to(query.device), return_inverse=True)[1]
        codes = torch.sort(document * size + torch.arange(size, device=query.device)).values
        start = document[query] * size
        return _between(codes, start + low.clamp_max(size), start + high.clamp_max(size))


@dataclass(frozen=True, eq=False)
class Globals(Rule):
    """Full rows and full columns for a few positions."""

    positions: Tensor

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        positions = self.positions.to(query.device)
        return torch.isin(query, positions) | torch.isin(key, positions)

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        positions = torch.unique(self.positions.to(query.device))
        is_full = torch.isin(query, positions)
        return torch.where(is_full, high - low, _between(positions, low, high))


@dataclass(frozen=True)
class Blocks(Rule):
    """A rule between blocks of `size` neighbouring positions instead of single ones."""

    size: int
    rule: Rule

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return self.rule.allowed(query // self.size, key // self.size)

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        blocks = math.ceil(num_keys / self.size)
        low, high = self.rule.key_span(first // self.size, last // self.size, blocks)
        return low * self.size, min(high * self.size, num_keys)

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        up_to_low, up_to_high = self._count_up_to(query, low), self._count_up_to(query, high)
        return None if up_to_low is None or up_to_high is None else up_to_high - up_to_low

    def _count_up_to(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Count the keys before `key`: those of whole blocks, and of the block that it cuts."""
        block, rest = key // self.size, key % self.size
        blocks = self.rule.count(query // self.size, torch.zeros_like(block), block)
        if blocks is None:
            return None
        cut = self.rule.allowed(query // self.size, block)
        return blocks * self.size + torch.where(cut, rest, 0)


@dataclass(frozen=True, eq=False)
class Edges(Rule):
    """An explicit set of edges, sorted by query, then key (CSR by query).

    Row r of `pointer` belongs to the query at position `first_query + r`.
    """

    pointer: Tensor
    key: Tensor
    first_query: int = 0

    @staticmethod
    def from_pairs(query: Tensor, key: Tensor, num_queries: int, first_query: int = 0) -> Edges:
        """Sort pairs of row and key, and merge the duplicates."""
        width = int(key.max()) + 1 if len(key) else 1
        codes = torch.unique(query.long() * width + key)
        counts = torch.bincount(codes // width, minlength=num_queries)
        pointer = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Edges(pointer, codes % width, first_query)

    def __repr__(self) -> str:
        return f"Edges({len(self.key)})"

    @property
    def num_rows(self) -> int:
        """How many queries there are."""
        return len(self.pointer) - 1

    @property
    def row(self) -> Tensor:
        """The row of each edge, counted from 0."""
        rows = torch.arange(self.num_rows, device=self.key.device)
        return torch.repeat_interleave(rows, self.pointer.diff())

    @cached_property
    def _width(self) -> int:
        return int(self.key.max()) + 1 if len(self.key) else 1

    @cached_property
    def _codes(self) -> Tensor:
        """One rising number an edge, to search in."""
        return self.row * self._width + self.key

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        edges = self if self.key.device == query.device else self.to(query.device)
        row = query - self.first_query
        known = (row >= 0) & (row < self.num_rows) & (key < self._width)
        if not len(edges.key):
            return torch.zeros_like(known)
        wanted = row * self._width + key
        slot = torch.searchsorted(edges._codes, wanted).clamp_max(len(edges.key) - 1)
        return (edges._codes[slot] == wanted) & known

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        start, stop = (
            int(self.pointer[min(max(query - self.first_query, 0), self.num_rows)])
            for query in (first, last + 1)
        )
        keys = self.key[start:stop]
        return (int(keys.min()), int(keys.max()) + 1) if len(keys) else (0, 0)

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        edges = self if self.key.device == query.device else self.to(query.device)
        start, width = (query - self.first_query) * self._width, self._width
        return _between(edges._codes, start + low.clamp_max(width), start + high.clamp_max(width))

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return self.pointer.to(query.device).diff()[query - self.first_query]

    def listed(self) -> Edges:
        return self

    def where(self, rule: Rule, wanted: bool) -> Edges:
        """Keep the edges that are edges of another rule, or those that are not."""
        row = self.row
        chosen = rule.allowed(row + self.first_query, self.key) == wanted
        return Edges.from_pairs(row[chosen], self.key[chosen], self.num_rows, self.first_query)

    @property
    def terms(self) -> int:
        return 0

    @property
    def device(self) -> torch.device:
        return self.key.device

    def to(self, device: torch.device) -> Edges:
        return Edges(self.pointer.to(device), self.key.to(device), self.first_query)


@dataclass(frozen=True)
class Combined(Rule):
    """Two rules joined: "&" (both), "|" (either) or "-" (the first, not the second)."""

    operation: str
    left: Rule
    right: Rule

    def __repr__(self) -> str:
        return f"({self.left} {self.operation} {self.right})"

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        left, right = self.left.allowed(query, key), self.right.allowed(query, key)
        if self.operation == "&":
            return left & right
        return left | right if self.operation == "|" else left & ~right

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        low, high = self.left.key_span(first, last, num_keys)
        if self.operation == "-":
            return low, high
        other_low, other_high = self.right.key_span(first, last, num_keys)
        if self.operation == "|":
            if low >= high or other_low >= other_high:  # one of them reaches nothing
                return (low, high) if low < high else (other_low, other_high)
            return min(low, other_low), max(high, other_high)
        low = max(low, other_low)
        return low, max(min(high, other_high), low)

    def interval(self, query: Tensor) -> Span | None:
        left, right = self.left.interval(query), self.right.interval(query)
        if self.operation != "&" or left is None or right is None:
            return None
        return torch.maximum(left[0], right[0]), torch.minimum(left[1], right[1])

    def listed(self) -> Edges | None:
        left, right = self.left.listed(), self.right.listed()
        if self.operation == "|":
            return None if left is None or right is None else _joined(left, right)
        if left is not None:
            return left.where(self.right, self.operation == "&")
        return right.where(self.left, True) if right is not None and self.operation == "&" else None

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        edges = self.listed()
        if edges is not None:
            return edges.count(query, low, high)
        if self.operation == "&":
            return self._count_both(query, low, high)
        if self.terms > _MOST_TERMS:  # each doubles the work below
            return None
        left = self.left.count(query, low, high)
        both = Combined("&", self.left, self.right).count(query, low, high)
        if left is None or both is None or self.operation == "-":
            return None if left is None or both is None else left - both
        right = self.right.count(query, low, high)
        return None if right is None else left + right - both

    def _count_both(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        for rule, other in ((self.left, self.right), (self.right, self.left)):
            keys = rule.interval(query)
            if keys is not None:
                low = torch.maximum(low, keys[0])
                return other.count(query, low, torch.maximum(low, torch.minimum(high, keys[1])))
        return None

    @property
    def terms(self) -> int:
        return self.left.terms + self.right.terms

    @property
    def device(self) -> torch.device | None:
        return self.left.device or self.right.device

    def to(self, device: torch.device) -> Combined:
        return Combined(self.operation, self.left.to(device), self.right.to(device))


@dataclass(frozen=True)
class Disjoint(Rule):
    """Graphs side by side, with no edge between them.

    Graph g owns the queries `query_starts[g]` up to the next start, and so for the keys.
    """

    rules: tuple[Rule, ...]
    query_starts: tuple[int, ...]
    key_starts: tuple[int, ...]

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        query_starts = torch.tensor(self.query_starts, device=query.device)
        key_starts = torch.tensor(self.key_starts, device=query.device)
        graph = torch.bucketize(query, query_starts, right=True) - 1
        same = graph == torch.bucketize(key, key_starts, right=True) - 1
        result = torch.zeros_like(same)
        for g in graph.unique().tolist():
            inside = same & (graph == g)
            local_query, local_key = torch.broadcast_tensors(
                query - self.query_starts[g], key - self.key_starts[g]
            )
            result[inside] = self.rules[g].allowed(local_query[inside], local_key[inside])
        return result

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        starts = torch.tensor(self.query_starts)
        first_graph, last_graph = (
            torch.bucketize(torch.tensor([first, last]), starts, right=True) - 1
        ).tolist()
        ends = (*self.key_starts[1:], num_keys)
        return self.key_starts[first_graph], ends[last_graph]

    @property
    def device(self) -> torch.device | None:
        return next((rule.device for rule in self.rules if rule.device is not None), None)

    def to(self, device: torch.device) -> Disjoint:
        moved = tuple(rule.to(device) for rule in self.rules)
        return Disjoint(moved, self.query_starts, self.key_starts)


def _between(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Count the sorted values in [low, high)."""
    return torch.searchsorted(values, high) - torch.searchsorted(values, low)


def _joined(left: Edges, right: Edges) -> Edges:
    right = right.to(left.device)
    first = min(left.first_query, right.first_query)
    last = max(part.first_query + part.num_rows for part in (left, right))
    rows = torch.cat([part.row + part.first_query - first for part in (left, right)])
    return Edges.from_pairs(rows, torch.cat([left.key, right.key]), last - first, first)
