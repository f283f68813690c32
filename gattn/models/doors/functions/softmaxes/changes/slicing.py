"""Follows slices of a softmax: of its keys, or of its heads and queries, as in a loop over heads.

Keys that a slice leaves out take their share of the attention, and bring no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.softmaxes.follow.following import Followed


def sliced(index: Any, followed: Followed, piece: Tensor) -> Followed | None:
    """Say what an index makes of a softmax, if it takes ranges or single indices of dimensions.

    None if it does something else.
    """
    scores, key = followed.scores, followed.key
    whole = _completed(index, scores.dim())
    if whole is None or followed.altered:
        return None
    dims = [place for place, one in enumerate(whole) if one is not None]
    sizes = dict(zip(dims, scores.shape, strict=True))
    at = dims[key]
    if not isinstance(whole[at], slice):
        return None
    of_rows = tuple(slice(None) if place == at else one for place, one in enumerate(whole))
    now = sum(not isinstance(one, int) for one in whole[:at])
    dropped = followed.dropped
    found = replace(
        followed,
        scores=scores[of_rows],
        key=now,
        dropped=None if dropped is None else dropped[of_rows],
    )
    if any(_is_cut(whole[place], size) for place, size in sizes.items() if place != at):
        found = replace(found, source=followed.source.part(piece, found.scores, now))
    keys = range(sizes[at])[whole[at]]
    return found if len(keys) == sizes[at] else _of_keys(found, keys)


def _is_cut(one: Any, size: int) -> bool:
    return isinstance(one, int) or len(range(size)[one]) < size


def _of_keys(followed: Followed, keys: range) -> Followed | None:
    """Follow a range of the keys."""
    if keys.step != 1 or not len(keys):
        return None
    scores, key = followed.scores, followed.key
    size = scores.shape[key]
    others = [scores.narrow(key, 0, keys.start), scores.narrow(key, keys.stop, size - keys.stop)]
    if followed.dropped is not None:
        others.append(followed.dropped)
    columns = (followed.columns or range(size))[keys.start : keys.stop]
    return replace(
        followed,
        scores=scores.narrow(key, keys.start, len(keys)),
        dropped=torch.cat([x for x in others if x.shape[key]], key),
        columns=columns,
    )


def pieces(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], some: list[Tensor]
) -> list[tuple[Any, ...]] | None:
    """Return the index by which each piece of a tensor is taken; None if a function takes none."""
    name = getattr(func, "__name__", "")
    if name not in _SPLITS:
        return None
    place = 1 if name in ("unbind", "__iter__") else 2
    dim = kwargs.get("dim", args[place] if len(args) > place else 0)
    before = (slice(None),) * (dim % args[0].dim())
    if place == 1:
        return [(*before, number) for number in range(len(some))]
    found, start = [], 0
    for piece in some:
        stop = start + piece.shape[dim]
        found.append((*before, slice(start, stop)))
        start = stop
    return found if start == args[0].shape[dim] else None


_SPLITS = frozenset(("unbind", "__iter__", "split", "chunk", "tensor_split", "split_with_sizes"))


def index_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the index that a function takes of a tensor; None if it is no such function."""
    name = getattr(func, "__name__", "")
    if func is Tensor.__getitem__:
        return args[1]
    if kwargs or name not in ("select", "narrow") or not isinstance(args[1], int):
        return None
    before = (slice(None),) * (args[1] % args[0].dim())
    if name == "select":
        return *before, args[2]
    start = args[2] % args[0].shape[args[1]] if isinstance(args[2], int) else None
    return None if start is None else (*before, slice(start, start + args[3]))


def _completed(index: Any, rank: int) -> tuple[Any, ...] | None:
    """Return an index with one entry for each dimension; None if it holds other than numbers.

    What adds a dimension stays.
    """
    given = index if isinstance(index, tuple) else (index,)
    if not all(one is None or one is Ellipsis or _is_plain(one) for one in given):
        return None
    dots = [n for n, one in enumerate(given) if one is Ellipsis] or [len(given)]
    missing = rank - sum(_is_plain(one) for one in given)
    return *given[: dots[0]], *(slice(None),) * missing, *given[dots[0] + 1 :]


def _is_plain(one: Any) -> bool:
    return isinstance(one, slice) or (isinstance(one, int) and not isinstance(one, bool))


def fits(dropped: Tensor, scores: Tensor, key: int) -> bool:
    """Return whether the scores of keys that are left out go with those of keys that are kept."""
    return dropped.dim() == scores.dim() and all(
        n == key or size == scores.shape[n] for n, size in enumerate(dropped.shape)
    )
