"""Says from decoded marks which nodes of the data the nodes of a call are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gattn.models.doors.proof.nodes.passing import Marked
from gattn.models.doors.proof.probing.codes import NONE, decoded
from gattn.models.read.on_graphs.numbers import UNKNOWN, NodeNumbers


def numbers_of(call: Marked, sides: Mapping[int, tuple[Tensor, int]]) -> NodeNumbers | None:
    """Say which nodes those of a call are; None if they are those of the data as they come."""
    ends = call.ends
    if call.has_tokens:
        in_place = [_is_plain(numbers, len(numbers)) for numbers, _ in sides.values()]
        return None if in_place and all(in_place) else UNKNOWN
    if not ends.is_bipartite:
        told = [distinct(*sides[side]) for side in (0, 1) if side in sides]
        if not told or any(one is None for one in told):
            return UNKNOWN
        first = told[0]
        if first is None or any(not torch.equal(first[0], one[0]) for one in told if one):
            return UNKNOWN
        if _is_plain(first[0], first[1]):
            return None
        if call.is_own:
            return UNKNOWN
        return NodeNumbers(first[0], first[0], first[1], first[1])
    if ends.names:
        sizes = ends.sizes["tokens"], ends.sizes["query_tokens"]
        known = all(side in sides and _are_named(sides[side][0], sizes[side]) for side in (0, 1))
        return None if known else UNKNOWN
    both: list[tuple[Tensor, int] | None] = []
    for side, count in enumerate((ends.num_keys, ends.num_queries)):
        if side not in sides:  # Queries of a readout are no nodes.
            if side and _is_readout(call):
                both.append(None)
                continue
            return UNKNOWN
        one = distinct(*sides[side])
        if one is None:
            return UNKNOWN
        is_prefix = _is_plain(one[0], count)
        both.append(None if is_prefix else one)
    if both[0] is None and both[1] is None:
        return None
    if call.is_own:
        return UNKNOWN
    key, query = both
    return NodeNumbers(
        None if key is None else key[0],
        None if query is None else query[0],
        ends.num_keys if key is None else key[1],
        ends.num_queries if query is None else query[1],
    )


def is_told(numbers: Tensor, given: Tensor | None) -> bool:
    """Return whether nodes are those of some rows, or come from nothing that the model is given."""
    if bool((numbers < NONE).any()) or not bool((numbers > NONE).any()):
        return False
    others = numbers == NONE
    return not bool(others.any()) or (given is not None and not bool((others & given.cpu()).any()))


def distinct(numbers: Tensor, size: int) -> tuple[Tensor, int] | None:
    """Let nodes that are beyond those of the data follow these; None if it is not known which.

    Where the model puts other features into nodes that stay in place, they are those of the data.
    """
    is_told, own = numbers != NONE, torch.arange(len(numbers), device="cpu")
    if len(numbers) == size and torch.equal(numbers[is_told], own[is_told]):
        return own, size
    if len(numbers[is_told].unique()) < int(is_told.sum()):
        return None
    if not bool(is_told.all()) and int(is_told.sum()) < size:
        return None
    added = torch.arange(size, size + int((~is_told).sum()), device="cpu")
    return numbers.masked_scatter(~is_told, added), size + len(added)


def of_tokens(seen: Tensor, code: Tensor) -> Tensor | None:
    """Return 0, 1, ... if tokens come in the order of the input; None if none is told.

    Mixed tokens are in place if each has its own mark, too.
    """
    numbers = decoded(seen, torch.ones_like(seen), code)
    told, are_mixed = numbers[numbers > NONE], numbers < NONE
    if not bool(seen.any()) or len(told.unique()) < len(told):
        return None
    is_plain = not bool((told.diff() < 0).any())
    if bool(are_mixed.any()):
        is_plain &= seen.shape == code.shape and not bool((code & ~seen)[:, are_mixed].any())
    return torch.arange(len(numbers), device="cpu") if is_plain else numbers


def _is_plain(numbers: Tensor, count: int) -> bool:
    return torch.equal(numbers, torch.arange(count, device="cpu"))


def _are_named(numbers: Tensor, sizes: Sequence[int]) -> bool:
    """Return whether nodes have the numbers of their names, which count those of each type."""
    return [n for size in sizes for n in range(size)] == numbers.tolist()


def _is_readout(call: Marked) -> bool:
    key = call.ends.key
    return torch.equal(key, torch.arange(len(key), device=key.device))
