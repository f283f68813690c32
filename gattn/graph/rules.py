"""Rules: who may attend to whom, said once for all pairs of positions.

A rule answers for any block of pairs, so a graph of a million tokens costs no memory until its
edges are asked for. `TokenGraph` gives a rule its size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias, cast

import torch
from torch import Tensor

from gattn.checks import check_memory
from gattn.errors import GraphError

BLOCK_PAIRS = 1 << 22
"""How many pairs of positions are looked at at once."""

Span: TypeAlias = tuple[Tensor, Tensor]
Keys: TypeAlias = slice | Tensor
"""Some keys: a run of them, or a sorted tensor without duplicates."""

FARTHEST = 1 << 40
"""No position lies beyond: numbers of tokens are smaller, and larger distances mean all."""

MOST_TERMS = 8
"""Each rule joined doubles the work of a count; more of them are counted pair by pair."""

_MOST_RULES, _DEEPEST = 4096, 64


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
            Booleans of the broadcast shape, in memory of their own.
        """

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        """Find the keys that the queries first .. last (inclusive) reach, all together.

        Parameters
        ----------
        first, last : int
            Positions, first <= last.
        num_keys : int
            How many keys there are.

        Returns
        -------
        slice or Tensor
            These keys and maybe others: a slice where they are one run, else int64, sorted,
            without duplicates, on the rule's device (the CPU for a rule without one).
        """
        keys = self.interval(torch.tensor([first, last]))
        if keys is None:
            return slice(0, num_keys)
        return _run(int(keys[0][0]), int(keys[1][1]), num_keys)

    def interval(self, query: Tensor) -> Span | None:
        """Give each query's keys as [low, high), or None where they are no interval.

        From one position to the next each end stays or moves on by one, so that the keys of a run
        of queries are an interval too.
        """
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
        return torch.ones_like(torch.broadcast_tensors(query, key)[0], dtype=torch.bool)

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), torch.full_like(query, FARTHEST)


@dataclass(frozen=True)
class Causal(Rule):
    """k <= q: no query sees the future."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def interval(self, query: Tensor) -> Span:
        return torch.zeros_like(query), query + 1


@dataclass(frozen=True)
class Window(Rule):
    """q - before <= k <= q + after, where also (q - k) mod dilation = 0."""

    before: int
    after: int
    dilation: int = 1

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        before, after = self._ends
        near = (key >= query - before) & (key <= query + after)
        return near if self.dilation == 1 else near & Strided(self.dilation).allowed(query, key)

    @property
    def _ends(self) -> tuple[int, int]:
        """How far it reaches to both sides, in numbers that positions can be added to."""
        return min(self.before, FARTHEST), min(self.after, FARTHEST)

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        span = _run(first - self.before, last + self.after + 1, num_keys)
        return _every(self.dilation, first, last, span)

    def interval(self, query: Tensor) -> Span | None:
        if self.dilation > 1:
            return None
        before, after = self._ends
        return query - before, query + after + 1

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
        stride = min(self.stride, FARTHEST)
        return query % stride == key % stride

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        return _every(self.stride, first, last, slice(0, num_keys))

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
        """The least code that each position's document could have."""
        document: Tensor = torch.unique(self.ids, return_inverse=True)[1]
        return document * len(self.ids)

    @cached_property
    def _codes(self) -> Tensor:
        """One rising number a position, document by document."""
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
        before, inside = torch.searchsorted(positions, torch.tensor([first, last + 1])).tolist()
        if before < inside:
            return slice(0, num_keys)
        return _as_run(positions[positions < num_keys].cpu())

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        positions = self.ordered.to(query.device)
        is_full = torch.isin(query, positions)
        return torch.where(is_full, high - low, between(positions, low, high))


@dataclass(frozen=True, eq=False)
class Crossing(Rule):
    """Some queries to some keys: every pair of them; None stands for all."""

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
    """A rule between blocks of `size` neighbouring positions instead of single ones."""

    size: int
    rule: Rule

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return self.rule.allowed(query // self.size, key // self.size)

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        blocks = math.ceil(num_keys / self.size)
        keys = self.rule.reach(first // self.size, last // self.size, blocks)
        if isinstance(keys, slice):
            return _run(keys.start * self.size, keys.stop * self.size, num_keys)
        inside = torch.arange(self.size, device=keys.device)
        keys = (keys[:, None] * self.size + inside).flatten()
        return _as_run(keys[keys < num_keys])

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
        check_memory(8 * num_queries, f"The list of where the edges of {num_queries:,} queries are")
        if num_queries * width >= 1 << 63:
            raise GraphError(f"{num_queries:,} queries with keys up to {width - 1:,} are too many.")
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
        return torch.repeat_interleave(rows, self.pointer.diff(), output_size=len(self.key))

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
        if query.dim() > 1 < key.dim() and query.shape[-1] == 1 == key.shape[-2]:
            *batch, height, width = known.shape
            rows = row.expand(*batch, height, 1).reshape(math.prod(batch), height)
            keys = key.expand(*batch, 1, width).reshape(math.prod(batch), width)
            if (tiles := edges._tiles(rows, keys)) is not None:
                return tiles.reshape(known.shape)
        wanted = row * self._width + key
        slot = torch.searchsorted(edges._codes, wanted).clamp_max(len(edges.key) - 1)
        return (edges._codes[slot] == wanted) & known

    def _tiles(self, row: Tensor, key: Tensor) -> Tensor | None:
        """Search the edges of rows (n, h) among keys (n, w), or give None where pairs are fewer.

        Returns
        -------
        Tensor or None
            Booleans (n, h, w).
        """
        (num_tiles, height), width = row.shape, key.shape[1]
        row, device = row.flatten(), row.device
        known = (row >= 0) & (row < self.num_rows)
        row = torch.where(known, row, 0)
        start = self.pointer[row]
        degree = (self.pointer[row + 1] - start) * known
        if int(degree.sum()) > len(row) * width:
            return None
        codes = self._width + 1
        lowest = torch.arange(num_tiles, device=device)[:, None] * codes
        wanted = (lowest + key.clamp_max(self._width)).flatten()
        rising = wanted.sort().values
        line = torch.repeat_interleave(torch.arange(len(row), device=device), degree)
        tile = line // height
        edge = tile * codes + self.key[ranges(start, start + degree)]
        slot = torch.searchsorted(rising, edge).clamp_max(len(rising) - 1)
        place = (line - tile) * width + slot
        tiles = torch.zeros(len(row) * width, dtype=torch.bool, device=device)
        tiles[place[rising[slot] == edge]] = True
        tiles = tiles.view(num_tiles, height, width)
        if bool((wanted.diff() > 0).all()):
            return tiles
        # Keys in another order, or twice: each takes the column where it stands first in `rising`.
        first = torch.searchsorted(rising, wanted).view(num_tiles, 1, width) % max(width, 1)
        return tiles.gather(2, first.expand_as(tiles))

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        rows = (min(max(q - self.first_query, 0), self.num_rows) for q in (first, last + 1))
        start, stop = (int(self.pointer[row]) for row in rows)
        keys = torch.unique(self.key[start:stop])
        return _as_run(keys[keys < num_keys])

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        edges = self if self.key.device == query.device else self.to(query.device)
        start, width = (query - self.first_query) * self._width, self._width
        return between(edges._codes, start + low.clamp_max(width), start + high.clamp_max(width))

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
        join = _union if self.operation == "|" else _intersection
        return _moved(join(left, right), self.device)

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
                low = torch.maximum(low, keys[0])
                return other.count(query, low, torch.maximum(low, torch.minimum(high, keys[1])))
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
    return _joined(left, right)


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
                parts.append(_shifted(keys, key_start))
        return _moved(reduce(_union, parts), self.device)

    @property
    def device(self) -> torch.device | None:
        return next((rule.device for rule in self.rules if rule.device is not None), None)

    def to(self, device: torch.device) -> Disjoint:
        moved = tuple(rule.to(device) for rule in self.rules)
        return Disjoint(moved, self.query_starts, self.key_starts)


def count_keys(keys: Keys) -> int:
    """Count some keys."""
    return keys.stop - keys.start if isinstance(keys, slice) else keys.shape[-1]


def list_keys(keys: Keys, device: torch.device | None = None) -> Tensor:
    """Write a run of keys out."""
    if isinstance(keys, Tensor):
        return keys
    return torch.arange(keys.start, keys.stop, device=device)


def ranges(start: Tensor, stop: Tensor) -> Tensor:
    """Write the runs start .. stop - 1 out, one after another."""
    sizes = stop - start
    shift = start - sizes.cumsum(0) + sizes
    shifts = torch.repeat_interleave(shift, sizes)
    return shifts + torch.arange(len(shifts), device=start.device)


def _run(low: int, high: int, num_keys: int) -> slice:
    """Cut [low, high) to the keys there are."""
    low = min(max(low, 0), num_keys)
    return slice(low, max(min(high, num_keys), low))


def _as_run(keys: Tensor) -> Keys:
    """Give sorted keys as a slice where they are one run."""
    if not len(keys):
        return slice(0, 0)
    low, high = int(keys[0]), int(keys[-1]) + 1
    return slice(low, high) if high - low == len(keys) else keys


def _every(stride: int, first: int, last: int, span: slice) -> Keys:
    """Find the keys of a span that lie a multiple of `stride` from one of first .. last."""
    rows, stride = last - first + 1, min(stride, FARTHEST)
    if rows >= stride:
        return span
    start = span.start - (span.start - first) % stride
    keys = torch.arange(start, span.stop, stride)[:, None] + torch.arange(rows)
    keys = keys.flatten()
    return _as_run(keys[(keys >= span.start) & (keys < span.stop)])


def _union(left: Keys, right: Keys) -> Keys:
    if isinstance(left, Tensor):
        if isinstance(right, slice):
            return _union(right, left)
        return _as_run(torch.unique(torch.cat([left, right.to(left.device)])))
    if isinstance(right, slice):
        if not count_keys(left) or not count_keys(right):
            return left if count_keys(left) else right
        if max(left.start, right.start) <= min(left.stop, right.stop):
            return slice(min(left.start, right.start), max(left.stop, right.stop))
    others = list_keys(right)
    before, after = _cut(others, left)
    run = list_keys(left, others.device)
    return _as_run(torch.cat([others[:before], run, others[after:]]))


def _intersection(left: Keys, right: Keys) -> Keys:
    if isinstance(left, Tensor):
        if isinstance(right, slice):
            return _intersection(right, left)
        return _as_run(left[torch.isin(left, right.to(left.device))])
    if isinstance(right, slice):
        return _run(max(left.start, right.start), min(left.stop, right.stop), right.stop)
    before, after = _cut(right, left)
    return _as_run(right[before:after])


def _cut(keys: Tensor, run: slice) -> list[int]:
    """Find where in sorted keys a run of keys starts and stops."""
    ends = torch.tensor([run.start, run.stop], device=keys.device)
    found: list[int] = torch.searchsorted(keys, ends).tolist()
    return found


def _shifted(keys: Keys, by: int) -> Keys:
    return slice(keys.start + by, keys.stop + by) if isinstance(keys, slice) else keys + by


def _moved(keys: Keys, device: torch.device | None) -> Keys:
    return keys if isinstance(keys, slice) else keys.to(device or "cpu")


def between(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Count the sorted values in [low, high)."""
    return torch.searchsorted(values, high) - torch.searchsorted(values, low)


def _joined(left: Edges, right: Edges) -> Edges:
    right = right.to(left.device)
    first = min(left.first_query, right.first_query)
    last = max(part.first_query + part.num_rows for part in (left, right))
    rows = torch.cat([part.row + part.first_query - first for part in (left, right)])
    return Edges.from_pairs(rows, torch.cat([left.key, right.key]), last - first, first)
