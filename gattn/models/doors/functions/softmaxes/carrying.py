"""Says what functions make of a softmax: the same numbers in another shape, or others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.dropouts import dropped_by, keeps_scale
from gattn.models.doors.functions.softmaxes.following import (
    Followed,
    Repeated,
    all_found_in,
    is_followed,
    operands,
)
from gattn.models.doors.functions.softmaxes.mixing import ONE, is_scale, mixed_dims
from gattn.models.doors.functions.softmaxes.slicing import fits, index_of, sliced
from gattn.models.doors.functions.softmaxes.sums import MULTIPLIES

_SHAPES: frozenset[Any] = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in (
        "transpose",
        "permute",
        "swapaxes",
        "swapdims",
        "movedim",
        "moveaxis",
        "squeeze",
        "unsqueeze",
        "flatten",
        "unflatten",
        "reshape",
        "view",
        "expand",
        "view_as",
        "reshape_as",
        "expand_as",
        "t",
        "contiguous",
        "clone",
        "to",
        "type",
        "type_as",
        "float",
        "double",
        "half",
        "bfloat16",
        "detach",
    )
    if hasattr(of, name)
)
_REPEATS = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in ("repeat", "tile", "repeat_interleave", "broadcast_to")
    if hasattr(of, name)
)
_EXPANDS = frozenset((Tensor.expand, Tensor.expand_as))
_GETTERS = frozenset((Tensor.mT.__get__, Tensor.T.__get__))  # type: ignore[attr-defined]
_COPIES = frozenset(
    (
        *(Tensor.cpu, Tensor.cuda, Tensor.pin_memory, Tensor.__deepcopy__, Tensor.share_memory_),
        *(torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor),
    )
) | {Tensor.data.__get__, Tensor.requires_grad_}  # type: ignore[attr-defined]
"""Functions whose results hold the numbers that they take, in the same shape, perhaps elsewhere."""
SHRINKS: frozenset[Any] = frozenset(
    getattr(of, name)
    for of in (torch, functional, Tensor)
    for name in ("threshold", "hardshrink")
    if hasattr(of, name)
)
"""Functions that put zeros in place of small numbers."""
_FILLS = SHRINKS | {
    *(getattr(of, one) for of in (torch, Tensor) for one in ("masked_fill", "where", "nan_to_num")),
    Tensor.masked_fill_,
}
_MULTIPLIES_INTO = frozenset((Tensor.mul_, Tensor.multiply_, Tensor.__imul__))
_MULTIPLIES = MULTIPLIES | _MULTIPLIES_INTO
_SAME_SHAPE = _COPIES | {
    *(Tensor.to, Tensor.type, Tensor.type_as, Tensor.clone, torch.clone),
    *(Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16),
}


def carried(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> Followed:
    """Say what a function made of a softmax: the same numbers in another shape, or others."""
    followed = replace(followed, spread=None, repeated=None)
    p = dropped_by(func, args, kwargs)
    if p == 0.0 or (p is not None and keeps_scale(func)):
        return replace(followed, dropout=1 - (1 - followed.dropout) * (1 - p))
    scores, dropped = followed.scores, followed.dropped
    if func in _SAME_SHAPE and result.shape == scores.shape:
        return followed
    name = getattr(func, "__name__", str(func))
    if func in _REPEATS and not followed.altered and _is_expanded(scores, result):
        func, args, kwargs = Tensor.expand, (args[0], *result.shape), {}
    if not followed.altered and (index := index_of(func, args, kwargs)) is not None:
        return sliced(index, followed, result) or followed.altered_by(name, result)
    if not followed.is_mixture:
        return replace(followed, scores=torch.empty(result.shape, device="meta"))
    if not keeps_numbers(func, args):
        mixtures = sum(one.is_mixture for one in all_found_in(args, kwargs))
        key, placed, is_across = mixed_dims(func, args, kwargs, followed, result)
        altered = followed.altered_by(name, result, key, placed)
        is_scaled = followed.is_scaled and is_scale(func) and mixtures < 2
        is_across |= followed.is_across
        return replace(altered, is_scaled=is_scaled, is_across=is_across)
    if not followed.altered:
        scores = func(scores, *args[1:], **kwargs)
    key = _key(func, args, kwargs, followed, result)
    if key is None and (folded := _folded(func, followed, result)) is not None:
        placed = _placed(func, args, kwargs, followed, result)
        altered = followed.altered_by(name, result, result.dim() - 1, placed)
        return replace(altered, folded=folded)
    if key is None and func in _EXPANDS and not followed.altered:
        before = Repeated(args[0], followed, followed.source.read_by)
        return replace(followed.altered_by(name, result), repeated=before)
    if key is None or (not followed.altered and scores.shape != result.shape):
        return followed.altered_by(name, result)
    followed = replace(followed, placed=_placed(func, args, kwargs, followed, result))
    if followed.altered:
        return replace(followed, scores=torch.empty(result.shape, device="meta"), key=key)
    if dropped is not None:
        try:
            dropped = func(dropped, *args[1:], **kwargs)
        except RuntimeError:  # It names the number of keys.
            return followed.altered_by(name, result)
        if not fits(dropped, scores, key):
            return followed.altered_by(name, result)
    return replace(followed, scores=scores, key=key, dropped=dropped)


def masked(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> Followed | None:
    """Say what is left of a softmax where a function only puts zeros; None if it does more.

    Queries that may read nothing, whose rows are NaN or any numbers, lose all of theirs; those that
    lose some wait for a division.
    """
    if followed.altered or not (func in _FILLS or _masks_keys(func, args, followed)):
        return None
    given = [one for one in operands(args, kwargs) if isinstance(one, Tensor)]
    found = [one for one in given if is_followed(one) and one.is_floating_point()]
    others = [one for one in given if one is not found[0]] if found else []
    if len(found) != 1 or found[0].shape != result.shape:
        return None
    if any(isinstance(x, nn.Parameter) or x.requires_grad for x in others):
        return None  # It is learned, as a gate is.
    with _disable_current_modes():  # What follows is no part of the model.
        return _left(func, args, kwargs, followed, found[0], others, result)


def _left(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    followed: Followed,
    before: Tensor,
    others: list[Tensor],
    result: Tensor,
) -> Followed | None:
    if func in _MULTIPLIES and not all(bool(((x == 0) | (x == 1)).all()) for x in others):
        return None  # Where attention is NaN, its product does not tell.
    after = result.detach()
    is_lost = (
        lost_in_place(func, args, kwargs, result)
        if before is result
        else lost(before.detach(), after)
    )
    if is_lost is None:
        return None
    most = max(1e-5, 4 * torch.finfo(result.dtype).eps)
    rows = (after.float().sum(followed.key, keepdim=True) - 1).abs() > most
    if before is not result and bool((is_nan := before.detach().isnan()).any()):
        # Numbers of a row with NaN do not tell what a mask takes of it; a mask that is made by
        # values takes any, but not the marks. Where zeros replace all of a row, they replace NaN.
        taken = is_nan & ((others[0] == 0) if func in MULTIPLIES else (after == 0))
        taken = taken & ~followed.scores.isnan() & after.isnan().any(followed.key, keepdim=True)
        is_lost = is_lost | taken
        rows = rows | (taken & (followed.scores != -torch.inf)).any(followed.key, keepdim=True)
    is_empty = (after == 0).all(followed.key, keepdim=True)
    is_lost = is_lost | (is_empty & is_lost.any(followed.key, keepdim=True))
    followed = replace(followed, spread=None)
    if not bool(is_lost.any()):
        return followed
    if bool((rows & (after != 0)).any()):
        return followed.without(is_lost, getattr(func, "__name__", str(func)))
    return replace(followed, scores=followed.scores.masked_fill(is_lost, -torch.inf))


def lost_in_place(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
) -> Tensor | None:
    """Say which numbers a function replaced by zeros where they were; None if it does more."""
    others = [x for x in operands(args, kwargs) if isinstance(x, Tensor) and x is not result]
    if not others:
        return None
    mask = others[0]
    with _disable_current_modes():
        if func in _MULTIPLIES_INTO and bool(((mask == 0) | (mask == 1)).all()):
            return (mask == 0).expand(result.shape)
        is_fill = func is Tensor.masked_fill_
        is_zero = is_fill and bool(torch.as_tensor(kwargs.get("value", args[-1])) == 0)
        return mask.expand(result.shape) if is_zero else None


def zeros_put(func: Any, args: tuple[Any, ...], followed: Followed) -> tuple[Any, ...] | None:
    """Return what `masked_fill_` takes for `attention[index] = 0`; None if it is something else."""
    if func is not Tensor.__setitem__ or not is_followed(args[0]) or followed.altered:
        return None
    attention, index, value = args
    if not attention.is_floating_point() or not isinstance(value, (int, float)) or value != 0:
        return None
    if _is_mask(index, attention):
        return attention, index, 0.0
    with _disable_current_modes():
        mask = torch.zeros_like(attention, dtype=torch.bool)
        mask[index] = True
    return attention, mask, 0.0


def _is_mask(index: Any, attention: Tensor) -> bool:
    like = (torch.bool, attention.shape, attention.device)
    return isinstance(index, Tensor) and (index.dtype, index.shape, index.device) == like


def keeps_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a function gives the numbers that it takes, in another shape or precision."""
    return func in _SHAPES or func in _GETTERS or _adds_dimensions(func, args)


def _is_expanded(before: Tensor, result: Tensor) -> bool:
    """Return whether only dimensions of one number were repeated."""
    sizes = result.shape[result.dim() - before.dim() :] if result.dim() >= before.dim() else ()
    pairs = zip(before.shape, sizes, strict=False)
    return len(sizes) == before.dim() and all(one in (1, now) for one, now in pairs)


def _adds_dimensions(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a function is an index that only adds dimensions, as in x[..., None]."""
    if func is not Tensor.__getitem__:
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return all(
        one is None or one is Ellipsis or (isinstance(one, slice) and one == slice(None))
        for one in index
    )


def _masks_keys(func: Any, args: tuple[Any, ...], followed: Followed) -> bool:
    """Return whether a function multiplies the keys' numbers, each with another, as a mask does."""
    if func not in _MULTIPLIES or not all(isinstance(x, Tensor) for x in args):
        return False
    at = followed.key - followed.scores.dim()
    return len(args) == 2 and all(at < 0 and x.dim() >= -at and x.shape[at] > 1 for x in args)


def lost(before: Tensor, result: Tensor) -> Tensor | None:
    """Say which numbers became zeros; None if any became another one."""
    with _disable_current_modes():
        is_empty = before.isnan() & (result.isnan() | (result == 0))
        is_lost = (result == 0) & (before != 0) & ~before.isnan()
        return is_lost if bool(((result == before) | is_empty | is_lost).all()) else None


def _key(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> int | None:
    """Find the dimension of the keys in what a function of shapes gave, by the way it treats sizes.

    A tensor without memory, in which the keys' dimension has a size of its own, shows it.
    """
    before = followed.scores
    if func in _RESHAPES:
        return _last(before, followed.key, result)
    shape, size = list(before.shape), max(before.shape) + 1
    shape[followed.key] = size
    marked = func(before.new_empty(shape, device="meta"), *args[1:], **kwargs).shape
    return marked.index(size) if size in marked and len(marked) == result.dim() else None


def _placed(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> tuple[int | None, int | None]:
    """Find the dimensions of queries and of texts in what a function of shapes gave.

    A tensor without memory, whose dimensions have sizes of their own, shows where they went.
    """
    (query, text), before = followed.sides, followed.scores.shape
    if func in _RESHAPES:
        is_first = text == 0 and result.shape[:1] == before[:1]
        if text is not None and not is_first:
            return None, None
        keys = followed.folded or before[-1]
        stays = query == len(before) - 2 and result.shape[-2:] == before[-2:]
        is_unfolded = followed.folded and result.shape[-1] == keys
        is_one = query is not None and (query == ONE or before[query] == 1)
        return ONE if is_one else result.dim() - 2 if stays or is_unfolded else None, text
    sizes = [1 if size == 1 else 2 + n for n, size in enumerate(before)]
    marked = list(func(followed.scores.new_empty(sizes, device="meta"), *args[1:], **kwargs).shape)

    def moved(dim: int | None) -> int | None:
        if dim is None or dim == ONE or before[dim] == 1:
            return None if dim is None else ONE
        return marked.index(sizes[dim]) if sizes[dim] in marked else None

    return moved(query), moved(text)


_RESHAPES = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in (
        *("flatten", "unflatten", "reshape", "view", "expand"),
        *("view_as", "reshape_as", "expand_as"),
    )
    if hasattr(of, name)
)


def _folded(func: Any, followed: Followed, result: Tensor) -> int | None:
    """Say how many keys the last dimension holds beside queries; 0 if it holds keys alone again."""
    before = followed.scores.shape
    if func not in _RESHAPES or followed.key != len(before) - 1 or not result.dim():
        return None
    keys, size = followed.folded or before[-1], result.shape[-1]
    if not keys or size % keys or result.numel() != before.numel():
        return None
    return 0 if size == keys else keys


def _last(before: Tensor, key: int, result: Tensor) -> int | None:
    """Return the last dimension, if that is where the keys were and are."""
    is_last = key == before.dim() - 1 and result.shape[-1] == before.shape[-1]
    return result.dim() - 1 if is_last else None
