"""Finds the texts whose keys a call reads before those of its own tokens.

A key is told by one number that depends on all heads of it, and of its value. A cache may round it
to half precision: it is then told by the number of what it was rounded to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.models.hugging_face.caches import FEW, codes, nearest
from gattn.models.read.masks import Mask
from gattn.models.read.places import Side
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.following import Row

_numbers = count()
_ROUNDED = torch.float16, torch.bfloat16


class Step(NamedTuple):
    """How one sequence continues a text: its row, and the slots of it that came before.

    `earlier` are the slots, among the call's keys, of those just before `stop`.
    """

    row: int
    stop: int
    earlier: Tensor


@dataclass(eq=False)
class OwnKeys:
    """The keys of a call that are its own tokens, and those that are not.

    Parameters
    ----------
    slots : list of Tensor
        For each element, the slots of its tokens, in order.
    codes : Tensor (elements, slots, 3)
        The numbers of each key, by `codes_of`.
    is_read : Tensor (elements, slots)
        Which keys some query reads.
    """

    slots: list[Tensor]
    codes: Tensor
    is_read: Tensor

    @classmethod
    def of(cls, call: SeenCall, mask: Callable[[], Mask]) -> OwnKeys | None:
        """Find them in self-attention; None where its tokens are not one run of slots."""
        slots = _slots(call)
        if slots is None:
            return None
        is_read = mask().is_read(len(slots), call.key.shape[2])
        return cls(slots, codes_of(call), is_read)

    @property
    def length(self) -> int:
        """How many tokens the call has."""
        return len(self.slots[0])

    @property
    def others_are_read(self) -> bool:
        """Whether some query reads a key that is none of the call's own tokens."""
        if self.length == self.codes.shape[1]:
            return False
        others = self.is_read.clone()
        for row, own in zip(others, self.slots, strict=True):
            row[own] = False
        return bool(others.any())

    def unread(self, element: int, earlier: Tensor) -> int:
        """Count the first of the slots before a sequence's own that no query reads."""
        is_read = self.is_read[element, earlier]
        return int(is_read.int().argmax()) if bool(is_read.any()) else 0

    def earlier(self, element: int) -> tuple[Tensor, bool]:
        """Return the slots before a sequence's own, and whether they go round.

        Slots after its own are room for more, unless they are read: then they come round again, and
        hold the oldest keys.
        """
        own, size = self.slots[element], self.codes.shape[1]
        after = self.is_read[element, int(own[-1]) + 1 :]
        if int(own[0]) <= int(own[-1]) and not bool(after.any()):
            return torch.arange(int(own[0])), False
        return (int(own[-1]) + 1 + torch.arange(size - len(own))) % size, True


def _slots(call: SeenCall) -> list[Tensor] | None:
    tokens, length, size = call.tokens, call.query.shape[2], call.key.shape[2]
    if tokens is None or tokens.sequences != tuple(range(len(tokens.sequences))):
        return None
    order = torch.arange(length)
    if tokens.queries is not None and not bool((tokens.queries == order).all()):
        return None
    if tokens.fed is None:
        is_plain = not tokens.is_cross and tokens.keys is None and length == size
        return [order] * len(tokens.sequences) if is_plain else None
    found = []
    for fed in tokens.fed:
        own = (fed >= 0).nonzero()[:, 0]
        own = own[fed[own].argsort()]
        is_run = bool(((own[1:] - own[:-1]) % size == 1).all())
        if not torch.equal(fed[own], order) or not is_run:
            return None
        found.append(own)
    return found


def codes_of(call: SeenCall) -> Tensor:
    """Give each key the numbers (elements, slots, 3) that it may have in a cache.

    Each depends on a few numbers of all its heads: as they are, and rounded to each kind of half
    precision. If neither keys nor values are seen, no key is like any other.
    """
    shown = [x for x in (call.key, call.value) if x.shape[-1]]
    if not shown:
        found = torch.tensor([[next(_numbers) for _ in keys] for keys in call.key[:, 0]])
        return found[..., None].expand(-1, -1, 1 + len(_ROUNDED))
    few = max(FEW // shown[0].shape[1], 1)
    parts = [x[..., :few].transpose(1, 2).flatten(2) for x in shown]
    kinds = [parts, *([x.to(dtype) for x in parts] for dtype in _ROUNDED)]
    return torch.stack([_code(each) for each in kinds], -1).cpu()


def _code(parts: Sequence[Tensor]) -> Tensor:
    found = [codes(x.double(), n) for n, x in enumerate(parts)]
    return sum(found[1:], found[0])


def are_those(known: Tensor, read: Tensor) -> Tensor:
    """Return which keys are those of a text, booleans (...), perhaps rounded."""
    return (known == read[..., :1]).any(-1)


class Part(Enum):
    """The part of a text that is still held."""

    WHOLE = auto()
    FIRST = auto()
    LAST = auto()


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
    if part is Part.FIRST:
        sizes = [] if goes_round else range(len(held), len(held) - unread - 1, -1)
        fits = (n for n in sizes if 0 < n < len(known) and bool(are_those(known[:n], held[-n:]).all()))
        size = next(fits, 0)
        return (size, size) if size else None
    most = min(len(known), len(held))
    same = are_those(known[len(known) - most :], held[len(held) - most :]).flip(0)
    size = int(same.long().cumprod(0).sum())
    is_part = (size == len(known)) is (part is Part.WHOLE)
    return (len(known), size) if size and is_part and len(held) - size <= unread else None


def sides_of(
    keys: OwnKeys, element: int, row: Row, step: Step, real: Tensor
) -> tuple[Side, Side, Row]:
    """Give both sides of a sequence of a call, and what its layer has read after it.

    `real` (tokens,) says which of the call's tokens are real.
    """
    own, start = keys.slots[element], step.stop - len(step.earlier)
    slots = torch.cat([step.earlier, own])
    slots = slots[torch.cat([row.real[start : step.stop], real])]
    in_order = bool((slots[1:] > slots[:-1]).all())
    after = Row(
        torch.cat([row.codes[: step.stop], keys.codes[element, own]]),
        torch.cat([row.real[: step.stop], real]),
    )
    queries = Side(real.nonzero()[:, 0], row.tokens(step.stop))
    return queries, Side(slots, row.tokens(start), in_order=in_order), after


def real_tokens(keys: OwnKeys, mask: Mask) -> Tensor:
    """Find the call's tokens that are not padding, booleans (elements, tokens)."""
    firsts = {int(own[0]) for own in keys.slots}
    first, elements = min(firsts), len(keys.slots)
    if len(firsts) > 1 or first + keys.length > keys.codes.shape[1]:
        return torch.ones(elements, keys.length, dtype=torch.bool)
    return mask.reads_itself(elements, first, keys.length)
