"""Follows attention that is divided by its sums once more, over its keys or another dimension.

A model may change a softmax before, as by a mask or gates of pairs, or take it over queries, as
slot attention does: what a query attends to is known once its numbers add up to one. Their
logarithms are its scores, then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from gattn.errors import EditError
from gattn.models.doors.functions.calling.raw_call import named
from gattn.models.doors.functions.softmaxes.follow.following import Followed
from gattn.models.doors.functions.softmaxes.follow.known import OfTensors
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.follow.source import Source
from gattn.models.doors.functions.softmaxes.sums import SUMS
from gattn.models.doors.functions.softmaxes.written import tolerance
from gattn.normalizers.base import widened

_F = nn.functional
_DIVIDES = frozenset(
    (
        *(torch.div, torch.divide, torch.true_divide, _F.normalize),
        *(Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.__truediv__),
        *(Tensor.div_, Tensor.divide_, Tensor.true_divide_, Tensor.__itruediv__),
    )
)
_keys: WeakKeyDictionary[nn.Module, dict[int, int]] = WeakKeyDictionary()
"""Over which dimension each softmax of a module was divided by its sums, by its number."""


def is_total(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed
) -> bool:
    """Return whether a function sums a softmax up over its keys, which gives ones unless edited."""
    if func not in SUMS or followed.altered or followed.dropout or followed.columns:
        return False
    if followed.dropped is not None:
        return False
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    return isinstance(dim, int) and dim % followed.scores.dim() == followed.key


_totals: OfTensors[Source] = OfTensors()
"""The sums of attention over its keys, which only its division may use where it is edited."""


def note_total(total: Tensor, source: Source) -> None:
    """Remember a sum of attention over its keys."""
    source.is_read = True
    _totals.note(total, source)


def follow_totals(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    """Follow sums through functions of these alone; others read what an edit does not reach."""
    if not _totals.known or not isinstance(result, Tensor) or not result.is_floating_point():
        return
    given = [x for x in operands(args, kwargs) if isinstance(x, Tensor)]
    for x in given:
        if (source := _totals.of(x)) is None:
            continue
        if len(given) == 1:
            note_total(result, source)
        elif source.is_edited or (source.again is not None and source.again.is_edited):
            raise EditError(
                f"{named(source.module)} uses the sum of its attention after this met the values, "
                "where an edit does not reach. Nothing more was edited."
            )
        else:
            (source.again or source).read("sum")


def renormalized(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: int,
    followed: Followed,
    result: Tensor,
) -> Followed | None:
    """Say what a function made of a softmax if it divided it by its sums over a dimension."""
    given = operands(args, kwargs)
    before, source = given[place], followed.source
    if func not in _DIVIDES or place or before.shape != result.shape or source.was_consumed:
        return None
    if followed.others or followed.dropout or followed.is_picked or source.parent:
        return None
    if followed.dropped is not None or followed.key >= before.dim():
        return None
    others = [x for x in given[1:] if isinstance(x, Tensor)]
    has_one_row = before.numel() == before.shape[followed.key]
    if any(isinstance(x, nn.Parameter) or (x.numel() == 1 and not has_one_row) for x in others):
        return None
    if len(others) != (func is not _F.normalize):
        return None
    with _disable_current_modes():  # What follows is no part of the model.
        key = _key(followed, result, others)
        if key is None or not _are_shares(before, result, key, *others):
            return None
        if followed.altered or followed.key != key:
            made = _of_weights(before, followed, key, result)
            if followed.key == key:
                return made
            name = getattr(func, "__name__", str(func))
            return replace(made, otherwise=followed.altered_by(name, result))
        return replace(followed, source=_again(followed, source.scores, key, source.attention))


def _key(followed: Followed, result: Tensor, divisors: Sequence[Tensor]) -> int | None:
    """Find the dimension over which all numbers, which are positive, add up to one, or to none.

    Sums that numbers were divided by are the same all along it. Where attention is almost the same
    everywhere, it adds up to one over other dimensions, too.
    """
    source, now = followed.source, widened(result.detach())
    if not bool(now.isfinite().all()):  # NaN is like any: take that of a plain run.
        return _keys.get(source.module, {}).get(source.number)
    if bool((now < 0).any()):
        return None
    dims = [n for n, size in enumerate(now.shape) if size > 1]
    dims = [n for n in dims if all(_is_same_along(x, n - now.dim()) for x in divisors)]
    for key in sorted(dims, key=lambda n: (n != followed.key, -n)):
        sums, least = now.sum(key), tolerance(result, keys=now.shape[key])
        if bool((((sums - 1).abs() <= least) | (sums == 0)).all()):
            _keys.setdefault(source.module, {})[source.number] = key
            return key
    return None


def _is_same_along(x: Tensor, dim: int) -> bool:
    """Return whether a tensor that is broadcast has one number along a dimension from the end."""
    return x.dim() < -dim or bool((x == x.narrow(dim, 0, 1)).all())


def _are_shares(before: Tensor, result: Tensor, key: int, *others: Tensor) -> bool:
    """Return whether numbers are their shares of sums: what was divided, by one number per sum."""
    if before is result:
        at = key - result.dim()
        return all(x.dim() < -at or x.shape[at] == 1 for x in others)
    was, now = (widened(x.detach()) for x in (before, result))
    sums = was.sum(key, keepdim=True)
    least = tolerance(before, result, keys=now.shape[key]) * was.amax(key, keepdim=True)
    return bool((((now * sums - was).abs() <= least) | ~now.isfinite() | ~was.isfinite()).all())


def _of_weights(weights: Tensor, followed: Followed, key: int, result: Tensor) -> Followed:
    """Follow attention as the softmax of the logarithms of what was divided by its sums."""
    tiny = torch.finfo(weights.dtype).tiny
    scores = weights.clamp(min=tiny).log().masked_fill(weights == 0, -torch.inf)
    made = _again(followed, scores, key, ref(result))
    return Followed(made, scores, key)


def _again(followed: Followed, scores: Tensor, key: int, attention: ref[Tensor]) -> Source:
    source = followed.source
    made = Source(source.module, source.number, attention, scores, key, source.running)
    source.is_read = True
    made.is_written, made.ranking, made.is_again = source.is_written, followed.ranked, True
    made.read_by = source.read_by if attention is source.attention else ""
    source.again = made
    return made
