"""Follows softmaxes of which functions replace numbers by zeros, as masks do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.functions.softmaxes.follow.following import (
    Followed,
    is_followed,
    seen_before,
)
from gattn.models.doors.functions.softmaxes.follow.operands import operands


def _named(*names: str) -> frozenset[Any]:
    places = (torch, functional, Tensor)
    return frozenset(getattr(of, name) for of in places for name in names if hasattr(of, name))


MULTIPLIES = _named("mul", "multiply") | {Tensor.__mul__, Tensor.__rmul__}
SHRINKS = _named("threshold", "hardshrink", "threshold_")
"""Functions that put zeros in place of small numbers."""
_FILLS = SHRINKS | _named("masked_fill", "where", "nan_to_num")
_PUTS = _named(
    *("index_fill", "index_put", "index_copy", "scatter", "masked_scatter", "tril", "triu"),
    *("select_scatter", "slice_scatter", "diagonal_scatter"),
)
"""Functions that put numbers into the first tensor that they are given."""
_MULTIPLIES_INTO = _named("mul_", "multiply_") | {Tensor.__imul__}
_INTO = _MULTIPLIES_INTO | _named(
    *("__setitem__", "masked_fill_", "index_fill_", "index_put_", "index_copy_", "scatter_"),
    *("masked_scatter_", "zero_", "fill_", "copy_", "tril_", "triu_", "fill_diagonal_"),
    *("nan_to_num_", "threshold_"),
)
"""Functions that put numbers into the memory of the first tensor that they are given."""


class Lost(NamedTuple):
    """Which numbers became zeros, and which of them were NaN before."""

    all: Tensor
    nan: Tensor


def masked(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> Followed | None:
    """Say what is left of a softmax where a function only puts zeros; None if it does more."""
    if followed.altered or followed.scores.is_meta:
        return None
    if not (func in _FILLS or func in _PUTS or _masks(func, args, followed)):
        return None
    given = [one for one in operands(args, kwargs) if isinstance(one, Tensor)]
    found = [one for one in given if is_followed(one) and one.is_floating_point()]
    others = [one for one in given if one is not found[0]] if found else []
    if len(found) != 1 or found[0].shape != result.shape or are_learned(others):
        return None
    if func in _PUTS and found[0] is not args[0]:
        return None
    took = lost(func, others, found[0].detach(), result.detach())
    return None if took is None else left(func, followed, took, result)


def puts_into(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function may only put zeros where a softmax is."""
    followed = seen_before(args[0]) if func in _INTO else None
    if followed is None or not args[0].is_floating_point():
        return False
    if _puts_itself(func, args):
        return True
    others = [one for one in operands(args[1:], kwargs) if isinstance(one, Tensor)]
    if any(one.is_floating_point() and is_followed(one) for one in others):
        return False
    is_scale = func in _MULTIPLIES_INTO and not followed.altered
    return not are_learned(others) and (not is_scale or _masks(func, args, followed))


def _puts_itself(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether numbers are put where they are, as what `attention[0] *= mask` ends with."""
    if func is not Tensor.__setitem__ or not isinstance(args[2], Tensor):
        return False
    if memory_of(args[0]) != memory_of(args[2]):
        return False
    with _disable_current_modes():
        where = args[0][args[1]]
    return memory_of(where) == memory_of(args[2]) and _place(where) == _place(args[2])


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.storage_offset()


def are_learned(others: list[Tensor]) -> bool:
    """Return whether others are learned, as a gate is."""
    return any(isinstance(x, nn.Parameter) or x.requires_grad for x in others)


def lost(func: Any, others: list[Tensor], before: Tensor, after: Tensor) -> Lost | None:
    """Say which numbers became zeros; None if any became another one."""
    with _disable_current_modes():  # What follows is no part of the model.
        is_nan, is_zero = before.isnan(), after == 0
        took_nan = is_nan & is_zero
        if func in MULTIPLIES or func in _MULTIPLIES_INTO:  # A product with NaN does not tell.
            if not all(bool(((x == 0) | (x == 1)).all()) for x in others):
                return None
            took_nan = is_nan & (others[0] == 0) if others else took_nan
        is_same = (after == before) | (is_nan & (after.isnan() | is_zero))
        is_lost = is_zero & (before != 0) & ~is_nan
        return Lost(is_lost, took_nan) if bool((is_same | is_lost).all()) else None


def left(func: Any, followed: Followed, took: Lost, result: Tensor) -> Followed:
    """Say what is left of a softmax.

    Queries that may read nothing, whose rows are NaN or any numbers, lose all of theirs; those that
    lose some wait for a division.
    """
    if followed.unnormalized:
        return followed.without(took.all, followed.unnormalized)
    with _disable_current_modes():
        return _left(func, followed, took, result.detach())


def _left(func: Any, followed: Followed, took: Lost, after: Tensor) -> Followed:
    scores, key, is_lost = followed.scores, followed.key, took.all
    most = max(1e-5, 4 * torch.finfo(after.dtype).eps)
    rows = (after.float().sum(key, keepdim=True) - 1).abs() > most
    # Numbers of a row with NaN do not tell what a mask takes of it; a mask that is made by
    # values takes any, but not the marks. Where zeros replace all of a row, they replace NaN.
    is_taken = took.nan & ~scores.isnan() & after.isnan().any(key, keepdim=True)
    is_lost = is_lost | is_taken
    rows = rows | (is_taken & (scores != -torch.inf)).any(key, keepdim=True)
    is_empty = (after == 0).all(key, keepdim=True)
    is_lost = is_lost | (is_empty & is_lost.any(key, keepdim=True))
    followed = replace(followed, spread=None)
    if not bool(is_lost.any()):
        return followed
    if bool((rows & (after != 0)).any()):
        return followed.without(is_lost, getattr(func, "__name__", str(func)))
    return replace(followed, scores=scores.masked_fill(is_lost, -torch.inf))


def _masks(func: Any, args: tuple[Any, ...], followed: Followed) -> bool:
    """Return whether a function multiplies numbers of keys, or of queries, each with another."""
    is_product = func in MULTIPLIES or func in _MULTIPLIES_INTO
    if not is_product or not all(isinstance(x, Tensor) for x in args):
        return False
    query, _ = followed.sides
    ends = [at - followed.scores.dim() for at in (followed.key, query) if at is not None]
    return len(args) == 2 and any(
        at < 0 and all(x.dim() >= -at and x.shape[at] > 1 for x in args) for at in ends
    )
