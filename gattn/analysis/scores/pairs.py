"""Sums of products of parts of queries and of keys, in blocks, of the parts that are not zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 1 << 22
"""How many products there are at a time."""


@dataclass(frozen=True, eq=False)
class Listed:
    """The parts of some tokens that are not zero.

    Parameters
    ----------
    writers : Tensor (writers,)
        The numbers of the writers that have any, ascending.
    numbers, tokens : Tensor (entries,)
        Which of these writers, ascending, and which of the tokens.
    vectors : Tensor (entries, dim)
        The parts.
    size : int
        How many tokens there are.
    """

    writers: Tensor
    numbers: Tensor
    tokens: Tensor
    vectors: Tensor
    size: int

    @classmethod
    def of(cls, parts: Tensor, tokens: Tensor) -> Listed:
        """List the parts of some tokens, of parts (writers, tokens, dim)."""
        if not parts.is_sparse:
            count, size = len(parts), len(tokens)
            every, places = (
                torch.arange(count, device="cpu"),
                torch.arange(size, device="cpu").repeat(count),
            )
            numbers = every.repeat_interleave(size)
            return cls(every, numbers, places, parts[:, tokens].flatten(0, 1), size)
        numbers, places = parts.indices()
        local = torch.full((parts.shape[1],), -1, device="cpu")
        local[tokens] = torch.arange(len(tokens), device="cpu")
        places = local[places]
        is_asked = places >= 0
        writers, numbers = numbers[is_asked].unique(return_inverse=True)
        return cls(writers, numbers, places[is_asked], parts.values()[is_asked], len(tokens))

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Walk the writers: each one's number, its tokens, and its parts of these."""
        counts = torch.bincount(self.numbers, minlength=len(self.writers)).tolist()
        tokens, vectors = self.tokens.split(counts), self.vectors.split(counts)
        yield from zip(self.writers.tolist(), tokens, vectors, strict=True)

    def whole(self) -> Tensor:
        """Return the parts with all zeros: (writers, tokens, dim)."""
        found = self.vectors.new_zeros(len(self.writers), self.size, self.vectors.shape[1])
        found[self.numbers, self.tokens] = self.vectors
        return found


@dataclass(frozen=True, eq=False)
class Pairs:
    r"""The sums :math:`t_{ab} = \sum_{ij} c_{ij} q_i^a \cdot k_j^b` for writers a and b.

    Parameters
    ----------
    queries, keys : Listed
        What writers give of either side.
    counted : Tensor (queries, keys)
        The numbers c of the edges.
    """

    queries: Listed
    keys: Listed
    counted: Tensor

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, counted: Tensor) -> Pairs:
        """Take the parts (writers, tokens, dim) of tokens whose edges count."""
        rows, columns = (counted.any(dim).nonzero().flatten() for dim in (1, 0))
        some = Listed.of(queries, rows), Listed.of(keys, columns)
        return cls(*some, counted[rows][:, columns])

    def __len__(self) -> int:
        return len(self.queries.writers) * len(self.keys.writers)

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Walk the sums: the first of some writers of queries, and their t (writers, writers)."""
        one, other = self.queries, self.keys
        whole = len(other.writers) * one.size * (other.size + len(one.writers))
        is_whole = whole <= len(one.vectors) * len(other.vectors)
        yield from self._whole() if is_whole else self._listed()

    def _whole(self) -> Iterator[tuple[int, Tensor]]:
        keys = torch.einsum("ij,bjd->bid", self.counted, self.keys.whole()).flatten(1)
        queries, first = self.queries.whole().flatten(1), 0
        for some in queries.split(max(_BLOCK // max(len(keys), 1), 1)):
            yield first, some @ keys.T
            first += len(some)

    def _listed(self) -> Iterator[tuple[int, Tensor]]:
        queries, keys = self.queries, self.keys
        counts = torch.bincount(queries.numbers, minlength=len(queries.writers)).tolist()
        most, first, start = _BLOCK // max(len(keys.vectors), 1), 0, 0
        while first < len(counts):
            last, stop = first + 1, start + counts[first]
            while last < len(counts) and stop + counts[last] - start <= most:
                stop, last = stop + counts[last], last + 1
            rows = slice(start, stop)
            terms = queries.vectors[rows] @ keys.vectors.T
            terms *= self.counted[queries.tokens[rows]][:, keys.tokens]
            found = terms.new_zeros(len(terms), len(keys.writers)).index_add_(
                1, keys.numbers, terms
            )
            into = terms.new_zeros(last - first, len(keys.writers))
            yield first, into.index_add_(0, queries.numbers[rows] - first, found)
            first, start = last, stop

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums over writers of keys, and over those of queries."""
        rows, columns = [], self.counted.new_zeros(len(self.keys.writers))
        for _, terms in self.blocks():
            rows.append(terms.sum(1))
            columns += terms.sum(0)
        return torch.cat(rows), columns

    def largest(self, most: int) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return the writers of queries and keys of the largest sums, these, and the whole sum."""
        places, values, total = self.counted.new_zeros(0).long(), self.counted.new_zeros(0), 0.0
        for first, terms in self.blocks():
            flat = terms.flatten()
            total += float(flat.sum())
            some = flat.abs().topk(min(most, len(flat))).indices
            places = torch.cat([places, some + first * len(self.keys.writers)])
            values = torch.cat([values, flat[some]])
            chosen = values.abs().argsort(descending=True, stable=True)[:most]
            places, values = places[chosen], values[chosen]
        query, key = places // len(self.keys.writers), places % len(self.keys.writers)
        return self.queries.writers[query], self.keys.writers[key], values, total
