"""Says where in a model an attention call is, and which tokens it has on each side.

A slot is a place in the tensors of a call, padding and unused places of a cache included; a
position counts the real tokens of a sequence from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Side:
    """The real tokens of one sequence on one side of a call.

    `slots` are their places in the call's tensor; they stand at the positions `first`,
    `first` + 1, and so on.
    """

    slots: Tensor
    first: int

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class Place:
    """Where in the model an attention call is, and for each element of its batch, its tokens.

    Any call whose keys are other tokens than its queries `is_bipartite`; only where its stack is
    one of cross-attention do the keys stay the same from step to step.
    """

    stack: str
    layer: int
    is_bipartite: bool
    queries: list[Side]
    keys: list[Side]
    sequences: list[int]
    is_cross: bool = False


def sides(real: Tensor, start: int, length: int) -> list[Side]:
    """Find each sequence's real tokens among the slots from `start` on."""
    first = real[:, :start].sum(1).tolist()
    return [
        Side(row.nonzero()[:, 0], before)
        for row, before in zip(real[:, start : start + length], first, strict=True)
    ]
