"""Tells the keys of a call: which are those of its own tokens, and a number for each.

A key is told by one number that depends on all heads of it, and of its value. A cache may round it
to half precision: it is then told by the number of what it was rounded to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from gattn.caching import cached_property
from gattn.models.hugging_face.caches import FEW, odd_numbers
from gattn.models.read.masks import Mask
from gattn.models.read.places import ordered
from gattn.models.read.seen_call import SeenCall

Said: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
_numbers = count()
_ROUNDED = torch.float16, torch.bfloat16


@dataclass(eq=False)
class OwnKeys:
    """The keys of a call that are its own tokens, and those that are not.

    Parameters
    ----------
    slots : list of Tensor
        For each element, the slots of its tokens, in order.
    few : Tensor (elements, heads, slots, n)
        A few numbers of each key, by `few_of`.
    mask : Mask
        The mask of the call.
    said : callable
        Which tokens that may be padding inputs of the model mark, given their reads, these tokens,
        and the first one's slot.
    """

    slots: list[Tensor]
    few: Tensor
    mask: Mask
    said: Said

    @classmethod
    def of(cls, call: SeenCall, mask: Callable[[], Mask], said: Said) -> OwnKeys | None:
        """Find them in self-attention; None where its tokens are not one run of slots."""
        slots = _slots(call)
        return None if slots is None else cls(slots, few_of(call), mask(), said)

    @property
    def length(self) -> int:
        """How many tokens the call has."""
        return len(self.slots[0])

    @property
    def size(self) -> int:
        """How many slots there are."""
        return int(self.few.shape[2])

    @cached_property
    def codes(self) -> Tensor:
        """The numbers of each key, (elements, slots, 3), by `codes_of`."""
        return codes_of(self.few)

    @cached_property
    def is_read(self) -> Tensor:
        """Which keys some query reads, (elements, slots)."""
        return self.mask.is_read(len(self.slots), self.size)

    @cached_property
    def real(self) -> Tensor:
        """Which of the call's tokens are not padding, (elements, tokens)."""
        if self._first is None:
            return torch.ones(len(self.slots), self.length, dtype=torch.bool, device="cpu")
        return self.mask.reads_itself(len(self.slots), self._first, self.length) & ~self._told

    @cached_property
    def untold(self) -> Tensor:
        """Which tokens of texts may be padding, but no input says so, (elements, tokens)."""
        if self._first is None:
            return self._may_be_padding
        return self.mask.untold(self._told, self._first)

    @cached_property
    def _first(self) -> int | None:
        """The first token's slot; None if it differs, or tokens go round."""
        firsts = {int(own[0]) for own in self.slots}
        first = min(firsts)
        return None if len(firsts) > 1 or first + self.length > self.size else first

    @cached_property
    def _may_be_padding(self) -> Tensor:
        if self._first is None:
            return torch.zeros(len(self.slots), self.length, dtype=torch.bool, device="cpu")
        return self.mask.unread(len(self.slots), self._first, self.length)

    @cached_property
    def _told(self) -> Tensor:
        found = self._may_be_padding
        if self._first is None or not bool(found.any()):
            return torch.zeros_like(found)
        return self.said(self.mask.reads(len(self.slots)), found, self._first)

    @property
    def are_all(self) -> bool:
        """Whether the call's own tokens are all slots, in order, and none is padding."""
        order = ordered(self.size)
        is_order = all(torch.equal(own, order) for own in self.slots)
        return is_order and (self.mask.values is None or bool(self.real.all()))

    @property
    def others_are_read(self) -> bool:
        """Whether some query reads a key that is none of the call's own tokens."""
        if self.length == self.size:
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
        own, size = self.slots[element], self.size
        after = self.is_read[element, int(own[-1]) + 1 :]
        if int(own[0]) <= int(own[-1]) and not bool(after.any()):
            return torch.arange(int(own[0]), device="cpu"), False
        return (int(own[-1]) + 1 + torch.arange(size - len(own), device="cpu")) % size, True


def _slots(call: SeenCall) -> list[Tensor] | None:
    tokens, length, size = call.tokens, call.query.shape[2], call.key.shape[2]
    if tokens is None or tokens.sequences != tuple(range(len(tokens.sequences))):
        return None
    order = ordered(length)
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


def few_of(call: SeenCall) -> Tensor:
    """Copy a few numbers of each key, and of its value, in all heads: (..., heads, slots, n)."""
    few = max(FEW // call.key.shape[1], 1)
    key, value = call.key.detach(), call.value.detach()
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return torch.cat((key[..., :few], value[..., :few]), -1)
    return torch.cat((key[..., :few], value[..., :few]), -1)


def codes_of(few: Tensor) -> Tensor:
    """Give each key the numbers (..., slots, 3) that it may have in a cache.

    Each depends on every bit of `few` numbers: as they are, and rounded to each kind of half
    precision. If neither keys nor values are seen, no key is like any other.
    """
    *_, heads, slots, size = few.shape
    with torch.inference_mode(False), torch.no_grad():
        if not size:
            shape = (*few.shape[:-3], slots, 1 + len(_ROUNDED))
            unlike = torch.tensor([next(_numbers) for _ in range(prod(shape[:-1]))], device="cpu")
            return unlike.view(shape[:-1])[..., None].expand(shape)
        few = few.movedim((-3, -1), (0, 1))  # Sums over the first dimensions are faster.
        kinds = torch.stack([few, *(few.to(dtype) for dtype in _ROUNDED)]).double()
        factors = odd_numbers((heads, size, *(1,) * (few.dim() - 2))).to(kinds.device)
        bits = kinds.view(torch.int64)
        bits = bits ^ (
            bits >> 32
        )  # The lowest ones of what was rounded are zeros, which products keep.
        return (bits * factors).sum((1, 2)).movedim(0, -1).cpu()


def are_those(known: Tensor, read: Tensor) -> Tensor:
    """Return which keys are those of a text, booleans (...), perhaps rounded."""
    return (known == read[..., :1]).any(-1)
