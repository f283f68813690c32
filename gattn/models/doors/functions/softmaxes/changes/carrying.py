"""Says what functions make of a softmax: the same numbers in another shape, or others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.dropouts import dropped_by, keeps_scale
from gattn.models.doors.functions.softmaxes.changes.mixing import ONE, is_scale, mixed_dims
from gattn.models.doors.functions.softmaxes.changes.slicing import fits, index_of, sliced
from gattn.models.doors.functions.softmaxes.follow.following import (
    Followed,
    Repeated,
    all_found_in,
)

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


def _key(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> int | None:
    """Find the dimension of the keys in what a function of shapes gave, by the way it treats sizes.

    A tensor without memory, in which the keys' dimension has a size of its own, shows it.
    """
    before = followed.scores
    if func in _EXPANDS:
        return _last(before, followed.key, result)
    if func in _RESHAPES:
        return _reshaped(before, followed.key, result)
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
    if func in _EXPANDS:
        return _from_the_end(query, before, result), _from_the_end(text, before, result)
    if func in _RESHAPES:
        is_first = text == 0 and result.shape[:1] == before[:1]
        if text is not None and not is_first:
            return None, None
        if followed.folded and result.shape[-1] == followed.folded:
            return result.dim() - 2, text
        if query is None or query == ONE or before[query] == 1:
            return None if query is None else ONE, text
        return _reshaped(followed.scores, query, result), text
    sizes = [1 if size == 1 else 2 + n for n, size in enumerate(before)]
    marked = list(func(followed.scores.new_empty(sizes, device="meta"), *args[1:], **kwargs).shape)

    def moved(dim: int | None) -> int | None:
        if dim is None or dim == ONE or before[dim] == 1:
            return None if dim is None else ONE
        return marked.index(sizes[dim]) if sizes[dim] in marked else None

    return moved(query), moved(text)


def _from_the_end(dim: int | None, before: torch.Size, result: Tensor) -> int | None:
    """Return where a dimension is once others were added before it; None if it was repeated."""
    if dim is None or dim == ONE:
        return dim
    now = dim + result.dim() - len(before)
    if result.shape[now] != before[dim]:
        return None
    return ONE if before[dim] == 1 else now


_RESHAPES = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in (*("flatten", "unflatten", "reshape", "view", "view_as", "reshape_as"),)
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


def _reshaped(before: Tensor, dim: int, result: Tensor) -> int | None:
    """Find where a dimension is once numbers were laid out in another shape, in the same order."""
    if before.shape[dim] == 1 or not before.numel():
        return _last(before, dim, result)
    outer, size = before.shape[:dim].numel(), before.shape[dim]
    found = (n for n in range(result.dim()) if result.shape[:n].numel() == outer)
    return next((n for n in found if result.shape[n] == size), None)


def _last(before: Tensor, key: int, result: Tensor) -> int | None:
    """Return the last dimension, if that is where the keys were and are."""
    is_last = key == before.dim() - 1 and result.shape[-1] == before.shape[-1]
    return result.dim() - 1 if is_last else None
