"""A check of the shares that analyses take."""

from __future__ import annotations

from typing import Any

import numpy as np

from gattn.errors import SelectionError


def share(value: Any, name: str) -> float:
    """Take one number from 0 to 1."""
    try:
        number = np.nan if isinstance(value, str) or np.ndim(value) else float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not 0 <= number <= 1:
        raise SelectionError(f"{name} is a share from 0 to 1, not {value!r:.80}.")
    return number
