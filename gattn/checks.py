"""Numbers that are given: whole ones, of any library, and finite ones."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from operator import index
from typing import Any

from torch import Tensor

from gattn.errors import ContractError, GattnError


def whole(name: str, given: Any, least: int = 0, error: type[GattnError] = ContractError) -> int:
    """Take a whole number, a NumPy one or another that Python counts with too.

    Raises
    ------
    GattnError
        Where it is none, or less than `least`.
    """
    try:
        number = None if isinstance(given, bool) else index(given)
    except TypeError:
        number = None
    if number is None or number < least:
        raise error(f"{name} must be a whole number >= {least}, not {given!r}.")
    return number


def finite(name: str, given: float | Tensor) -> float | Tensor:
    """Take a finite number, or a tensor of them.

    Raises
    ------
    ContractError
        Where it is infinite, NaN or no number.
    """
    if isinstance(given, Tensor):
        if not given.is_meta and not bool(given.detach().isfinite().all()):
            raise ContractError(f"{name} must hold finite numbers, not {given.tolist()!r:.60}.")
        return given
    if isinstance(given, Real):
        try:
            number = given if isinstance(given, (int, float)) else float(given)
            if isfinite(number):
                return number
        except OverflowError:
            pass
    raise ContractError(f"{name} must be a finite number, not {given!r:.60}.")


def finite_number(name: str, given: float) -> float:
    """Take a finite number that is no tensor."""
    number = None if isinstance(given, Tensor) else finite(name, given)
    if number is None or isinstance(number, Tensor):
        raise ContractError(f"{name} must be a plain number, not a tensor: {given!r:.60}.")
    return number
