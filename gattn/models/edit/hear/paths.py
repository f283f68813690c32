"""Edits that keep some paths from part to head, and cut all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.hear.parts import By, Parts, check_by, replaced
from gattn.models.edit.heard import SIDES, End, Hears, Removed
from gattn.models.read.places import Place

if TYPE_CHECKING:
    from gattn.models.stream.rows import Rows
    from gattn.models.stream.writers.parts import Stream

Path: TypeAlias = "tuple[str, int, int, End]"
"""The part, and the layer, head and side that hear of it."""


@dataclass(frozen=True, eq=False, repr=False)
class OnlyPaths(Hears):
    """Keep only these paths: no head hears of others of the same `kinds` of parts.

    Parameters
    ----------
    paths : mapping of str to sequence of (part, layer, head, side)
        The paths of each stack: a part as `gattn.Without` names it, and the side of the head that
        goes on hearing of it.
    kinds : sequence of str
        The kinds of parts of which others are not heard: "head", "mlp", "embedding".
    by : optional
        What takes the place of parts that are not heard, as in `gattn.Without`.

    Raises
    ------
    EditError
        As `gattn.Without`.
    """

    paths: Mapping[str, Sequence[Path]]
    kinds: Sequence[str] = ("head",)
    by: By = "zero"

    layer = None
    head = None
    stack = None
    spans_stacks = True

    def __post_init__(self) -> None:
        check_by(self.by)

    def __repr__(self) -> str:
        """Say how many paths there are."""
        count = sum(map(len, self.paths.values()))
        by = self.as_given().by
        said = "" if isinstance(by, str) and by == "zero" else f", by={by!r:.60}"
        return f"OnlyPaths({count} path{'s' * (count != 1)}{said})"

    def as_given(self) -> OnlyPaths:
        """Return it with its text in place of what the model wrote on that."""
        return replace(self, by=self.by.given) if isinstance(self.by, Parts) else self

    def applies(self, place: Place) -> bool:
        """Return whether heads hear of such parts."""
        is_first = place.layer == 0 and "embedding" not in self.kinds
        return not place.is_bipartite and place.stack in self.paths and not is_first

    def hears_of(self, place: Place) -> bool:
        """Return whether a stack has paths."""
        return place.stack in self.paths

    def by_stack(self) -> dict[str | None, Any]:
        """Return its paths of each stack that has some."""
        parts: dict[str | None, Any] = {
            name: replace(self, paths={name: some}) for name, some in self.paths.items() if some
        }
        return parts or {None: self}

    def removed(self, stream: Stream, rows: Rows, heads: int) -> list[Removed]:
        """Sum all parts that a head does not hear of, for each side."""
        names = list(sources(stream, self.kinds))
        lost = torch.ones(1, heads, len(SIDES), len(names), device="cpu")
        for part, layer, head, side in self.paths[rows.place.stack]:
            if layer == rows.place.layer:
                if part not in names or not 0 <= head < heads:
                    raise EditError(
                        f"{self} keeps the path from {part!r} to head {layer}.{head}, but before "
                        f"layer {layer} there are {', '.join(names)}, and {heads} heads."
                    )
                lost[0, head, SIDES.index(side), names.index(part)] = 0
        return lacking(lost, stream, rows, self.kinds, self.by, self)


@dataclass(frozen=True, eq=False, repr=False)
class Weighed(Hears):
    """Multiply what heads hear of parts by weights (copies, paths), one row per copy of a text.

    `at` are the paths that end in a layer of a stack: their numbers, and the head, side and part
    of each, (paths, 4).
    """

    at: Mapping[tuple[str, int], Tensor]
    names: Mapping[str, Sequence[str]]
    weights: Tensor
    kinds: Sequence[str]
    by: By = "zero"

    layer = None
    head = None
    stack = None
    spans_stacks = True

    def __post_init__(self) -> None:
        """Take all as it is."""

    def __repr__(self) -> str:
        return "the search for a circuit of paths"

    def applies(self, place: Place) -> bool:
        """Return whether paths end in a layer."""
        return not place.is_bipartite and (place.stack, place.layer) in self.at

    def hears_of(self, place: Place) -> bool:
        """Return whether paths end in a later layer of a stack."""
        return any(stack == place.stack and layer > place.layer for stack, layer in self.at)

    def removed(self, stream: Stream, rows: Rows, heads: int) -> list[Removed]:
        """Sum what a head does not hear of, for each side and copy."""
        place = rows.place
        number, head, side, part = self.at[place.stack, place.layer].T
        known = list(sources(stream, self.kinds))
        names = self.names[place.stack]
        if known != list(names[: len(known)]):
            raise EditError(
                f"Before layer {place.layer} of {place.stack!r} there are the parts "
                f"{', '.join(known)}, but its paths are from {', '.join(names)}."
            )
        weights = self.weights.to(rows.device)
        lost = weights.new_zeros(len(weights), heads, len(SIDES), len(known))
        lost[:, head, side, part] = 1 - weights[:, number]
        return lacking(lost, stream, rows, self.kinds, self.by, self)


def sources(stream: Stream, kinds: Sequence[str]) -> dict[str, list[int]]:
    """Name the parts of some kinds, and number what wrote them; embeddings are one part."""
    found: dict[str, list[int]] = {}
    for n, writer in enumerate(stream.writers):
        if writer.kind in kinds:
            name = "embedding" if writer.kind == "embedding" else str(writer)
            found.setdefault(name, []).append(n)
    return found


def lacking(
    lost: Tensor, stream: Stream, rows: Rows, kinds: Sequence[str], by: By, edit: object
) -> list[Removed]:
    """Sum what heads do not hear of: `lost` are the shares (copies, heads, sides, parts).

    Sides of heads that lack the same share one vector.
    """

    def summed(one: Stream) -> Tensor:
        """Sum the writers of each part."""
        each = sources(one, kinds).values()
        return torch.stack([one.parts[numbers].sum(0) for numbers in each])

    if not lost.shape[-1]:
        return []
    vectors = replaced(summed(stream), by, summed, rows, edit)
    copies, heads, sides, parts = lost.shape
    flat = lost.permute(1, 2, 0, 3).reshape(heads * sides, copies, parts).to(vectors)
    if flat.requires_grad:
        values, of = flat, torch.arange(heads * sides, device="cpu")
    else:
        values, of = flat.unique(dim=0, return_inverse=True)
    sequence = torch.tensor(rows.place.sequences, device=rows.device)[rows.element]
    sequence = torch.zeros_like(sequence) if copies == 1 else sequence
    found = []
    for n, shares in enumerate(values):
        if not flat.requires_grad and not bool(shares.any()):
            continue
        vector = torch.einsum("rp,prd->rd", shares[sequence], vectors)
        places = [divmod(place, sides) for place in (of == n).nonzero()[:, 0].tolist()]
        ends = [
            (name, [head for head, side in places if side == number])
            for number, name in enumerate(SIDES)
        ]
        found.append(Removed(vector, [(name, some) for name, some in ends if some]))
    return found
