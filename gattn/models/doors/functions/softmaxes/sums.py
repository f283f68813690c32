"""Products of attention and values written as a sum, as in (attention[..., None] * value).sum()."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.softmaxes.beside import note_pairs
from gattn.models.doors.functions.softmaxes.changes.masking import MULTIPLIES
from gattn.models.doors.functions.softmaxes.follow.following import Followed, Spread
from gattn.models.doors.functions.softmaxes.follow.learned import is_learned
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.follow.origins import origin_of
from gattn.models.doors.functions.softmaxes.products import Product, einsum_product

_WEIGHS = MULTIPLIES | {Tensor.mul_, Tensor.__imul__, torch.einsum}
SUMS = frozenset((torch.sum, Tensor.sum))


def spread(
    func: Any, args: tuple[Any, ...], place: int, followed: Followed, result: Tensor
) -> Followed | None:
    """Follow the product of each number of attention with values, until these are summed up."""
    repeated = followed.repeated
    whole = followed if repeated is None else repeated.followed
    if func not in MULTIPLIES or whole.altered or whole.columns or len(args) != 2:
        return None
    if not all(isinstance(x, Tensor) for x in args):
        return None
    operand, other = args[place] if repeated is None else repeated.operand, args[1 - place]
    before = followed.source.read_by if repeated is None else repeated.read_by
    followed = whole
    key = followed.key - operand.dim() + result.dim()
    at = key - result.dim()
    is_value = other.dim() >= -at and other.shape[at] == operand.shape[at] > 1
    if not is_value or is_learned(other) or not other.is_floating_point():
        return None
    made = followed.altered_by("mul", result)
    return replace(made, spread=Spread(operand, other, place, key, followed, before))


def weighed(
    func: Any, args: tuple[Any, ...], place: int, followed: Followed, result: Tensor
) -> Followed | None:
    """Follow picked numbers of a softmax that weigh vectors, each its own, as those of experts.

    The next function may sum these up; nothing later reads the softmax.
    """
    given = operands(args, {})
    if func not in _WEIGHS or not followed.is_picked or result.numel() <= given[place].numel():
        return None
    others = [x for n, x in enumerate(given) if n != place and isinstance(x, Tensor)]
    if len(others) != 1 or others[0].numel() != result.numel():
        return None
    other, before = others[0], followed.source.read_by
    made = followed.altered_by("mul", result)
    where = len(args) if func is torch.einsum else place
    return replace(made, spread=Spread(given[place], other, where, -1, followed, before))


def summed(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> tuple[Followed, Product] | None:
    """Read a sum as the product of attention and values, if it ends one."""
    found = followed.spread
    if found is None or func not in SUMS:
        return None
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    rank = operands(args, kwargs)[0].dim()
    if not isinstance(dim, int) or "dtype" in kwargs:
        return None
    if found.followed.altered:
        found = _of_picked(found, dim % rank, rank)
    if found is None or dim % rank != found.key:
        return None
    has_kept = bool(kwargs.get("keepdim") or args[2:3] == (True,))
    if _weighs_pairs(found, has_kept=has_kept) or _weighs_scores(found):
        note_pairs(found.followed.source, found.other)
        return None
    product = _product(found, rank, result)
    if product is None:
        return None
    found.followed.source.read_by = found.read_by
    return found.followed, product


def _weighs_pairs(found: Spread, *, has_kept: bool) -> bool:
    """Return whether each pair has one number of its own, as a gate has.

    Its sum may be what pairs are divided by, if it `has_kept` their dimension. Values have one per
    key, or several. Where there are few dimensions, these may be texts and heads.
    """
    operand, other, shape = found.operand, found.other, found.followed.source.scores.shape
    query, _ = found.followed.sides
    at = None if query is None else query - operand.dim()
    if at is None or other.dim() > operand.dim() or other.dim() < -at:
        return False
    is_of_pairs = other.shape[at] == operand.shape[at] > 1
    are_queries = len(shape) > 3 or (len(shape) == 3 and shape[-1] == shape[-2])
    sizes = zip(other.shape[::-1], operand.shape[::-1], strict=False)
    has_columns = any(one > size for one, size in sizes)
    return is_of_pairs and (has_kept or (are_queries and not has_columns))


def _weighs_scores(found: Spread) -> bool:
    """Return whether attention weighs logarithms of itself, or differences of its scores."""
    return origin_of(found.other)[0] is found.followed.source.scores


def _of_picked(found: Spread, dim: int, rank: int) -> Spread | None:
    """Say over which dimension picked numbers and their vectors are summed."""
    at = dim - rank
    if found.operand.dim() < -at or found.operand.shape[at] == 1:
        return None
    followed = replace(found.followed, scores=found.operand, key=dim, dropped=None)
    return replace(found, key=dim, followed=followed)


def _product(found: Spread, rank: int, result: Tensor) -> Product | None:
    """Say a sum of products as an einsum over the dimensions that each side has."""
    shapes = [(1,) * (rank - x.dim()) + tuple(x.shape) for x in (found.operand, found.other)]
    letters = ascii_letters[:rank]
    mine, its = ([n for n in range(rank) if shape[n] > 1 or n == found.key] for shape in shapes)
    out = [n for n in range(rank) if (n in mine or n in its) and n != found.key]
    labels = ["".join(letters[n] for n in some) for some in (mine, its, out)]
    sizes = [max(one, other) for one, other in zip(*shapes, strict=True)]

    def small(x: Tensor, dims: list[int]) -> Tensor:
        return x.reshape([sizes[n] for n in dims])

    dropped = found.followed.dropped
    followed = replace(
        found.followed,
        scores=small(found.followed.scores, mine),
        key=mine.index(found.key),
        dropped=None if dropped is None else small(dropped, mine),
    )
    made = einsum_product(
        f"{labels[0]},{labels[1]}->{labels[2]}",
        small(found.operand, mine),
        small(found.other, its),
        1,
        followed,
        small(result, out),
    )
    if made is None:
        return None
    restored, as_operand = made.restored, made.as_operand
    return replace(
        made,
        operand=found.operand,
        other=found.other,
        restored=lambda x: restored(x).reshape(result.shape),
        as_operand=lambda x: as_operand(x).reshape(found.operand.shape),
    )
