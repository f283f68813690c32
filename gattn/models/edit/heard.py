"""Edits of what heads read of the residual stream, and what becomes of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.models.edit.base import Edit
from gattn.models.read.masks import taken

if TYPE_CHECKING:
    from gattn.models.read.places import Place
    from gattn.models.read.reading import Reading
    from gattn.models.stream.rows import Rows
    from gattn.models.stream.writers.parts import Stream

End = Literal["query", "key", "value"]
SIDES: tuple[End, ...] = ("query", "key", "value")


class Removed(NamedTuple):
    """What some heads do not hear: a vector for each row, (rows, dim), and on which sides."""

    vector: Tensor
    ends: Sequence[tuple[End, Sequence[int]]]


class Hears(Edit):
    """The base of edits of what heads read of the residual stream."""

    def hears_of(self, place: Place) -> bool:
        """Return whether it changes what later layers read of what a call writes."""
        layers = self.layers()
        return self.stack in (None, place.stack) and (layers is None or place.layer < max(layers))

    def removed(self, stream: Stream, rows: Rows, heads: int) -> list[Removed]:
        """Say which vectors of the stream before a layer its heads do not hear."""
        raise NotImplementedError


class Given(NamedTuple):
    """What some heads read instead: queries, keys or values (sequences, heads, slots, dim)."""

    side: End
    heads: Sequence[int]
    vectors: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Heard(Edit):
    """An edit of what heads read in one call: what its layer computes of another stream."""

    text: str
    given: tuple[Given, ...]
    layer = None
    head = None
    stack: str | None = None

    def __post_init__(self) -> None:
        """Take all as it is."""

    def __repr__(self) -> str:
        return self.text

    def heads(self, count: int) -> list[int]:
        """List the heads that read something else."""
        return sorted({head for one in self.given for head in one.heads})

    def sides(self, heads: Sequence[int]) -> set[End]:
        """Return on which sides some of these heads read something else."""
        return {one.side for one in self.given if not set(heads).isdisjoint(one.heads)}

    def instead(
        self, call: AttentionCall, heads: Sequence[int], own: Sequence[int], reading: Reading
    ) -> AttentionCall:
        """Put it into some heads, which have `own` numbers in a call."""
        changed: dict[str, Any] = {}
        for side, some, vectors in self.given:
            here = [(n, head) for n, head in zip(own, heads, strict=True) if head in some]
            if not here:
                continue
            groups = reading.heads // vectors.shape[1]
            before = changed.get(side)
            before = getattr(call, side).clone() if before is None else before
            new = taken(vectors[reading.elements], 2, reading.queries)
            numbers = torch.tensor(here, device=before.device).T
            before[:, numbers[0]] = new[:, numbers[1] // groups].to(before)
            changed[side] = before
        return replace(call, **changed)
