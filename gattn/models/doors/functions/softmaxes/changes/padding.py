"""Follows softmaxes that functions join with zeros, as of queries that read nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.softmaxes.changes.masking import are_learned
from gattn.models.doors.functions.softmaxes.follow.following import Followed, seen_before

_JOINS = frozenset((torch.cat, torch.concat, torch.concatenate))


def padded(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> Followed | None:
    """Say what a function made of a softmax if it only joined it with zeros: scores of -inf."""
    if followed.altered or not result.is_floating_point():
        return None
    with _disable_current_modes():  # What follows is no part of the model.
        if func in _JOINS:
            found = _joined(followed, *args, **kwargs)
        elif func is functional.pad:
            found = _filled(followed, *args, **kwargs)
        else:
            return None
    return found if found is not None and found.scores.shape == result.shape else None


def _joined(
    followed: Followed, tensors: Sequence[Tensor], dim: int = 0, **_: Any
) -> Followed | None:
    own = [x for x in tensors if seen_before(x) is not None]
    others = [x for x in tensors if x is not own[0]] if own else []
    if len(own) != 1 or len(others) != len(tensors) - 1 or are_learned(others):
        return None
    if any(bool((x != 0).any()) for x in others):
        return None
    dim, key = dim % own[0].dim(), followed.key

    def joined(mine: Tensor) -> Tensor:
        parts = []
        for x in tensors:
            sizes = list(mine.shape)
            sizes[dim] = x.shape[dim]
            parts.append(mine if x is own[0] else mine.new_full(sizes, -torch.inf))
        return torch.cat(parts, dim)

    dropped = followed.dropped
    if dropped is not None and dim != key:
        dropped = joined(dropped)
    return replace(followed, scores=joined(followed.scores), dropped=dropped, spread=None)


def _filled(
    followed: Followed,
    input: Tensor,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Followed | None:
    if mode != "constant" or value or min(pad, default=0) < 0:
        return None
    scores, key = followed.scores, followed.key
    dropped = followed.dropped
    if dropped is not None:
        at = 2 * (scores.dim() - 1 - key)
        beside = [0 if at <= n < at + 2 else size for n, size in enumerate(pad)]
        dropped = functional.pad(dropped, beside, value=-torch.inf)
    scores = functional.pad(scores, list(pad), value=-torch.inf)
    return replace(followed, scores=scores, dropped=dropped, spread=None)
