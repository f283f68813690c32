"""Finds how the sequences of a call continue texts, by the keys before those of its own tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple, overload

import torch
from torch import Tensor

from gattn.models.hugging_face.caches import nearest
from gattn.models.read.following import Row
from gattn.models.read.places import Side
from gattn.models.read.track.own_caches.keys import OwnKeys, are_those, codes_of

_MANY = 2**14
"""How many numbers of one layer's keys are kept at most."""


class Step(NamedTuple):
    """How one sequence continues a text: its row, and the slots of it that came before.

    `earlier` are the slots, among the call's keys, of those just before `stop`.
    """

    row: int
    stop: int
    earlier: Tensor


class Begun(Sequence[Row]):
    """What a layer has read of texts that begin: its keys get numbers once they are asked for.

    A text that nothing continues never asks. Of long texts only the numbers are kept.

    Parameters
    ----------
    few : Tensor (elements, heads, slots, n)
        A few numbers of each key, by `few_of`.
    real : Tensor (elements, slots)
        Which are no padding.
    """

    def __init__(self, few: Tensor, real: Tensor) -> None:
        self._read: Tensor | list[Row] = few
        self._real = real
        if few.numel() > _MANY:
            self._rows()

    def __len__(self) -> int:
        return len(self._real)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self._rows()[index]

    def _rows(self) -> list[Row]:
        read = self._read
        if isinstance(read, Tensor):
            self._read = read = list(map(Row, codes_of(read), self._real))
        return read


class Part(Enum):
    """The part of a text that is still held; `ANY` of these of each text, as after padding."""

    WHOLE = auto()
    FIRST = auto()
    LAST = auto()
    ANY = auto()


def steps_from(
    rows: Sequence[Row],
    keys: OwnKeys,
    part: Part,
    *,
    chosen: Sequence[Step] | None = None,
    continued: Collection[int] = (),
) -> list[Step] | None:
    """Find a part of one of a layer's texts for each sequence; None if there is none for some.

    It is of the text that was `chosen` in another layer, where it was. Of equal texts, those that
    were not `continued` yet come first.
    """
    found = []
    repeats = max(len(keys.slots) // len(rows), 1)
    for element in range(len(keys.slots)):
        earlier, goes_round = keys.earlier(element)
        held, unread = keys.codes[element, earlier], keys.unread(element, earlier)
        parts = [_part(row.codes, held, unread, goes_round, part) for row in rows]
        fits = [x is not None for x in parts]
        if chosen is not None:
            wanted = chosen[element]
            fits = [
                n == wanted.row and x is not None and x[0] == wanted.stop
                for n, x in enumerate(parts)
            ]
        if not any(fits):
            return None
        fresh = [is_one and n not in continued for n, is_one in enumerate(fits)]
        row = nearest(fresh if any(fresh) else fits, element // repeats)
        stop, size = parts[row] or (0, 0)
        found.append(Step(row, stop, earlier[len(earlier) - size :]))
    return found


def steps_as(rows: Sequence[Row], keys: OwnKeys, chosen: Sequence[Step]) -> list[Step] | None:
    """Find how a layer continues the texts that another layer continues; None if it does not."""
    found = (steps_from(rows, keys, part, chosen=chosen) for part in Part)
    return next((steps for steps in found if steps is not None), None)


def _part(
    known: Tensor, held: Tensor, unread: int, goes_round: bool, part: Part
) -> tuple[int, int] | None:
    """Return the slot after the held part of a text, and its size; None if another is held.

    Up to `unread` keys before it may be of no text: room that is filled from its end.
    """
    if part is Part.ANY:
        some = (_part(known, held, unread, goes_round, one) for one in Part if one is not part)
        return next((one for one in some if one is not None), None)
    if part is Part.FIRST:
        sizes = [] if goes_round else range(len(held), len(held) - unread - 1, -1)
        fits = (
            n for n in sizes if 0 < n < len(known) and bool(are_those(known[:n], held[-n:]).all())
        )
        size = next(fits, 0)
        return (size, size) if size else None
    most = min(len(known), len(held))
    same = are_those(known[len(known) - most :], held[len(held) - most :]).flip(0)
    size = int(same.long().cumprod(0).sum())
    is_part = (size == len(known)) is (part is Part.WHOLE)
    return (len(known), size) if size and is_part and len(held) - size <= unread else None


def sides_of(keys: OwnKeys, element: int, row: Row, step: Step) -> tuple[Side, Side, Row]:
    """Give both sides of a sequence of a call, and what its layer has read after it."""
    own, start, real = keys.slots[element], step.stop - len(step.earlier), keys.real[element]
    slots = torch.cat([step.earlier, own])
    slots = slots[torch.cat([row.real[start : step.stop], real])]
    in_order = bool((slots[1:] > slots[:-1]).all())
    after = Row(
        torch.cat([row.codes[: step.stop], keys.codes[element, own]]),
        torch.cat([row.real[: step.stop], real]),
    )
    queries = Side(real.nonzero()[:, 0], row.tokens(step.stop))
    return queries, Side(slots, row.tokens(start), in_order=in_order), after
