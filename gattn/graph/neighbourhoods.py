"""Ragged neighbourhoods: edges sorted by query, and neighbourhoods as padded rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.caching import cached_property, cached_tensor

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Edges sorted by query (CSR by query), as sparse products read them.

    Parameters
    ----------
    pointer : Tensor
        Where each neighbourhood starts among the edges, shape (queries + 1,).
    key : Tensor
        The key of each edge, shape (E,).
    num_keys : int
        How many keys there are.
    """

    pointer: Tensor
    key: Tensor
    num_keys: int

    @staticmethod
    def from_pairs(
        query: Tensor, key: Tensor, num_queries: int, num_keys: int
    ) -> tuple[Neighbourhoods, Tensor | None]:
        """Sort edges by query; doubled ones stay.

        Returns
        -------
        neighbourhoods : Neighbourhoods
        order : Tensor or None
            The given number of each sorted edge; None where they were sorted already.
        """
        order = None  # a copy: the caller may change edges before a gradient is computed
        query, key = query.clone(), key.clone()
        if not bool((query.diff() >= 0).all()):
            order = torch.argsort(query, stable=True)
            query, key = query[order], key[order]
        degree = torch.bincount(query, minlength=num_queries)
        pointer = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        return Neighbourhoods(pointer, key, num_keys), order

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
    def reversed(self) -> tuple[Neighbourhoods, Tensor]:
        """The same edges from queries to keys, sorted by key, and the old number of each."""
        order = torch.argsort(self.key, stable=True)
        degree = torch.bincount(self.key, minlength=self.num_keys)
        pointer = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        return Neighbourhoods(pointer, self.query[order], self.num_queries), order

    def repeated(self, copies: int) -> tuple[Tensor, Tensor]:
        """Lay copies side by side, one for each head: pointers and keys of one large graph."""
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
        """Take the neighbourhoods of some consecutive queries."""
        pointer = self.pointer[rows.start : rows.stop + 1]
        edges = slice(int(pointer[0]), int(pointer[-1]))
        return Neighbourhoods(pointer - pointer[0], self.key[edges], self.num_keys)


def padded_rows(query: Tensor, num_queries: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Group the neighbourhoods of near-equal degree and pad each group to rows.

    Rows of degree 2^(k-1) + 1 .. 2^k share a group, so padding at most doubles the edges.

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
