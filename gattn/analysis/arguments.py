"""Checks of single numbers that analyses take."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from gattn.errors import SelectionError


def whole_number(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """Take a whole number in some range, of whatever type."""
    try:
        number = least - 1 if isinstance(value, (bool, np.bool_)) else index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        range_ = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise SelectionError(f"{name} is a whole number {range_}, not {value!r:.80}.")
    return number


def share(value: Any, name: str) -> float:
    """Take one number from 0 to 1."""
    try:
        number = np.nan if isinstance(value, str) or np.ndim(value) else float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not 0 <= number <= 1:
        raise SelectionError(f"{name} is a share from 0 to 1, not {value!r:.80}.")
    return number
