"""Tells what was taken from scores, or from attention, because it was not among the largest.

So is what a mask takes that was made of the attention itself, as of numbers below a least one.

A key that no query keeps is no padding, then.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.calling.raw_call import is_observed
from gattn.models.doors.functions.softmaxes.follow.following import Followed, seen_before
from gattn.models.doors.functions.softmaxes.follow.source import Ranking
from gattn.models.doors.functions.softmaxes.written import normalized
from gattn.models.read.seen_call import LEAST
from gattn.models.watch.inside import inside

RANKS = frozenset(
    getattr(of, name) for of in (torch, Tensor) for name in ("topk", "sort", "kthvalue", "argsort")
)
_NAMES = frozenset(one.__name__ for one in RANKS)
_PUTS = frozenset(
    getattr(of, name) for of in (torch, Tensor) for name in ("scatter", "scatter_add")
) | {Tensor.scatter_, Tensor.scatter_add_}


class _Last(threading.local):
    """What a model ranked last in this thread, as it was then."""

    def __init__(self) -> None:
        self.ranked: Tensor | None = None


_last = _Last()


def note(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Note what a function ranks."""
    given = args[0] if args else kwargs.get("input")
    forget()
    if isinstance(given, Tensor) and given.dim() > 1 and given.is_floating_point():
        with inside():  # A copy of attention is none of the model's.
            _last.ranked = None if owner() is None else given.detach().clone()


def forget() -> None:
    """Let go of what was ranked."""
    _last.ranked = None


def largest(scores: Tensor) -> tuple[Tensor, Ranking] | None:
    """Return scores that were ranked, and how; None if they are not what was ranked last.

    Those that are not among the largest are -inf in it, those that were masked before are finite.
    """
    before = _last.ranked
    forget()
    if before is None or before.shape != scores.shape or scores.is_meta:
        return None
    now = scores.detach()
    is_less = (now <= LEAST) & (before > LEAST)
    is_same = (now == before) | (now <= LEAST) | now.isnan()
    ranking = Ranking(before if is_observed() else None)
    if not _is_true(is_less.any() & is_same.all()) or not _are_largest(
        before, now > LEAST, is_less
    ):
        return scores, ranking
    return _marked(scores, is_less), ranking._replace(keeps=True, memory=memory_of(scores))


def of_largest(now: Followed, before: Followed, attention: Tensor, result: Tensor) -> Followed:
    """Note of attention of which some was taken if that was ranked last."""
    ranked = _last.ranked
    if ranked is None or ranked.shape != attention.shape:
        return now
    is_same = (ranked == attention) | (attention == 0) | attention.isnan()
    if not _is_true(is_same.all()):
        return now
    is_less = _taken(now, before)
    if not _are_largest(before.scores, now.scores > LEAST, is_less):
        return now
    return _ranked(before, now, is_less, result)


def of_values(now: Followed, before: Followed, mask: Sequence[Any], *, shrinks: bool) -> Followed:
    """Note of attention of which some was taken if its numbers made the mask, or it shrinks them.

    A key that is left to no query is no padding, then.
    """
    source, ranking = before.source, before.ranked
    masks = (seen_before(x) for x in mask if isinstance(x, Tensor) and not x.is_floating_point())
    if not shrinks and all(one is None or one.source.root is not source.root for one in masks):
        return now
    if ranking is None or not ranking.keeps:
        ranking = Ranking(before.scores.detach() if is_observed() else None, keeps=True)
    return replace(now, scores=_marked(before.scores, _taken(now, before)), ranking=ranking)


def _taken(now: Followed, before: Followed) -> Tensor:
    return (now.scores == -torch.inf) & (before.scores != -torch.inf)


def put_back(func: Any, picked: Followed, result: Tensor) -> Followed | None:
    """Follow the largest numbers of attention where they were put back among zeros."""
    whole, ranked = picked.whole, _last.ranked
    if func not in _PUTS or whole is None or ranked is None or whole.scores.is_meta:
        return None
    if not ranked.shape == result.shape == whole.scores.shape:
        return None
    now = result.detach()
    is_less = (now == 0) & (ranked != 0)
    if not _are_largest(whole.scores, (whole.scores > LEAST) & ~is_less, is_less):
        return None
    found = _ranked(whole, whole, is_less, result)
    if _is_true(((now == ranked) | is_less | now.isnan()).all()):
        took = whole.without(is_less, func.__name__).took
        return replace(found, unnormalized=func.__name__, took=took)
    return normalized(found, result)


def _ranked(before: Followed, now: Followed, is_less: Tensor, result: Tensor) -> Followed:
    scores = before.source.scores.detach() if is_observed() else None
    source = before.source
    ranking = Ranking(scores, keeps=True, memory=memory_of(result))
    if source.read_by in _NAMES:  # What it keeps is what meets the values.
        source.read_by = ""
    return replace(now, scores=_marked(before.scores, is_less), ranking=ranking)


def _are_largest(scores: Tensor, is_kept: Tensor, is_less: Tensor) -> bool:
    """Return whether each row keeps its largest scores, as many as others do if it has as many.

    What a mask takes afterwards, such as padding, is not told from what is not among the largest.
    """
    scores = scores.detach()
    least = scores.masked_fill(~is_kept, torch.inf).amin(-1, keepdim=True)
    counts, live = is_kept.sum(-1), (is_kept | is_less).sum(-1)
    are_most = (scores <= least) | ~is_less | scores.isnan()
    return _is_true(are_most.all() & (counts >= live.clamp(max=counts.amax())).all())


def _is_true(x: Tensor) -> bool:
    """Read a mask of one number; that gattn does decides nothing in the model."""
    with _disable_current_modes():
        return bool(x)


def _marked(scores: Tensor, is_less: Tensor) -> Tensor:
    least = torch.finfo(scores.dtype).min
    return scores.masked_fill(scores == -torch.inf, least).masked_fill(is_less, -torch.inf)
