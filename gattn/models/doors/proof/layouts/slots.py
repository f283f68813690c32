"""Says which tokens the slots of one side of a call are, by the input they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE, SEVERAL
from gattn.models.doors.proof.probing.dependence import Side

_NO_BATCH = "if its inputs have no batch, give them one, as by x[None]"
ACROSS = (
    "it attends from one element of the batch to another, or packs several of them into one "
    f"sequence, which a mask may keep apart ({_NO_BATCH})"
)


class AcrossBatchError(UnprovedError):
    """Says that tokens of different elements of the supposed batch attend to each other."""


@dataclass(frozen=True, eq=False)
class Owner:
    """Which element of the model's batch each index of one dimension of an input belongs to."""

    dim: int | None
    elements: Tensor


@dataclass(frozen=True, eq=False)
class Source:
    """The shape of an input that a call depends on, and its batch; None if that is not known."""

    shape: tuple[int, ...]
    owner: Owner | None


@dataclass(frozen=True, eq=False)
class Tokens:
    """For one side of a call: (lead, slots) positions or None, sequences (lead,), and sizes.

    `names` (lead, ...) differ between leading indices with different tokens. Where slots mix
    several tokens, `are_in_order` says that each of all tokens has a slot, which mixes it with
    others.
    """

    names: list[Tensor]
    positions: Tensor | None
    sequences: Tensor | None
    count: int
    grid: tuple[int, ...]
    are_in_order: bool = False


def check_batch(side: Side, owner: Owner | None) -> Owner:
    """Refuse an input whose elements of the batch are not known, or do not tell slots apart."""
    if owner is None:
        raise UnprovedError(
            "which of its tokens belong to which element of the batch is not known: if a part of "
            "the model is given these texts alone, open the context on it, as in "
            "capturing(model.encoder)"
        )
    if owner.dim is not None and owner.dim not in side.apart:
        raise UnprovedError(
            "it mixes the elements of the batch before it attends, or takes one of them at a time "
            f"({_NO_BATCH})"
        )
    return owner


def is_settled(side: Side, source: Source) -> bool:
    """Return whether an input has the model's batch as one dimension, and else only tokens."""
    owner = source.owner
    if owner is None:
        return False
    if not side.is_exact:
        return True
    if owner.dim is not None and len(owner.elements.unique()) < len(owner.elements):
        return _has_all(side.index.get(owner.dim), owner.elements)
    if side.depends.shape[1] == 1:
        return True
    return all(dim == owner.dim or not side.is_batch(dim) for dim in side.index)


def _has_all(index: Tensor | None, elements: Tensor) -> bool:
    """Return whether leading indices have a slot for each index of their element of the batch."""
    if index is None or bool((index < 0).any()):
        return False
    counts = elements.bincount()
    own = elements[index]
    is_each = index.sort(1).values.diff(dim=1) > 0
    are_all = bool((counts[own] == index.shape[1]).all())
    return are_all and bool(is_each.all()) and bool((own == own[:, :1]).all())


def owner_by(side: Side, sequences: Tensor) -> Owner | None:
    """Return the batch of learned tokens that a model repeats, by what the other side belongs to.

    `sequences` (lead,) are those of the other side; None if the batch is not one dimension.
    """
    for dim in sorted(side.index):
        index = side.index[dim].amax(1)
        pairs = torch.stack((index, sequences), 1).unique(dim=0)
        numbers = pairs[:, 0]
        if side.is_batch(dim) and torch.equal(numbers, torch.arange(len(pairs), device="cpu")):
            return Owner(dim, pairs[:, 1])
    return None


def tokens_of(side: Side, source: Source, slots: int) -> Tokens:
    """Say which tokens a side's slots are."""
    owner = check_batch(side, source.owner)
    dims = [dim for dim in sorted(side.index) if dim != owner.dim]
    sequences = _sequences(side, owner)
    if not side.is_exact:
        are_in_order = _are_in_order(side, source, dims, slots)
        names = [x.flatten(1).long() for x in (*side.marks, *side.ends)]
        return Tokens(names, None, sequences, slots, (), are_in_order)
    if owner.dim is not None and not _are_of_one(side.index[owner.dim], owner.elements):
        raise AcrossBatchError(ACROSS)
    shape = source.shape
    count, positions = 1, torch.zeros_like(side.depends, dtype=torch.long)
    if owner.dim is not None:
        rank = ranks(owner.elements)
        count = int(rank.max()) + 1
        positions = rank[side.index[owner.dim].clamp(min=0)]
    for dim in dims:
        positions = positions * shape[dim] + side.index[dim].clamp(min=0)
        count *= shape[dim]
    of_token = [side.index[dim] != NONE for dim in dims] or [side.depends]
    positions = torch.where(torch.stack(of_token).all(0), positions, NONE)
    folded = [] if owner.dim is None or count == prod(shape[d] for d in dims) else [count]
    grid = tuple(shape[dim] for dim in dims) if len(dims) > 1 and not folded else ()
    return Tokens([positions], positions, sequences, count, grid)


def _are_of_one(index: Tensor, elements: Tensor) -> bool:
    """Return whether the slots of each leading index depend on one element of the batch, or none.

    Its tokens may be indices of the same dimension, as in a view of (batch * tokens, channels).
    """
    own = torch.where(index == NONE, NONE, elements[index.clamp(min=0)])
    is_told = bool((index >= NONE).all())
    return is_told and bool(((own == own.amax(1, keepdim=True)) | (index == NONE)).all())


def _are_in_order(side: Side, source: Source, dims: Sequence[int], slots: int) -> bool:
    """Return whether there are as many slots as tokens, which they mix.

    They are refused if some slot lacks the token of its place.
    """
    sizes = [source.shape[dim] for dim in dims]
    if prod(sizes) != slots or not dims:
        return False
    places = torch.unravel_index(torch.arange(slots, device="cpu"), sizes)
    if not all(side.has_own(dim, own) for dim, own in zip(dims, places, strict=True)):
        raise UnprovedError(
            "its tokens are mixed and moved before it attends, so that which token a slot "
            "stands for cannot be told"
        )
    return True


def learned(slots: int) -> Tokens:
    """Return the tokens of a side that depends on no input: learned queries, say."""
    return Tokens([], None, None, slots, ())


def _sequences(side: Side, owner: Owner) -> Tensor:
    """Return the sequence of each of the leading indices."""
    lead = len(side.depends)
    if owner.dim is None:
        return torch.zeros(lead, dtype=torch.long, device="cpu")
    index = side.index[owner.dim]
    if bool((index == SEVERAL).any()):
        if side.is_hidden(owner.dim, index == SEVERAL):
            raise UnprovedError(
                "a mask takes all keys from some of its queries, such as padding, and nothing "
                "tells to which text of the batch these belong: mask padded keys, but not queries"
            )
        raise UnprovedError(
            "a slot depends on several elements of what would be the batch, so that it mixes "
            "these, or the model's inputs have no batch, as pairs of tokens may: expected a batch "
            "as their first or second dimension"
        )
    return torch.where(index.amax(1) >= 0, owner.elements[index.amax(1).clamp(min=0)], NONE)


def ranks(elements: Tensor) -> Tensor:
    """Count the indices that belong to the same element."""
    found = torch.zeros_like(elements)
    for one in elements.unique():
        own = elements == one
        found[own] = torch.arange(int(own.sum()), device="cpu")
    return found
