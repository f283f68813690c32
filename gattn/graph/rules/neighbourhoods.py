"""Ragged neighbourhoods: edges listed query by query, and neighbourhoods as padded rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gattn.caching import cached_property, cached_tensor, fields_alone

_INT32_MAX = (1 << 31) - 1


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
        if not bool((query.diff() >= 0).all()):
            order = torch.argsort(query, stable=True)
            query, key = query[order], key[order]
        pointer = pointer_of(torch.bincount(query, minlength=num_queries))
        return Neighbourhoods(pointer, key, num_keys, order)

    @property
    def num_queries(self) -> int:
        """How many queries there are."""
        return len(self.pointer) - 1

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return len(self.key)

    @cached_tensor
    def query(self) -> Tensor:
        """The query of each edge, shape (E,)."""
        rows = torch.arange(self.num_queries, device=self.key.device)
        return torch.repeat_interleave(rows, self.pointer.diff(), output_size=self.num_edges)

    @cached_tensor
    def reversed(self) -> Neighbourhoods:
        """The same edges from queries to keys, sorted by key; `order` says which is which."""
        order = torch.argsort(self.key, stable=True)
        pointer = pointer_of(torch.bincount(self.key, minlength=self.num_keys))
        return Neighbourhoods(pointer, self.query[order], self.num_queries, order)

    def to(self, device: torch.device) -> Neighbourhoods:
        """Move the edges to a device; there they stay for the next call."""
        if device == self.key.device:
            return self
        if device not in self._elsewhere:
            with torch.inference_mode(False):
                pointer, key = self.pointer.to(device), self.key.to(device)
                order = None if self.order is None else self.order.to(device)
            self._elsewhere[device] = Neighbourhoods(pointer, key, self.num_keys, order)
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
        shift = torch.arange(copies, device=self.key.device, dtype=kind)[:, None]
        start = (self.pointer[:-1].to(kind) + shift * self.num_edges).flatten()
        end = start.new_full((1,), copies * self.num_edges)
        return torch.cat([start, end]), (self.key.to(kind) + shift * self.num_keys).flatten()

    @cached_property
    def _copies(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def rows(self, rows: slice) -> Neighbourhoods:
        """Take the neighbourhoods of consecutive queries."""
        pointer = self.pointer[rows.start : rows.stop + 1]
        edges = slice(int(pointer[0]), int(pointer[-1]))
        order = None if self.order is None else self.order[edges]
        return Neighbourhoods(pointer - pointer[0], self.key[edges], self.num_keys, order)

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


def padded_rows(query: Tensor, num_queries: int) -> Iterator[tuple[Tensor, Tensor]]:
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
    edges : Tensor
        Indices into the edges, shape (rows, slots), each row in edge order; 0 where padded.
    present : Tensor
        Booleans (rows, slots), False where padded.
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
        yield (start[rows, None] + slots).masked_fill(~present, 0), present
