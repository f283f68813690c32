"""Makes a layout of what a call's slots depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE, SEVERAL
from gattn.models.doors.proof.probing.dependence import Side
from gattn.models.read.layouts import Layout
from gattn.models.read.token_maps import TokenMap

SEVERAL_GROUPS = (
    "several groups of its slots belong to one sequence, and each slot mixes several tokens, so "
    "that they cannot be told apart"
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
        raise UnprovedError("which of its tokens belong to which element of the batch is not known")
    if owner.dim is not None and owner.dim not in side.apart:
        raise UnprovedError(
            "it mixes the elements of the batch before it attends, or takes one of them at a time"
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
        return False
    if side.depends.shape[1] == 1:
        return True
    return all(dim == owner.dim or not side.is_batch(dim) for dim in side.index)


def owner_by(side: Side, sequences: Tensor) -> Owner | None:
    """Return the batch of learned tokens that a model repeats, by what the other side belongs to.

    `sequences` (lead,) are those of the other side; None if the batch is not one dimension.
    """
    for dim in sorted(side.index):
        index = side.index[dim].amax(1)
        pairs = torch.stack((index, sequences), 1).unique(dim=0)
        numbers = pairs[:, 0]
        if side.is_batch(dim) and torch.equal(numbers, torch.arange(len(pairs))):
            return Owner(dim, pairs[:, 1])
    return None


def tokens_of(side: Side, source: Source, slots: int) -> Tokens:
    """Say which tokens a side's slots are."""
    owner = check_batch(side, source.owner)
    dims = [dim for dim in sorted(side.index) if dim != owner.dim]
    sequences = _sequences(side, owner)
    if not side.is_exact:
        are_in_order = _are_in_order(side, source, dims, slots)
        names = [x.flatten(1).long() for x in side.marks]
        return Tokens(names, None, sequences, slots, (), are_in_order)
    if owner.dim is not None and not side.is_batch(owner.dim):
        raise AcrossBatchError(
            "it attends from one element of the batch to another, or packs several of them into "
            "one sequence, which a mask may keep apart"
        )
    shape = source.shape
    count, positions = 1, torch.zeros_like(side.depends, dtype=torch.long)
    if owner.dim is not None:
        ranks = _ranks(owner.elements)
        count = int(ranks.max()) + 1
        positions = ranks[side.index[owner.dim].clamp(min=0)]
    for dim in dims:
        positions = positions * shape[dim] + side.index[dim].clamp(min=0)
        count *= shape[dim]
    of_token = [side.index[dim] != NONE for dim in dims] or [side.depends]
    positions = torch.where(torch.stack(of_token).all(0), positions, NONE)
    folded = [] if owner.dim is None or count == prod(shape[d] for d in dims) else [count]
    grid = tuple(shape[dim] for dim in dims) if len(dims) > 1 and not folded else ()
    return Tokens([positions], positions, sequences, count, grid)


def _are_in_order(side: Side, source: Source, dims: Sequence[int], slots: int) -> bool:
    """Return whether there are as many slots as tokens, which they mix.

    They are refused if some slot lacks the token of its place.
    """
    sizes = [source.shape[dim] for dim in dims]
    if prod(sizes) != slots or not dims:
        return False
    places = torch.unravel_index(torch.arange(slots), sizes)
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
        return torch.zeros(lead, dtype=torch.long)
    index = side.index[owner.dim]
    if bool((index == SEVERAL).any()):
        raise UnprovedError("a slot depends on several elements of the batch")
    return torch.where(index.amax(1) >= 0, owner.elements[index.amax(1).clamp(min=0)], NONE)


def _ranks(elements: Tensor) -> Tensor:
    """Count the indices that belong to the same element."""
    ranks = torch.zeros_like(elements)
    for one in elements.unique():
        own = elements == one
        ranks[own] = torch.arange(int(own.sum()))
    return ranks


def assembled(
    lead: tuple[int, ...],
    queries: Tokens,
    keys: Tokens,
    *,
    is_cross: bool,
    may_share: bool = False,
) -> Layout:
    """Make the layout of a call from the tokens on both sides.

    If several groups of keys of one sequence are windows, rather than heads, they `may_share` their
    queries.
    """
    names = [*queries.names, *keys.names]
    names += [x.sequences[:, None] for x in (queries, keys) if x.sequences is not None]
    _, element = torch.unique(torch.cat(names, 1), dim=0, return_inverse=True)
    layout, first = _folded(lead, element)
    sequences = _of(first, queries.sequences, keys.sequences)
    has_own_rows = is_cross and queries.sequences is None and queries.positions is None
    of_keys = _in_order(keys, first, sequences)
    if may_share and is_cross and _are_rows(queries, first, sequences, of_keys):
        queries = _numbered(queries, first, sequences)
        of_queries = queries.positions
    else:
        of_queries = _in_order(queries, first, sequences)
    has_all = of_queries is None or of_queries.shape[1] == queries.count == keys.count
    fed = of_keys.clone() if of_keys is not None and not is_cross and has_all else None
    if of_keys is not None and not is_cross and _has_keys_first(of_keys, sequences):
        # Keys of a cache, say, come before those of the tokens: all are counted as they come.
        count = of_keys.shape[1]
        is_cross, of_keys, keys = True, None, replace(keys, count=count)
    check_apart(of_queries, sequences)
    if not is_cross and (of_queries is None) != (of_keys is None):
        of_queries, of_keys = _both_told(queries, keys, of_queries, of_keys, first)
    counts = [queries.count, keys.count]
    if is_cross or of_queries is None or of_keys is None:
        for n, of_side in enumerate((of_queries, of_keys)):
            if of_side is not None:
                counts[n] = without_token((of_side,), sequences, counts[n])
    else:
        counts = [without_token((of_queries, of_keys), sequences, keys.count)] * 2
    known = TokenMap(
        tuple(int(n) for n in sequences),
        of_queries,
        of_keys,
        counts[0],
        counts[1],
        is_cross,
        queries.grid or keys.grid,
        num_given=keys.count,
        fed=fed,
        has_own_rows=has_own_rows,
    )
    return replace(layout, tokens=known)


def _are_rows(queries: Tokens, first: Tensor, sequences: Tensor, of_keys: Tensor | None) -> bool:
    """Return whether queries are told by their keys alone: none of these are keys of two elements.

    So it is with queries that mix tokens of a window, and those that all windows share.
    """
    if of_keys is None or len(first) == len(sequences.unique()):
        return False
    for one in sequences.unique():
        own = of_keys[sequences == one]
        own = own[own >= 0]
        if len(own) > len(own.unique()):
            return False
        if queries.positions is not None:
            some = queries.positions[first][sequences == one]
            if bool((some < 0).any()) or len(some.unique()) == some.numel():
                return False
    return True


def _numbered(queries: Tokens, first: Tensor, sequences: Tensor) -> Tokens:
    """Give queries that are no tokens numbers, element after element of each sequence."""
    slots = queries.count if queries.positions is None else queries.positions.shape[1]
    ranks = _ranks(sequences)
    positions = ranks[:, None] * slots + torch.arange(slots)
    count = (int(ranks.max()) + 1) * slots
    return Tokens(queries.names, positions, queries.sequences, count, ())


def _both_told(
    queries: Tokens,
    keys: Tokens,
    of_queries: Tensor | None,
    of_keys: Tensor | None,
    first: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Tell the tokens of both sides where only one of them has slots that stand for none."""
    told = of_keys if of_queries is None else of_queries
    if told is None or not bool((told < 0).any()):
        return of_queries, of_keys
    if of_queries is None and queries.positions is not None:
        return queries.positions[first], of_keys
    if of_keys is None and keys.positions is not None:
        return of_queries, keys.positions[first]
    return of_queries, of_keys


def _has_keys_first(of_keys: Tensor, sequences: Tensor) -> bool:
    """Return whether keys that stand for no token come first in each sequence.

    Those of a cache with room for more come after the tokens, too.
    """
    is_none = of_keys < 0
    comes_first = bool(is_none[:, 0].all()) and bool((~is_none).any(1).all())
    is_run = bool((((~is_none[:, 1:]) & is_none[:, :-1]).sum(1) == 1).all())
    return comes_first and is_run and len(of_keys) == len(sequences.unique())


def check_apart(of_queries: Tensor | None, sequences: Tensor) -> None:
    """Refuse elements with the same queries, such as those of a batch that a model makes itself."""
    for one in sequences.unique().tolist() if of_queries is not None else ():
        own = of_queries[sequences == one] if of_queries is not None else sequences
        own = own[own >= 0]
        if len(own) > len(own.unique()):
            raise UnprovedError(
                "it attends from the same tokens several times at once, as in a batch that the "
                "model makes itself, in windows that overlap, or where heads are more queries"
            )


def without_token(sides: tuple[Tensor, ...], sequences: Tensor, count: int) -> int:
    """Count all tokens of a sequence, and after them the slots that stand for none.

    The queries and keys of an element that stand for none are the same if there are as many.
    """
    most = count
    for one in sequences.unique().tolist():
        number = count
        for element in (sequences == one).nonzero()[:, 0].tolist():
            of = [side[element] for side in sides]
            sizes = [int((slots < 0).sum()) for slots in of]
            for slots, size in zip(of, sizes, strict=True):
                slots[slots < 0] = torch.arange(number, number + size)
            number += max(sizes)
        most = max(most, number)
    return most


def _of(first: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor:
    own = [side[first] for side in (queries, keys) if side is not None]
    found = own[0]
    for other in own[1:]:
        if bool(((found != other) & (found != NONE) & (other != NONE)).any()):
            raise UnprovedError("queries of one sequence attend to keys of another")
        found = torch.where(found == NONE, other, found)
    if bool((found == NONE).any()):
        raise UnprovedError("an element has no tokens of any sequence")
    return found


def _in_order(side: Tokens, first: Tensor, sequences: Tensor) -> Tensor | None:
    """Return the positions of each element's slots; None if these are its sequence in order."""
    has_own = len(first) == len(sequences.unique())
    if side.positions is None:
        if not has_own:
            raise UnprovedError(SEVERAL_GROUPS)
        return None
    positions = side.positions[first]
    is_all = has_own and positions.shape[1] == side.count
    if is_all and bool((positions == torch.arange(side.count)).all()):
        return None
    return positions


def _folded(lead: tuple[int, ...], element: Tensor) -> tuple[Layout, Tensor]:
    """Find which leading dimensions are heads, given each index's element."""
    count = len(element.unique())
    for sizes in _splits(lead):
        shaped = element.reshape(sizes)
        heads = tuple(
            n
            for n, size in enumerate(sizes)
            if size > 1 and bool((shaped == shaped.narrow(n, 0, 1)).all())
        )
        if prod(size for n, size in enumerate(sizes) if n not in heads) == count:
            numbers = torch.arange(len(element)).reshape(sizes)
            for n in heads:
                numbers = numbers.narrow(n, 0, 1)
            return Layout(() if sizes == lead else sizes, heads), numbers.flatten()
    raise UnprovedError(
        f"its leading dimensions {lead} hold {count} groups of tokens in an order that is neither "
        "elements by heads nor heads by elements"
    )


def _splits(lead: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """List sizes of leading dimensions: as they are, or one of them as two folded into one."""
    yield lead
    for n, size in enumerate(lead):
        for first in range(2, size):
            if size % first == 0:
                yield (*lead[:n], first, size // first, *lead[n + 1 :])
