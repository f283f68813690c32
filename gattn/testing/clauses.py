"""Checking a case against named clauses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from gattn.errors import ContractError, GattnError, ShapeError

BATCH, QUERIES, KEYS = 2, 5, 7
_Case = TypeVar("_Case")
_Module = TypeVar("_Module", bound=nn.Module)


def hold_to(
    name: str, case: _Case, clauses: Mapping[str, Callable[[_Case], None]], sizes: Mapping[str, int]
) -> None:
    """Check a case against each clause; raise a ContractError that names the one it breaks.

    An error that no check raised is the function's own, and is reported as such with the sizes.
    """
    for clause, hold in clauses.items():
        try:
            hold(case)
        except Exception as error:
            text = str(error)
            if not isinstance(error, (AssertionError, GattnError, GradcheckError)):
                text = f"your function raised {type(error).__name__}: {text}"
            if isinstance(error, ShapeError) or text != str(error):
                used = ", ".join(f"{name}={size}" for name, size in sizes.items())
                others = ", ".join(f"{name}=" for name in sizes)
                text = f"{text}\nThe sizes were {used}; for others, pass {others}."
            raise ContractError(f"{name} breaks the clause {clause!r}: {text}") from error


def agree(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Refuse numbers that differ, and name the first place where they do."""
    if got.shape != expected.shape:
        raise AssertionError(
            f"{what}: expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
        )
    got, expected = got.detach(), expected.detach()
    near = (got - expected).abs() <= tolerance * (1 + expected.abs())
    near |= got == expected  # infinities are equal, though their difference is NaN
    if not bool(near.all()):
        place = tuple((~near).nonzero()[0].tolist())
        raise AssertionError(
            f"{what} at {place}: expected {float(expected[place]):.6g}, got {float(got[place]):.6g}"
        )


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    """Draw from a normal distribution in float64."""
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def moved(module: _Module, draw: torch.Generator) -> _Module:
    """Copy a module to float64 and move its parameters off special values such as 0."""
    moved = copy.deepcopy(module).double()
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(0.1 * normal(draw, *parameter.shape))
    return moved
