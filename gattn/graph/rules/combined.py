"""Rules made of rules: both, either, one without the other, or side by side."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import cast

import torch
from torch import Tensor

from gattn.errors import GraphError
from gattn.graph.rules.base import Rule
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import Keys, Span, intersection, moved, shifted, union, within

MOST_TERMS = 8
"""Each rule joined doubles the work of a count; more of them are counted pair by pair."""

_MOST_RULES, _DEEPEST = 4096, 64


@dataclass(frozen=True)
class Combined(Rule):
    """Two rules joined: "&" (both), "|" (either) or "-" (the first, not the second).

    `combined` joins many without deep nests.
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
        """How deep rules lie in rules."""
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


def combined(operation: str, left: Rule, right: Rule) -> Rule:
    """Join two rules: each part stands there once, and nests stay flat.

    Sets of edges that were added and taken away are kept as one set each, (rule | added) - taken,
    however often that is done in turn.

    Raises
    ------
    GraphError
        Where so many rules are joined that each pair would be asked of thousands.
    """
    rule = _folded(operation, left, right)
    if isinstance(rule, Combined) and (rule.size > _MOST_RULES or rule.depth > _DEEPEST):
        raise GraphError(
            f"The graph would combine {rule.size:,} rules, {rule.depth} deep; at most "
            f"{_MOST_RULES:,} and {_DEEPEST} can be. List its edges before you go on: "
            "TokenGraph.from_edge_index(graph.edge_index, graph.num_tokens)."
        )
    return rule


def _folded(operation: str, left: Rule, right: Rule) -> Rule:
    """Join rules and the sets of edges that each adds and takes away apart from each other."""
    one, added, taken = _unfolded(left)
    other, its_added, its_taken = _unfolded(right)
    if operation == "|":
        rest = _union_of(_where(taken, right, False), _where(its_taken, left, False))
        return _fold(_nested("|", one, other), _union_of(added, its_added), rest)
    if operation == "&":
        both = _nested("&", one, other) if one is not None and other is not None else None
        shared = _union_of(_where(added, right, True), _where(its_added, left, True))
        return _fold(both, shared, _union_of(taken, its_taken))
    kept = _union_of(_where(added, right, False), _where(its_taken, left, True))
    cut = _where(its_added, right, True)
    return _fold(None if one is None else _nested("-", one, other), kept, _union_of(taken, cut))


def _unfolded(rule: Rule) -> tuple[Rule | None, Edges | None, Edges | None]:
    """Take (rule | added) - taken apart; each may be missing."""
    rule, taken = _split("-", rule)
    if isinstance(rule, Edges):
        return None, rule, taken
    return *_split("|", rule), taken


def _split(operation: str, rule: Rule) -> tuple[Rule, Edges | None]:
    """Take the set of edges apart that an operation ends with."""
    if isinstance(rule, Combined) and rule.operation == operation:
        left, right = rule.left, rule.right
        return (left, right) if isinstance(right, Edges) else (rule, None)
    return rule, None


def _fold(rule: Rule | None, added: Edges | None, taken: Edges | None) -> Rule:
    """Make (rule | added) - taken: a rule, or where there is none, the edges that are left."""
    if rule is None and added is not None:
        return added if taken is None else added.where(taken, False)
    whole = cast("Rule", rule)
    if added is not None and len(added.key):
        whole = Combined("|", whole, added)
    return Combined("-", whole, taken) if taken is not None and len(taken.key) else whole


def _nested(operation: str, left: Rule | None, right: Rule | None) -> Rule | None:
    """Join rules other than sets of edges."""
    if left is None or right is None:
        return right if left is None else left
    if operation != "-":
        return balanced(operation, parts_of(operation, left, right))
    if isinstance(left, Combined) and left.operation == "-":
        return Combined("-", left.left, _folded("|", left.right, right))
    return Combined("-", left, right)


def _where(edges: Edges | None, rule: Rule, wanted: bool) -> Edges | None:
    return None if edges is None else edges.where(rule, wanted)


def _union_of(left: Edges | None, right: Edges | None) -> Edges | None:
    if left is None or right is None:
        return right if left is None else left
    return left.joined(right)


def parts_of(operation: str, *rules: Rule) -> list[Rule]:
    """List the different rules that an operation joins."""
    found: dict[Rule, None] = {}
    waiting = list(reversed(rules))
    while waiting:
        rule = waiting.pop()
        if isinstance(rule, Combined) and rule.operation == operation:
            waiting += [rule.right, rule.left]
        else:
            found[rule] = None
    return list(found)


def balanced(operation: str, rules: list[Rule]) -> Rule:
    """Join rules without deep nests."""
    if len(rules) == 1:
        return rules[0]
    middle = (len(rules) + 1) // 2
    sides = (balanced(operation, some) for some in (rules[:middle], rules[middle:]))
    return Combined(operation, *sides)
