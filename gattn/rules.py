"""Rules: who may attend to whom, said once for all pairs of positions.

A rule answers for any block of pairs, so a graph of a million tokens costs no memory until its
edges are asked for. `TokenGraph` gives a rule its size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


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

    def degrees(self, query: Tensor, num_keys: int) -> Tensor | None:
        """Count the keys of each query in closed form, or give None where there is none."""
        return None

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

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return torch.full_like(query, num_keys)


@dataclass(frozen=True)
class Causal(Rule):
    """k <= q: no query sees the future."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        return 0, min(last + 1, num_keys)

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return (query + 1).clamp(0, num_keys)


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

    def degrees(self, query: Tensor, num_keys: int) -> Tensor | None:
        if self.dilation > 1:
            return None
        high = (query + self.after + 1).clamp(0, num_keys)
        return high - (query - self.before).clamp(0, num_keys)


@dataclass(frozen=True)
class Strided(Rule):
    """(q - k) mod stride = 0, the far-reaching half of the Sparse Transformer."""

    stride: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % self.stride == 0


@dataclass(frozen=True)
class Prefix(Rule):
    """k < length: a prompt that everyone reads."""

    length: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return (key < self.length).expand(torch.broadcast_shapes(query.shape, key.shape))

    def key_span(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        return 0, min(self.length, num_keys)

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return torch.full_like(query, min(self.length, num_keys))


@dataclass(frozen=True, eq=False)
class Documents(Rule):
    """Query and key carry the same document id."""

    ids: Tensor

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        ids = self.ids.to(query.device)
        return ids[query] == ids[key]


@dataclass(frozen=True, eq=False)
class Globals(Rule):
    """Full rows and full columns for a few positions."""

    positions: Tensor

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        positions = self.positions.to(query.device)
        return torch.isin(query, positions) | torch.isin(key, positions)


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
    def row(self) -> Tensor:
        """The row of each edge, counted from 0."""
        rows = torch.arange(len(self.pointer) - 1, device=self.key.device)
        return torch.repeat_interleave(rows, self.pointer.diff())

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        edges = self if self.key.device == query.device else self.to(query.device)
        row = query - self.first_query
        known = (row >= 0) & (row < len(edges.pointer) - 1)
        if not len(edges.key):
            return torch.zeros_like(known & (key >= 0))
        width = int(torch.maximum(edges.key.max(), key.max())) + 1
        codes = edges.row * width + edges.key
        wanted = row * width + key
        slot = torch.searchsorted(codes, wanted).clamp_max(len(codes) - 1)
        return (codes[slot] == wanted) & known

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return self.pointer.to(query.device).diff()[query - self.first_query]

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
            return min(low, other_low), max(high, other_high)
        low = max(low, other_low)
        return low, max(min(high, other_high), low)

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
