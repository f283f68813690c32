"""Large matrices of low rank, as products of two narrow ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ENTRIES = 1 << 22  # that are made at once


@dataclass(frozen=True, eq=False, repr=False)
class FactoredMatrix:
    """The matrix ``left @ right``, which is never made unless asked for.

    Parameters
    ----------
    left : Tensor (rows, rank)
        The left factor.
    right : Tensor (rank, columns)
        The right factor.
    """

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def rank(self) -> int:
        """The length of the inner dimension, the most that the rank can be."""
        return self.left.shape[1]

    @property
    def T(self) -> FactoredMatrix:  # noqa: N802
        """The transpose."""
        return FactoredMatrix(self.right.T, self.left.T)

    def __matmul__(self, other: FactoredMatrix | Tensor) -> FactoredMatrix:
        """Multiply with a matrix, or a factored one, from the right."""
        if isinstance(other, FactoredMatrix):
            return FactoredMatrix(self.left, (self.right @ other.left) @ other.right)
        return FactoredMatrix(self.left, self.right @ other)

    def __rmatmul__(self, other: Tensor) -> FactoredMatrix:
        """Multiply with a matrix from the left."""
        return FactoredMatrix(other @ self.left, self.right)

    def to_dense(self) -> Tensor:
        """Return the whole matrix."""
        return self.left @ self.right

    def norm(self) -> float:
        """Return the Frobenius norm."""
        return float(torch.linalg.norm(self.singular_values()))

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return U (rows, rank), S (rank,) and Vh (rank, columns), as `torch.linalg.svd` does."""
        left, first = torch.linalg.qr(self.left)
        right, second = torch.linalg.qr(self.right.T)
        inner, values, outer = torch.linalg.svd(first @ second.T)
        return left @ inner, values, outer @ right.T

    def singular_values(self) -> Tensor:
        """Return the singular values that can differ from zero, the largest first."""
        first = torch.linalg.qr(self.left, mode="r").R
        second = torch.linalg.qr(self.right.T, mode="r").R
        values: Tensor = torch.linalg.svdvals(first @ second.T)
        return values

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues that can differ from zero: those of ``right @ left``."""
        values: Tensor = torch.linalg.eigvals(self.right @ self.left)
        return values

    def largest(self, k: int) -> tuple[Tensor, list[int], list[int]]:
        """Find the k largest entries, the largest first, with their rows and columns.

        The matrix is made some rows at a time. The k largest entries are in the k rows with the
        largest maxima, and only rows with an entry above the k-th so far are looked at.
        """
        width = self.shape[1]
        best, places = (
            self.left.new_empty(0),
            torch.empty(0, device="cpu").to(self.left.device, torch.long),
        )
        for first in range(0, len(self.left), size := max(_ENTRIES // width, 1)):
            block = self.left[first : first + size] @ self.right
            highest = block.amax(1)
            rows = highest.topk(min(k, len(highest))).indices
            if len(best) == k:
                rows = rows[highest[rows] > best[-1]]
            found = block[rows].flatten().topk(min(k, len(rows) * width))
            rows = first + rows[found.indices // width]
            best = torch.cat([best, found.values])
            places = torch.cat([places, rows * width + found.indices % width])
            kept = best.topk(min(k, len(best)))
            best, places = kept.values, places[kept.indices]
        return best, (places // width).tolist(), (places % width).tolist()

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"FactoredMatrix({rows} x {columns}, rank {self.rank})"
