"""Ragged neighbourhoods: edges listed query by query, and neighbourhoods as padded rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.caching import cached_property, cached_tensor, fields_alone
from gattn.largest import flat_indices

_INT32_MAX = (1 << 31) - 1
_KEPT_EDGES, _KEPT_CUTS = 1 << 22, 2  # the blocks of so many edges, cut in so many ways, are kept


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Edges sorted by query (CSR by query): the one form in which gattn lists edges.

    Parameters
    ----------
    pointer : Tensor
        Where each neighbourhood starts among the edges, shape (queries + 1,).
    key : Tensor
        The key of each edge, shape (E,).
    num_keys : int
        How many keys there are.
    order : Tensor, optional
        Which of the given edges each one is, shape (E,); None if they were sorted already.
    """

    pointer: Tensor
    key: Tensor
    num_keys: int
    order: Tensor | None = None

    __getstate__ = fields_alone

    @staticmethod
    def from_pairs(query: Tensor, key: Tensor, num_queries: int, num_keys: int) -> Neighbourhoods:
        """Sort edges by query; duplicates stay."""
        order = None
        query, key = query.clone(), key.clone()  # They may change before a gradient is computed.
        # Another device sorts sooner than it would tell whether they are sorted.
        if query.device.type != "cpu" or not bool((query.diff() >= 0).all()):
            order = torch.argsort(query, stable=True)
            query, key = query[order], key[order]
        return Neighbourhoods(_pointer_to(query, num_queries), key, num_keys, order)

    @property
    def num_queries(self) -> int:
        """How many queries there are."""
        return self.pointer.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.key.shape[0]

    @cached_tensor
    def query(self) -> Tensor:
        """The query of each edge, shape (E,)."""
        rows = torch.arange(self.num_queries, device=self.key.device)
        return torch.repeat_interleave(rows, self.pointer.diff(), output_size=self.num_edges)

    @cached_tensor
    def reversed(self) -> Neighbourhoods:
        """The same edges from queries to keys, sorted by key; `order` says which is which."""
        order = torch.argsort(self.key, stable=True)
        pointer = _pointer_to(self.key[order], self.num_keys)
        return Neighbourhoods(pointer, self.query[order], self.num_queries, order)

    @cached_tensor
    def pointer_on_host(self) -> Tensor:
        """The pointer in main memory, to cut the edges into blocks."""
        return self.pointer.cpu()

    def to(self, device: torch.device) -> Neighbourhoods:
        """Move the edges to a device; there they stay for the next call."""
        if device == self.key.device:
            return self
        if device not in self._elsewhere:
            with torch.inference_mode(False):
                pointer, key = self.pointer.to(device), self.key.to(device)
                order = None if self.order is None else self.order.to(device)
            moved = Neighbourhoods(pointer, key, self.num_keys, order)
            moved.__dict__["pointer_on_host"] = self.pointer_on_host
            self._elsewhere[device] = moved
        return self._elsewhere[device]

    @cached_property
    def _elsewhere(self) -> dict[torch.device, Neighbourhoods]:
        return {}

    def repeated(self, copies: int) -> tuple[Tensor, Tensor]:
        """Lay copies side by side, one per head: pointer and keys of one large graph."""
        found = self._copies.get(copies)
        if found is None:
            with torch.inference_mode(False):
                found = self._repeated(copies)
            if len(self._copies) > 1:
                self._copies.clear()
            self._copies[copies] = found
        return found

    def _repeated(self, copies: int) -> tuple[Tensor, Tensor]:
        largest = copies * max(self.num_edges, self.num_queries, self.num_keys)
        kind = torch.int32 if largest < _INT32_MAX else torch.int64
        if copies == 1:
            return self.pointer.to(kind), self.key.to(kind)
        shift = torch.arange(copies, device=self.key.device, dtype=kind)[:, None]
        start = (self.pointer[:-1].to(kind) + shift * self.num_edges).flatten()
        end = start.new_full((1,), copies * self.num_edges)
        return torch.cat([start, end]), (self.key.to(kind) + shift * self.num_keys).flatten()

    @cached_property
    def _copies(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def rows(self, rows: slice) -> Neighbourhoods:
        """Take the neighbourhoods of consecutive queries."""
        edges = self.edges_of(rows)
        order = None if self.order is None else self.order[edges]
        pointer = self.pointer[rows.start : rows.stop + 1] - edges.start
        return Neighbourhoods(pointer, self.key[edges], self.num_keys, order)

    def blocks(self, most: int) -> Iterable[Block]:
        """Cut into whole neighbourhoods of at most `most` edges, unless a single one is larger.

        Blocks of few edges are kept for the next call, with what was found out about them.
        """
        if self.num_edges > _KEPT_EDGES:
            return self._cut(most)
        if most not in self._blocks:
            if len(self._blocks) >= _KEPT_CUTS:
                self._blocks.clear()
            with torch.inference_mode(False):
                self._blocks[most] = tuple(self._cut(most))
        return self._blocks[most]

    @cached_property
    def _blocks(self) -> dict[int, tuple[Block, ...]]:
        return {}

    def _cut(self, most: int) -> Iterator[Block]:
        if self.num_queries and self.num_edges <= most:  # A device need not tell where they start.
            rows, edges = slice(0, self.num_queries), slice(0, self.num_edges)
            yield Block(rows, edges, self.query)
            return
        pointer, row = self.pointer_on_host, 0
        while row < self.num_queries:
            reached = torch.searchsorted(pointer, pointer[row] + most, right=True)
            rows = slice(row, max(int(reached) - 1, row + 1))
            edges = self.edges_of(rows)
            yield Block(rows, edges, self.query[edges] - row)
            row = rows.stop

    def edges_of(self, rows: slice) -> slice:
        """Find the edges of consecutive queries."""
        pointer = self.pointer_on_host
        return slice(int(pointer[rows.start]), int(pointer[rows.stop]))

    def as_given(self, numbers: Tensor) -> Tensor:
        """Bring numbers of the sorted edges, (..., E), into the order in which these were given."""
        if self.order is None:
            return numbers
        return numbers.index_select(-1, torch.argsort(self.order))

    def among(self, num_keys: int) -> Neighbourhoods:
        """Set the number of keys."""
        return self if num_keys == self.num_keys else replace(self, num_keys=num_keys)


def pointer_of(degree: Tensor) -> Tensor:
    """Find where each neighbourhood starts from their sizes: (queries,) -> (queries + 1,)."""
    return torch.cat([degree.new_zeros(1), degree.cumsum(0)])


def _pointer_to(ends: Tensor, size: int) -> Tensor:
    """Find where each number below `size` starts among sorted ones: (E,) -> (size + 1,)."""
    return torch.searchsorted(ends, torch.arange(size + 1, device=ends.device))


@dataclass(frozen=True, eq=False)
class Block:
    """A few whole neighbourhoods: consecutive queries, their edges, each edge's query from 0."""

    rows: slice
    edges: slice
    query: Tensor

    @property
    def num_queries(self) -> int:
        """How many queries there are."""
        count: int = self.rows.stop - self.rows.start
        return count

    @cached_tensor
    def padded_rows(self) -> tuple[PaddedRows, ...]:
        """The neighbourhoods as padded rows."""
        return tuple(padded_rows(self.query, self.num_queries))


class PaddedRows(NamedTuple):
    """Neighbourhoods of similar degree, padded to rows.

    `edges` (rows, slots) are indices into the edges, each row in edge order, 0 where padded;
    `present` says where they are not. `slots` are the flat indices of these.
    """

    edges: Tensor
    present: Tensor
    slots: Tensor


def padded_rows(query: Tensor, num_queries: int) -> Iterator[PaddedRows]:
    """Group neighbourhoods of similar degree and pad each group to rows.

    Rows of degree 2^(k-1) + 1 .. 2^k form a group, so padding at most doubles the edges.

    Parameters
    ----------
    query : Tensor
        The query of each edge, rising, shape (E,).
    num_queries : int
        How many queries there are.

    Yields
    ------
    PaddedRows
        Those of one group.
    """
    degree = torch.bincount(query, minlength=num_queries)
    start = degree.cumsum(0) - degree
    group = torch.ceil(torch.log2(degree.clamp_min(1).double())).masked_fill(degree == 0, -1)
    for size in group.unique().tolist():
        if size < 0:
            continue
        rows = (group == size).nonzero()[:, 0]
        slots = torch.arange(int(degree[rows].max()), device=query.device)
        present = slots < degree[rows, None]
        edges = (start[rows, None] + slots).masked_fill(~present, 0)
        yield PaddedRows(edges, present, flat_indices(present))
