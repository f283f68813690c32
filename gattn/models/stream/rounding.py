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
    added, known = branch.double(), torch.stack(others).double().sum(0)
    stream = max((x.dtype for x in (total, *others)), key=lambda dtype: torch.finfo(dtype).eps)
    largest = reduce(torch.maximum, (x.double().abs() for x in (total, *others)))
    rounding = torch.finfo(stream).eps * largest + torch.finfo(branch.dtype).eps * added.abs()
    rounding = rounding.clamp_min(torch.finfo(torch.float32).tiny)
    unit = added / rounding
    squares = float(unit.square().sum())

    def regressed(some: Tensor) -> float:
        apart = (some.double() - known) / rounding
        return float((apart * unit).sum()) / squares if squares else 1.0

    size = regressed(total)
    limit = len(others) * rounding + tolerance(branch) * (size * added).abs()
    if size <= 0 or bool(((total.double() - known - size * added).abs() > limit).any()):
        return None
    again = regressed((known + (size * added).to(branch.dtype)).to(stream))
    # Three standard deviations of uniform rounding errors: 3 / sqrt(12).
    noise = (0.75 / squares) ** 0.5 if squares else 0.0
    if max(noise, abs(again - size)) > _TOLD * size:
        return None
    return 1.0 if abs(size - 1) <= tolerance(branch) + noise else size
