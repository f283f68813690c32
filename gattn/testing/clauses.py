"""Holding one case to named clauses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from gattn.errors import ContractError

BATCH, QUERIES, KEYS = 2, 5, 7
_Case = TypeVar("_Case")
_Module = TypeVar("_Module", bound=nn.Module)


def hold_to(name: str, case: _Case, clauses: Mapping[str, Callable[[_Case], None]]) -> None:
    """Hold a case to each clause; raise a ContractError that names the one that broke."""
    for clause, hold in clauses.items():
        try:
            hold(case)
        except Exception as error:
            raise ContractError(f"{name} breaks the clause {clause!r}: {error}") from error


def agree(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Refuse numbers that differ, with the first place where they do."""
    if got.shape != expected.shape:
        raise AssertionError(
            f"{what}: expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
        )
    got, expected = got.detach(), expected.detach()
    near = (got - expected).abs() <= tolerance * (1 + expected.abs())
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
