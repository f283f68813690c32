"""Makes a layout of the tokens on both sides of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.slots import Tokens, ranks
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE
from gattn.models.read.layouts import Layout
from gattn.models.read.token_maps import TokenMap

SEVERAL_GROUPS = (
    "several groups of its slots belong to one sequence, and each slot mixes several tokens, so "
    "that they cannot be told apart"
)


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
    are_alike = of_queries is not None and of_keys is not None and torch.equal(of_queries, of_keys)
    may_be_cache = of_keys is not None and not is_cross and not are_alike
    if may_be_cache and of_keys is not None and _has_keys_first(of_keys, sequences, keys.count):
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
        _check_sides(of_queries, of_keys, sequences)
        counts = [without_token((of_queries, of_keys), sequences, keys.count)] * 2
    known = TokenMap(
        tuple(int(n) for n in sequences),
        of_queries,
        of_keys,
        counts[0],
        counts[1],
        is_cross,
        keys.grid if is_cross else queries.grid or keys.grid,
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
    rank = ranks(sequences)
    positions = rank[:, None] * slots + torch.arange(slots, device="cpu")
    count = (int(rank.max()) + 1) * slots
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


def _has_keys_first(of_keys: Tensor, sequences: Tensor, count: int) -> bool:
    """Return whether keys of no token come first in each sequence, and then all tokens in order.

    Those of a cache with room for more come after the tokens, too.
    """
    is_token = of_keys >= 0
    begins = is_token[:, 1:] & ~is_token[:, :-1]
    is_led = bool((~is_token[:, 0] & (begins.sum(1) == 1)).all())
    has_all = bool((is_token.sum(1) == count).all())
    if not (is_led and has_all and len(of_keys) == len(sequences.unique())):
        return False
    tokens = of_keys[is_token].view(-1, count)
    return bool((tokens == torch.arange(count, device="cpu")).all())


def check_apart(of_queries: Tensor | None, sequences: Tensor) -> None:
    """Refuse elements with the same queries, such as those of a batch that a model makes itself."""
    for one in sequences.unique().tolist() if of_queries is not None else ():
        own = of_queries[sequences == one] if of_queries is not None else sequences
        own = own[own >= 0]
        if len(own) > len(own.unique()):
            raise UnprovedError(
                "it attends from the same tokens several times at once, as in a batch that the "
                "model makes itself, in windows that overlap or hold one token and padding, or "
                "where heads are more queries"
            )


def _check_sides(of_queries: Tensor, of_keys: Tensor, sequences: Tensor) -> None:
    """Refuse elements of a sequence with one side alone whose tokens nothing tells.

    They may be the tokens of another element, as where two pictures read each other.
    """
    several = (sequences[:, None] == sequences).sum(1) > 1
    untold = [(slots < 0).all(1) for slots in (of_queries, of_keys)]
    if bool((several & (untold[0] != untold[1])).any()):
        raise UnprovedError(
            "several inputs are joined along the batch, as two pictures that read each other, and "
            "no single one tells both the queries and the keys: call the module that attends for "
            "each of them"
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
                slots[slots < 0] = torch.arange(number, number + size, device="cpu")
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
    if is_all and bool((positions == torch.arange(side.count, device="cpu")).all()):
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
            numbers = torch.arange(len(element), device="cpu").reshape(sizes)
            for n in heads:
                numbers = numbers.narrow(n, 0, 1)
            return Layout(() if sizes == lead else sizes, heads), numbers.flatten()
    raise UnprovedError(
        f"its leading dimensions {lead} hold {count} groups of tokens in an order that is neither "
        "elements by heads nor heads by elements"
    )


def _splits(lead: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """List sizes of leading dimensions: as they are, or one of them as two or three folded into it.

    Heads may lie between texts and their windows.
    """
    yield lead
    for parts in (2, 3):
        for n, size in enumerate(lead):
            for folded in _factors(size, parts):
                yield (*lead[:n], *folded, *lead[n + 1 :])


def _factors(size: int, parts: int) -> Iterator[tuple[int, ...]]:
    """List so many numbers above one whose product is a size."""
    if parts == 1:
        yield (size,)
        return
    for first in range(2, size):
        if size % first == 0:
            yield from ((first, *rest) for rest in _factors(size // first, parts - 1))
