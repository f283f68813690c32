"""What can be told from sums whose numbers were rounded."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

_TOLD = 0.03
"""How uncertain a factor may be, relative to itself."""


def tolerance(numbers: Tensor) -> float:
    """Return how large errors of numbers of a precision may be, relative to their vector.

    Norms of double precision models often compute in single precision.
    """
    return {torch.float64: 1e-5, torch.float32: 1e-4}.get(numbers.dtype, 3e-2)


def is_half(numbers: Tensor) -> bool:
    """Return whether numbers have less than single precision."""
    return torch.finfo(numbers.dtype).bits < 32


@torch.no_grad()
def factor_of(branch: Tensor, total: Tensor, others: list[Tensor]) -> float | None:
    r"""Measure the positive factor by which a branch was multiplied before it was added to others.

    The factor :math:`s` of :math:`\text{total} = \sum \text{others} + s \cdot \text{branch}` is
    found by regression over all numbers of all tokens, (tokens, dim), each weighted by what its
    rounding can hide. It is None if more than rounding is left over, or if rounding hides so much
    of the branch that s is uncertain: the same sum made with s, and rounded, has to give s back.
    """
    if not _may_be(branch[0], total[0], [x[0] for x in others]):
        return None
    found = _Regression(branch, total, others)
    size = found.size
    if size <= 0 or not found.leaves_rounding():
        return None
    # Three standard deviations of uniform rounding errors: 3 / sqrt(12).
    noise = (0.75 / found.squares) ** 0.5 if found.squares else 0.0
    if max(noise, abs(found.again - size)) > _TOLD * size:
        return None
    return 1.0 if abs(size - 1) <= tolerance(branch) + noise else size


def _may_be(branch: Tensor, total: Tensor, others: list[Tensor]) -> bool:
    """Look at one token, (dim,): most sums that are tried are none, which one token tells."""
    added, *some = (x.double() for x in (branch, total, *others))
    rest = reduce(torch.sub, some)
    square, along, whole = float(added @ added), float(added @ rest), float(rest @ rest)
    found = along**2 / square if square else 0.0
    error = max(torch.finfo(x.dtype).eps for x in (branch, total, *others))
    largest = max(square, *(float(x @ x) for x in some))
    rounding = len(branch) * (len(others) * error) ** 2 * largest
    # Four times what `_Regression` leaves to rounding.
    return whole - found <= 16 * (rounding + tolerance(branch) ** 2 * found)


class _Regression:
    """The factor of a branch in a sum, by regression over numbers weighted by their rounding."""

    def __init__(self, branch: Tensor, total: Tensor, others: list[Tensor]) -> None:
        self._branch, self._count = branch, len(others)
        self._added, self._total = branch.double(), total.double()
        some = [self._total, *(x.double() for x in others)]
        self._known = torch.stack(some[1:]).sum(0)
        kinds = (x.dtype for x in (total, *others))
        self._stream = max(kinds, key=lambda dtype: torch.finfo(dtype).eps)
        largest = reduce(torch.maximum, (x.abs() for x in some))
        rounding = torch.finfo(self._stream).eps * largest
        rounding += torch.finfo(branch.dtype).eps * self._added.abs()
        self._rounding = rounding.clamp_min(torch.finfo(torch.float32).tiny)
        self._unit = self._added / self._rounding
        self.squares = float(self._unit.square().sum())
        self.size = self._regressed(self._total)

    def _regressed(self, total: Tensor) -> float:
        apart = (total - self._known) / self._rounding
        return float((apart * self._unit).sum()) / self.squares if self.squares else 1.0

    @property
    def again(self) -> float:
        """The factor of the same sum, made with the factor that was found, and rounded."""
        added = (self.size * self._added).to(self._branch.dtype)
        return self._regressed((self._known + added).to(self._stream).double())

    def leaves_rounding(self) -> bool:
        """Return whether no more than rounding is left over."""
        added = self.size * self._added
        limit = self._count * self._rounding + tolerance(self._branch) * added.abs()
        return not bool(((self._total - self._known - added).abs() > limit).any())
