"""Parts of a stream along directions that tokens share, each token in its own amount."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from gattn.models.stream.norms import FixedNorm
    from gattn.models.stream.writers.parts import Writer


@dataclass(frozen=True, eq=False)
class Dictionary:
    r"""Parts :math:`a_{if} d_f` of tokens i, of which only those that are not zero are listed.

    Features of a sparse autoencoder are such parts, and what a head read from each token.

    Parameters
    ----------
    writers : list of Writer
        What wrote each direction's part.
    directions : Tensor (writers, dim)
        The directions d.
    tokens, numbers : Tensor (entries,)
        The tokens i, ascending, and the writers' numbers f.
    amounts : Tensor (entries,)
        The amounts a.
    """

    writers: Sequence[Writer]
    directions: Tensor
    tokens: Tensor
    numbers: Tensor
    amounts: Tensor

    @classmethod
    def of(cls, writers: Sequence[Writer], amounts: Tensor, directions: Tensor) -> Dictionary:
        """List the amounts (tokens, writers) that are not zero, of writers that have any."""
        listed = amounts.to_sparse_coo().coalesce()
        (tokens, numbers), values = listed.indices(), listed.values()
        is_any = values != 0
        used, numbers = numbers[is_any].unique(return_inverse=True)
        some = [writers[n] for n in used.tolist()]
        values = values[is_any].to(directions)
        return cls(some, directions[used], tokens[is_any], numbers, values)

    def part(self, number: int, tokens: int) -> Tensor:
        """Return the part of one writer: (tokens, dim)."""
        found = self.directions.new_zeros(tokens, self.directions.shape[1])
        some = self.numbers == number
        found[self.tokens[some]] = self.amounts[some, None] * self.directions[number]
        return found

    def total(self, tokens: int) -> Tensor:
        """Return the sum of all parts: (tokens, dim)."""
        found = self.directions.new_zeros(tokens, self.directions.shape[1])
        for token, some in self._each():
            found[token] = self.amounts[some] @ self.directions[self.numbers[some]]
        return found

    def through(self, maps: Tensor) -> Tensor:
        """Return what linear maps of each token, (outputs, tokens, dim), make of its parts.

        The result is (entries, outputs).
        """
        found = self.directions.new_empty(len(self.tokens), len(maps))
        for token, some in self._each():
            found[some] = self.directions[self.numbers[some]] @ maps[:, token].T
        return found * self.amounts[:, None]

    def normed(self, norm: FixedNorm) -> Dictionary:
        """Apply a norm."""
        amounts = self.amounts * norm.factor[self.tokens]
        return replace(self, directions=norm.turned(self.directions), amounts=amounts)

    def _each(self) -> Iterator[tuple[int, slice]]:
        """Walk the tokens that have parts, each with its entries."""
        tokens, counts = self.tokens.unique_consecutive(return_counts=True)
        ends = [0, *counts.cumsum(0).tolist()]
        for token, (start, end) in zip(tokens.tolist(), pairwise(ends), strict=True):
            yield token, slice(start, end)
