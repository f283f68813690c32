"""Arguments that several analyses take: shares, and several tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gattn.errors import SelectionError
from gattn.heads.geometry import Geometry, Grid
from gattn.names.tokens import find_token, unclear_pair

Tokens: TypeAlias = int | str | Sequence[int | str] | None
"""Tokens by their positions, negative from the end, or by their texts; None for all."""


def share(value: Any, name: str) -> float:
    """Take one number from 0 to 1; refuse all else."""
    try:
        number = np.nan if isinstance(value, str) or np.ndim(value) else float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not 0 <= number <= 1:
        raise SelectionError(f"{name} is a share from 0 to 1, not {value!r:.80}.")
    return number


def refuse_pair(name: str, chosen: Any, *places: Geometry | None) -> None:
    """Refuse a pair of positions that may be meant as a patch, where tokens lie on a grid."""
    if any(isinstance(one, Grid) for one in places) and (said := unclear_pair(name, chosen)):
        raise SelectionError(said)


def several_tokens(name: str, chosen: Any, *places: Geometry | None) -> list[int | str]:
    """Take one token or several, by position or text; `places` say where they lie."""
    refuse_pair(name, chosen, *places)
    if isinstance(chosen, (int, str)):
        return [chosen]
    if isinstance(chosen, np.integer):
        return [int(chosen)]
    if not isinstance(chosen, Iterable) or isinstance(chosen, Mapping):
        raise SelectionError(
            f"{name} names tokens by position or text, as in 6 or [0, ','], not {chosen!r:.80}."
        )
    return list(chosen)


def rows_of_tokens(
    chosen: Tokens,
    positions: Sequence[int],
    tokens: Sequence[str],
    name: str,
    places: Geometry | None = None,
) -> list[int]:
    """Find the rows of tokens, which must each be named once; all of them for None."""
    refuse_pair(name, chosen, places)
    if chosen is None:
        return list(range(len(positions)))
    several = np.atleast_1d(np.asarray(chosen, dtype=object)).tolist()
    rows = [find_token(token, positions, tokens, name) for token in several]
    if not rows or len(set(rows)) < len(rows):
        raise SelectionError(f"Name each {name} once, and at least one, not {chosen!r:.80}.")
    return rows
