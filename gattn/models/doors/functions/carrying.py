"""Says what functions make of a softmax: the same numbers in another shape, or others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.following import Followed, all_found_in, operands, seen_before
from gattn.models.doors.functions.mixing import is_scale, mixed_key
from gattn.models.doors.functions.slicing import fits, sliced
from gattn.models.doors.functions.sums import MULTIPLIES

_F = nn.functional
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
_DROPOUTS = frozenset((_F.dropout, torch.dropout))
_MASKS = frozenset((torch.masked_fill, Tensor.masked_fill, Tensor.masked_fill_))
_GETTERS = frozenset((Tensor.mT.__get__, Tensor.T.__get__))  # type: ignore[attr-defined]
_FILLS = frozenset(
    getattr(of, name) for of in (torch, Tensor) for name in ("masked_fill", "where", "nan_to_num")
)
_CASTS = frozenset(
    getattr(Tensor, name) for name in ("to", "type", "type_as", "float", "double", "half")
) | {Tensor.bfloat16}


def carried(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> Followed:
    """Say what a function made of a softmax: the same numbers in another shape, or others."""
    followed = replace(followed, spread=None)
    if func in _DROPOUTS:
        return replace(followed, dropout=_dropout(*args, **kwargs))
    scores, dropped = followed.scores, followed.dropped
    if func in _CASTS and result.shape == scores.shape:
        return followed
    masks = not followed.altered and (func in _FILLS or _masks_keys(func, args, followed))
    if masks and (kept := _kept(args, kwargs, followed, result)) is not None:
        return kept
    if func in _MASKS and (masked := _masked(followed, result, *args[1:], **kwargs)) is not None:
        return masked
    name = getattr(func, "__name__", str(func))
    if func is Tensor.__getitem__ and not followed.altered:
        return sliced(args[1], followed) or followed.altered_by(name, result)
    if not followed.is_mixture:
        return replace(followed, scores=torch.empty(result.shape, device="meta"))
    if func not in _SHAPES and func not in _GETTERS and not _adds_dimensions(func, args):
        mixtures = sum(one.is_mixture for one in all_found_in(args, kwargs))
        key = mixed_key(func, args, kwargs, followed.scores.shape, followed.key, mixtures, result)
        altered = followed.altered_by(name, result, key)
        return replace(altered, is_scaled=followed.is_scaled and is_scale(func) and mixtures < 2)
    if not followed.altered:
        scores = func(scores, *args[1:], **kwargs)
    key = _key(func, args, kwargs, followed, result)
    if key is None or (not followed.altered and scores.shape != result.shape):
        return followed.altered_by(name, result)
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


def _masked(
    followed: Followed, result: Tensor, mask: Tensor, value: Any, input: Any = None
) -> Followed | None:
    """Read a mask that is put in place after the softmax: zeros where there was no attention.

    Queries that may read nothing lose all of theirs; any others must keep theirs, or it is None.
    """
    if followed.altered or bool(torch.as_tensor(value) != 0):
        return None
    with torch.no_grad():
        whole = result.detach().float().sum(followed.key)
        lost = (whole - 1).abs() > max(1e-5, 4 * torch.finfo(result.dtype).eps)
        if bool((lost & ~mask.expand(result.shape).all(followed.key)).any()):
            return None
    return replace(followed, scores=followed.scores.masked_fill(mask, -torch.inf))


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
    if func not in MULTIPLIES or not all(isinstance(x, Tensor) for x in args):
        return False
    at = followed.key - followed.scores.dim()
    return len(args) == 2 and all(at < 0 and x.dim() >= -at and x.shape[at] > 1 for x in args)


def _kept(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> Followed | None:
    """Read a function that only put zeros where there was no attention, as a mask of padding does.

    Queries that may read nothing, whose rows are NaN or any numbers, lose all of theirs.
    """
    given = [one for one in operands(args, kwargs) if isinstance(one, Tensor)]
    found = [one for one in given if seen_before(one) is not None]
    if len(found) != 1 or found[0].shape != result.shape:
        return None
    if any(isinstance(x, nn.Parameter) or x.requires_grad for x in given if x is not found[0]):
        return None  # It is learned, as a gate is.
    before = found[0].detach()
    is_empty = before.isnan() & (result.isnan() | (result == 0))
    is_lost = (result == 0) & (before != 0) & ~before.isnan()
    if not bool(((result == before) | is_empty | is_lost).all()):
        return None
    rows = is_lost.any(followed.key, keepdim=True)
    if not bool(rows.any()):
        return followed
    if bool((rows & (result != 0)).any()):
        return None
    return replace(followed, scores=followed.scores.masked_fill(rows, -torch.inf))


def _dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> float:
    return p if (training if train is None else train) else 0.0


def _key(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> int | None:
    """Find the dimension of the keys in what a function of shapes gave, by the way it treats sizes.

    A tensor without memory, in which only the keys' dimension has more than one element, shows it.
    """
    before = followed.scores
    shape = [1] * before.dim()
    shape[followed.key] = before.shape[followed.key]
    if before.shape[followed.key] == 1 or func in _RESHAPES:
        return _last(before, followed.key, result)
    marked = func(before.new_empty(shape, device="meta"), *args[1:], **kwargs)
    found = [n for n, size in enumerate(marked.shape) if size > 1]
    return found[0] if len(found) == 1 else None


_RESHAPES = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in ("flatten", "unflatten", "reshape", "view", "expand")
    if hasattr(of, name)
)


def _last(before: Tensor, key: int, result: Tensor) -> int | None:
    """Return the last dimension, if that is where the keys were and are."""
    is_last = key == before.dim() - 1 and result.shape[-1] == before.shape[-1]
    return result.dim() - 1 if is_last else None
