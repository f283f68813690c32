"""The tokens that an edit names: positions, spans of them, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from gattn.errors import EditError, SelectionError
from gattn.heads.geometry.grid import Grid
from gattn.models.read.places import Side
from gattn.names.choices import is_number
from gattn.names.tokens import find_text

Tokens: TypeAlias = int | str | slice | range | Sequence[int | str | tuple[int, int]] | None


class PatchAt(str):
    """The patch in a row and column, written as tables write it."""

    __slots__ = ("cell",)
    cell: tuple[int, int]

    @classmethod
    def of(cls, row: int, column: int) -> PatchAt:
        """Name the patch in a row and column."""
        named = cls(f"{row},{column}")
        named.cell = row, column
        return named


@dataclass(frozen=True)
class KnownTokens:
    """What is known of the tokens on one side of a call.

    Parameters
    ----------
    names : sequence of str, optional
        Their texts, as attention graphs show them.
    spellings : tuple of sequences of str
        The tokenizer's names for them.
    count : int, optional
        How many tokens there are for negative positions to count back from.
    reason : str
        Why their texts are not known.
    grid : Grid, optional
        Where they lie, if they are patches.
    """

    names: Sequence[str] | None
    spellings: tuple[Sequence[str], ...] = ()
    count: int | None = None
    reason: str = ""
    grid: Grid | None = None

    def find(self, edit: object, wanted: int | str) -> list[int]:
        """Find a position, or the tokens with a text; an empty list if there are none."""
        if isinstance(wanted, PatchAt):
            return self._patch(edit, wanted)
        if isinstance(wanted, str):
            if self.names is None:
                reason = self.reason or (
                    "the tokens are not known here: pass tokens= or tokenizer=, or the grid= of "
                    "patches, call the model with input_ids, or give positions"
                )
                raise EditError(f"{edit} names a token by its text, but {reason}.")
            try:
                return find_text(wanted, self.names, self.spellings)
            except SelectionError as error:
                raise EditError(f"{edit}: {error}") from error
        if wanted >= 0:
            return [wanted]
        assert self.count is not None
        return [self.count + wanted] if self.count + wanted >= 0 else []

    def _patch(self, edit: object, wanted: PatchAt) -> list[int]:
        if self.grid is None:
            row, column = wanted.cell
            more = f" ({self.reason})" if self.reason else ""
            raise EditError(
                f"{edit} names {wanted.cell}, the patch in row {row} and column {column}, but "
                f"tokens are not known to be patches here{more}: give the grid= of patches, or "
                "name tokens by text or position."
            )
        return self.grid.tokens_at(*wanted.cell)

    def span(self, where: slice) -> slice:
        """Count a span from the start."""
        assert self.count is not None
        return slice(*where.indices(self.count)[:2])


def is_relative(where: Tokens) -> bool:
    """Return whether the positions depend on a call's tokens."""
    if isinstance(where, slice):
        return any(n is not None and index(n) < 0 for n in (where.start, where.stop))
    if where is None or isinstance(where, range):
        return False
    return any(isinstance(one, str) or one < 0 for one in listed(where))


def counts_from_end(where: Tokens) -> bool:
    """Return whether it counts from the end."""
    if isinstance(where, (slice, range)) or where is None:
        return is_relative(where)
    return any(not isinstance(one, str) and one < 0 for one in listed(where))


def patches_named(where: Tokens) -> Tokens:
    """Name patches that are given as (row, column), among several tokens."""
    if not isinstance(where, (list, tuple)) or not any(map(_is_patch, where)):
        return where
    return [PatchAt.of(*one) if _is_patch(one) else one for one in where]


def _is_patch(one: Any) -> TypeGuard[tuple[int, int]]:
    is_pair = isinstance(one, tuple) and len(one) == 2
    return is_pair and all(is_number(n) and n >= 0 for n in one)


def check_tokens(name: str, where: Tokens) -> None:
    """Refuse anything that does not name tokens."""
    if where is None or isinstance(where, str):
        return
    parts: Sequence[Any] = [where]
    if isinstance(where, slice):
        parts = [n for n in (where.start, where.stop) if n is not None]
        is_plain = where.step in (None, 1) and not any(isinstance(n, str) for n in parts)
        parts = parts if is_plain else [None]
    elif isinstance(where, range) and where:
        parts = [where[0], where[-1]]
    elif isinstance(where, (Sequence, Tensor, np.ndarray)):
        parts = list(where) or [None]
    try:
        is_right = all(
            isinstance(n, str)
            or (not isinstance(n, (bool, np.bool_)) and isinstance(index(n), int))
            for n in parts
        )
        is_right &= not (isinstance(where, range) and min(parts) < 0)
    except TypeError:
        is_right = False
    if not is_right:
        raise SelectionError(
            f"{name} is a position that counts from 0, or from the end -1, -2 ..., a token's text "
            'or, of a patch, its row and column, such as "2,4"; several of these, such as '
            f"[(2, 4), (2, 5)]; or a slice of step 1; not {where!r}."
        )


def chosen(side: Side, where: Tokens) -> Tensor:
    """Return which of a side's tokens are meant, as booleans."""
    if where is None:
        return torch.ones(len(side), dtype=torch.bool, device="cpu")
    if side.positions is None and not isinstance(where, (slice, range)):
        which = torch.zeros(len(side), dtype=torch.bool, device="cpu")
        which[numbers_in(side, where)] = True
        return which
    end = side.end  # numbers beyond may be too large for a tensor
    positions = side.at
    if isinstance(where, slice):
        start, stop = (end if n is None else min(n, end) for n in (where.start or 0, where.stop))
        return (positions >= start) & (positions < stop)
    if isinstance(where, range):
        return torch.tensor(
            [n in where for n in positions.tolist()], dtype=torch.bool, device="cpu"
        )
    there = [n for n in listed(where) if n < end]
    return torch.isin(positions, torch.tensor(there, dtype=torch.long, device="cpu"))


def numbers_in(side: Side, where: Tokens) -> Tensor:
    """Return which of a side's tokens are meant, counted from its first."""
    if side.positions is not None or where is None or isinstance(where, (slice, range)):
        return chosen(side, where).nonzero()[:, 0]
    found = {n - side.first for n in listed(where) if side.first <= n < side.end}
    return torch.tensor(sorted(found), dtype=torch.long, device="cpu")


def one_by_one(where: Tokens) -> set[int | str]:
    """Return the tokens that are named individually, not by a span."""
    if where is None or isinstance(where, (slice, range)):
        return set()
    return set(listed(where))


def only_one(where: Tokens) -> int | None:
    """Return the position of the only token that is named, counted from 0; None if it is not so."""
    if isinstance(where, slice):
        start, stop = where.start or 0, where.stop
        where = range(start, stop) if stop is not None and min(start, stop) >= 0 else None
    some = {None} if where is None else set(where if isinstance(where, range) else listed(where))
    one = some.pop() if len(some) == 1 else None
    return None if one is None or isinstance(one, str) or one < 0 else one


def listed(where: Tokens) -> list[Any]:
    """List the tokens that are named individually."""
    is_list = isinstance(where, (Sequence, Tensor, np.ndarray)) and not isinstance(where, str)
    wanted: Any = where if is_list else [where]
    return [n if isinstance(n, str) else index(n) for n in wanted]
