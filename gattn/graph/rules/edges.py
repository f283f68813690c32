"""Sets of edges, listed one by one, as a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gattn.caching import cached_property, fields_alone
from gattn.checks import check_memory
from gattn.errors import GraphError
from gattn.graph.rules.base import Rule
from gattn.graph.rules.keys import Keys, as_run, between, ranges
from gattn.graph.rules.neighbourhoods import Neighbourhoods, pointer_of


@dataclass(frozen=True, eq=False)
class Edges(Rule):
    """An explicit set of edges: `Neighbourhoods` without duplicates, as a rule on positions.

    Edges are sorted by query, then key. Row r of `pointer` belongs to the query at position
    `first_query + r`. Keys are int64, or int32 where they are only stored.
    """

    pointer: Tensor
    key: Tensor
    first_query: int = 0

    __getstate__ = fields_alone

    @staticmethod
    def from_pairs(query: Tensor, key: Tensor, num_queries: int, first_query: int = 0) -> Edges:
        """Sort pairs of row and key, and merge the duplicates."""
        codes, width = _codes_of(query, key, num_queries)
        return _of_codes(torch.unique(codes), width, num_queries, first_query)

    @staticmethod
    def numbered(query: Tensor, key: Tensor, num_queries: int) -> tuple[Edges, Tensor]:
        """Sort pairs and merge the duplicates; also say which of the edges each pair is."""
        codes, width = _codes_of(query, key, num_queries)
        # NumPy's sort is several times as fast.
        found = np.unique(codes.cpu().numpy(), return_inverse=True)
        unique, places = (torch.from_numpy(x).to(codes.device) for x in found)
        return _of_codes(unique, width, num_queries), places

    @cached_property
    def neighbourhoods(self) -> Neighbourhoods:
        """The edges as they are listed, with as many keys as the last one needs."""
        num_keys = int(self.key.max()) + 1 if len(self.key) else 1
        return Neighbourhoods(self.pointer, self.key.long(), num_keys)

    def __repr__(self) -> str:
        return f"Edges({len(self.key)})"

    @property
    def num_rows(self) -> int:
        """How many queries there are."""
        return len(self.pointer) - 1

    @property
    def row(self) -> Tensor:
        """The row of each edge, counted from 0."""
        return self.neighbourhoods.query

    @property
    def _width(self) -> int:
        return self.neighbourhoods.num_keys

    @cached_property
    def _codes(self) -> Tensor:
        """One rising number per edge, to search in."""
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
        """Search the edges of rows (n, h) among keys (n, w), or give None if pairs are fewer.

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
        # Keys in another order, or doubled: each takes the column of its first place in `rising`.
        first = torch.searchsorted(rising, wanted).view(num_tiles, 1, width) % max(width, 1)
        return tiles.gather(2, first.expand_as(tiles))

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        rows = (min(max(q - self.first_query, 0), self.num_rows) for q in (first, last + 1))
        start, stop = (int(self.pointer[row]) for row in rows)
        keys = torch.unique(self.key[start:stop].long())
        return as_run(keys[keys < num_keys])

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor:
        edges = self if self.key.device == query.device else self.to(query.device)
        start, width = (query - self.first_query) * self._width, self._width
        return between(edges._codes, start + low.clamp_max(width), start + high.clamp_max(width))

    def degrees(self, query: Tensor, num_keys: int) -> Tensor:
        return self.pointer.to(query.device).diff()[query - self.first_query]

    def listed(self) -> Edges:
        return self

    def where(self, rule: Rule, wanted: bool) -> Edges:
        """Keep the edges that another rule allows, or those that it does not."""
        row = self.row
        key = self.neighbourhoods.key
        chosen = rule.allowed(row + self.first_query, key) == wanted
        return Edges.from_pairs(row[chosen], key[chosen], self.num_rows, self.first_query)

    def joined(self, other: Edges) -> Edges:
        """Join the edges of both."""
        other = other.to(self.device)
        first = min(self.first_query, other.first_query)
        last = max(part.first_query + part.num_rows for part in (self, other))
        rows = torch.cat([part.row + part.first_query - first for part in (self, other)])
        return Edges.from_pairs(rows, torch.cat([self.key, other.key]), last - first, first)

    @property
    def terms(self) -> int:
        return 0

    @property
    def device(self) -> torch.device:
        return self.key.device

    def to(self, device: torch.device) -> Edges:
        return Edges(self.pointer.to(device), self.key.to(device), self.first_query)


def _codes_of(query: Tensor, key: Tensor, num_queries: int) -> tuple[Tensor, int]:
    """Return one number per pair of row and key, sorted as they are, and how many keys there are.

    Checks that the rows fit the memory, and the numbers an integer.
    """
    width = int(key.max()) + 1 if len(key) else 1
    check_memory(8 * num_queries, f"The pointer to the edges of {num_queries:,} queries")
    if num_queries * width >= 1 << 63:
        raise GraphError(f"{num_queries:,} queries with keys up to {width - 1:,} are too many.")
    return query.long() * width + key, width


def _of_codes(codes: Tensor, width: int, num_queries: int, first_query: int = 0) -> Edges:
    pointer = pointer_of(torch.bincount(codes // width, minlength=num_queries))
    return Edges(pointer, codes % width, first_query)
