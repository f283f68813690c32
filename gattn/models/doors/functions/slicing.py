"""Follows a slice of a softmax's keys: the others take their share, and it brings no value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.following import Followed


def sliced(index: Any, followed: Followed) -> Followed | None:
    """Say what an index makes of a softmax, if it only adds dimensions or takes a range of keys.

    None if it does something else.
    """
    scores, key = followed.scores, followed.key
    whole = _completed(index, scores.dim())
    if whole is None:
        return None
    dims = [place for place, one in enumerate(whole) if one is not None]
    sizes = dict(zip(dims, scores.shape, strict=True))
    kept = {place: range(size)[whole[place]] for place, size in sizes.items()}
    now = dims[key]
    if any(len(kept[place]) < size for place, size in sizes.items() if place != now):
        return None
    keys = kept[now]
    if len(keys) == sizes[now]:
        dropped = None if followed.dropped is None else followed.dropped[whole]
        return replace(followed, scores=scores[whole], key=now, dropped=dropped)
    if keys.step != 1 or not len(keys):
        return None
    others = [
        scores.narrow(key, 0, keys.start),
        scores.narrow(key, keys.stop, sizes[now] - keys.stop),
    ]
    if followed.dropped is not None:
        others.append(followed.dropped)
    rest = [*whole[:now], slice(None), *whole[now + 1 :]]
    dropped = torch.cat([x for x in others if x.shape[key]], key)[tuple(rest)]
    columns = followed.columns or range(sizes[now])
    return replace(
        followed, scores=scores[whole], key=now, dropped=dropped, columns=columns[whole[now]]
    )


def _completed(index: Any, rank: int) -> tuple[Any, ...] | None:
    """Return an index with a slice for each dimension; None if it holds anything else than these.

    What adds a dimension stays.
    """
    given = index if isinstance(index, tuple) else (index,)
    if not all(one is None or one is Ellipsis or isinstance(one, slice) for one in given):
        return None
    dots = [n for n, one in enumerate(given) if one is Ellipsis] or [len(given)]
    missing = rank - sum(isinstance(one, slice) for one in given)
    return *given[: dots[0]], *(slice(None),) * missing, *given[dots[0] + 1 :]


def fits(dropped: Tensor, scores: Tensor, key: int) -> bool:
    """Return whether the scores of keys that are left out go with those of keys that are kept."""
    return dropped.dim() == scores.dim() and all(
        n == key or size == scores.shape[n] for n, size in enumerate(dropped.shape)
    )
