"""Tells the keys of a call: which are those of its own tokens, and a number for each.

A key is told by one number that depends on all heads of it, and of its value. A cache may round it
to half precision: it is then told by the number of what it was rounded to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from gattn.models.hugging_face.caches import FEW, codes
from gattn.models.read.masks import Mask
from gattn.models.read.seen_call import SeenCall

_numbers = count()
_ROUNDED = torch.float16, torch.bfloat16


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
    def has_others(self) -> bool:
        """Whether there are slots besides those of the call's own tokens."""
        return self.length < self.codes.shape[1]

    @property
    def others_are_read(self) -> bool:
        """Whether some query reads a key that is none of the call's own tokens."""
        if not self.has_others:
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
    some = torch.cat([x.detach()[..., :few].transpose(1, 2).flatten(2) for x in shown], -1)
    kinds = torch.stack([some.double(), *(some.to(dtype).double() for dtype in _ROUNDED)])
    return codes(kinds, 0).movedim(0, -1).cpu()


def are_those(known: Tensor, read: Tensor) -> Tensor:
    """Return which keys are those of a text, booleans (...), perhaps rounded."""
    return (known == read[..., :1]).any(-1)


def real_tokens(keys: OwnKeys, mask: Mask) -> Tensor:
    """Find the call's tokens that are not padding, booleans (elements, tokens)."""
    firsts = {int(own[0]) for own in keys.slots}
    first, elements = min(firsts), len(keys.slots)
    if len(firsts) > 1 or first + keys.length > keys.codes.shape[1]:
        return torch.ones(elements, keys.length, dtype=torch.bool)
    return mask.reads_itself(elements, first, keys.length)
