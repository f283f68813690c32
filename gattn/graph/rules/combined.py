"""Rules made of rules: both, either, one without the other, or side by side."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from gattn.graph.rules.base import Rule
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import Keys, Span, intersection, moved, shifted, union, within

MOST_TERMS = 8
"""Each rule joined doubles the work of a count; more of them are counted pair by pair."""


@dataclass(frozen=True)
class Combined(Rule):
    """Two rules joined: "&" (both), "|" (either) or "-" (the first, not the second).

    `combined` in `folding.py` joins many without deep nests.
    """

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

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        left = self.left.reach(first, last, num_keys)
        if self.operation == "-":
            return left
        right = self.right.reach(first, last, num_keys)
        join = union if self.operation == "|" else intersection
        return moved(join(left, right), self.device)

    def interval(self, query: Tensor) -> Span | None:
        left, right = self.left.interval(query), self.right.interval(query)
        if self.operation == "-" or left is None or right is None:
            return None
        if self.operation == "&":
            return torch.maximum(left[0], right[0]), torch.minimum(left[1], right[1])
        if torch.equal(left[0], right[0]):
            return left[0], torch.maximum(left[1], right[1])
        return None

    def listed(self) -> Edges | None:
        left, right = self.left.listed(), self.right.listed()
        if self.operation == "|":
            return None if left is None or right is None else left.joined(right)
        if left is not None:
            return left.where(self.right, self.operation == "&")
        return right.where(self.left, True) if right is not None and self.operation == "&" else None

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        edges = self.listed()
        if edges is not None:
            return edges.count(query, low, high)
        if self.operation == "&":
            return self._count_both(query, low, high)
        if self.terms > MOST_TERMS:  # each doubles the work below
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
                return other.count(query, *within(keys, low, high))
        return None

    @property
    def terms(self) -> int:
        return self.left.terms + self.right.terms

    @cached_property
    def size(self) -> int:
        """How many rules it is made of."""
        return sum(part.size if isinstance(part, Combined) else 1 for part in self._sides)

    @cached_property
    def depth(self) -> int:
        """How deep rules are nested."""
        return 1 + max(part.depth if isinstance(part, Combined) else 0 for part in self._sides)

    @property
    def _sides(self) -> tuple[Rule, Rule]:
        return self.left, self.right

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

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.rules)) if len(self.rules) < 9 else f"{len(self.rules):,}"
        return f"Disjoint({shown})"

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

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        first_graph, last_graph = (bisect_right(self.query_starts, q) - 1 for q in (first, last))
        parts: list[Keys] = [slice(0, 0)]
        for g in range(first_graph, last_graph + 1):
            start, key_start = self.query_starts[g], self.key_starts[g]
            end = self.query_starts[g + 1] - 1 if g < last_graph else last
            is_last = g + 1 == len(self.rules)
            key_end = num_keys if is_last else min(self.key_starts[g + 1], num_keys)
            if max(first, start) <= end and key_start < key_end:
                local = max(first - start, 0), end - start, key_end - key_start
                keys = self.rules[g].reach(*local)
                parts.append(shifted(keys, key_start))
        return moved(reduce(union, parts), self.device)

    @property
    def device(self) -> torch.device | None:
        return next((rule.device for rule in self.rules if rule.device is not None), None)

    def to(self, device: torch.device) -> Disjoint:
        moved = tuple(rule.to(device) for rule in self.rules)
        return Disjoint(moved, self.query_starts, self.key_starts)
