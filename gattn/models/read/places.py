"""Says where in a model an attention call is, and which tokens it has on each side.

A slot is a place in the tensors of a call, padding and unused places of a cache included; a
position counts the real tokens of a sequence from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gattn.caching import cached_property


@dataclass(frozen=True)
class Side:
    """The real tokens of one sequence on one side of a call.

    `slots` are their places in the call's tensor; they stand at the positions `first`,
    `first` + 1, and so on, unless other `positions` are told. Then they are recorded as if they
    stood at these. Slots are `in_order`, unless they go round, as those of a sliding cache may. Of
    told positions those from `count` on are padding, such as that of windows, which nobody reads.
    """

    slots: Tensor
    first: int
    positions: Tensor | None = None
    in_order: bool = True
    count: int | None = None

    def __len__(self) -> int:
        return int(self.slots.shape[0])

    @property
    def at(self) -> Tensor:
        """The positions of its tokens."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.first, self.first + len(self), device="cpu")

    @cached_property
    def end(self) -> int:
        """The position after the last one."""
        if self.positions is None:
            return self.first + len(self)
        return int(self.positions.max()) + 1 if len(self.positions) else 0

    @property
    def are_tokens(self) -> Tensor:
        """Which of its positions are tokens, rather than padding."""
        return self.at < self.num_tokens

    @property
    def num_tokens(self) -> int:
        """How many tokens its sequence has, as far as is known: up to its last position."""
        return self.end if self.count is None else self.count


@dataclass(frozen=True)
class Place:
    """Where in the model an attention call is, and for each element of its batch, its tokens.

    Any call whose keys are other tokens than its queries `is_bipartite`; only where its stack is
    one of cross-attention do the keys stay the same from step to step. `sizes` are the numbers of
    queries and keys of a sequence, where its tokens have told positions, or are those of a layer
    that attends part by part. Where the heads of a layer
    attend in calls of their own, it has as many `heads`, of which this call has the one `head`. Its
    queries are `is_adrift` where the keys are these and others, as those of a text that is not
    known: then where they stand among the keys is not known, and both are counted from 0.
    """

    stack: str
    layer: int
    is_bipartite: bool
    queries: list[Side]
    keys: list[Side]
    sequences: list[int]
    is_cross: bool = False
    sizes: tuple[int, int] | None = None
    head: int = 0
    heads: int = 0
    is_adrift: bool = False

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a layer, whose queries come one part after another."""
        return self.sizes is not None and all(one.positions is None for one in self.queries)

    def own(self, heads: Sequence[int]) -> list[int]:
        """Return which of a layer's heads a call has, as it numbers them."""
        if not self.heads:
            return list(heads)
        return [0] * (self.head in heads)


@lru_cache(maxsize=16)
def ordered(length: int) -> Tensor:
    """Return the slots 0, 1, ... of so many tokens."""
    with torch.inference_mode(False):
        return torch.arange(length, device="cpu")


@lru_cache(maxsize=16)
def all_real(count: int, length: int) -> Tensor:
    """Return that all slots of so many sequences are tokens, (sequences, slots)."""
    with torch.inference_mode(False):
        return torch.ones(count, length, dtype=torch.bool, device="cpu")


@lru_cache(maxsize=16)
def whole_side(length: int) -> Side:
    """Return the side of a sequence whose slots are all tokens, in order."""
    return Side(ordered(length), 0)


def sides(real: Tensor, start: int, length: int) -> list[Side]:
    """Find each sequence's real tokens among the slots from `start` on."""
    first, present = real[:, :start].sum(1).tolist(), real[:, start : start + length]
    slots = present.nonzero()[:, 1].split(present.sum(1).tolist())
    return [Side(own, before) for own, before in zip(slots, first, strict=True)]
