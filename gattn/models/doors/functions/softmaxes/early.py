"""Edits softmaxes at once whose numbers are read before they meet the values.

A model may log its attention, keep a copy of it, or make something else of it on the way to the
values: what reads it then reads what an edit wrote. The call begins with the softmax, and goes on
where it meets the values.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.beside import editing
from gattn.models.doors.functions.calling.forms import FORMS, Form
from gattn.models.doors.functions.calling.handing import (
    comes_again,
    early_form,
    edited_early,
    refuse_early,
)
from gattn.models.doors.functions.calling.memory import laid_as, living, memory_of
from gattn.models.doors.functions.calling.raw_call import Early, RawCall, is_observed
from gattn.models.doors.functions.softmaxes.beside import Same
from gattn.models.doors.functions.softmaxes.follow.following import Followed, are_equal
from gattn.models.doors.functions.softmaxes.follow.source import Source
from gattn.models.doors.functions.softmaxes.products import Product
from gattn.models.read.track.tracking import Tracker

_is_batched = torch._C._functorch.is_batchedtensor


def early_of(followed: Followed, found: Product) -> Early | None:
    """Return which softmax may be edited before its product."""
    form = _form(followed, found) if is_observed() else None
    return None if form is None else Early(followed.source.number, form)


def _form(followed: Followed, found: Product) -> str | None:
    """Name the form of a softmax that meets the values as torch gave it, whole, but for a dropout.

    None if it meets them otherwise.
    """
    source, scores = followed.source, followed.source.scores
    if not source.is_plain or source.is_again or found.dropped is not None:
        return None
    ranking = followed.ranked
    if (ranking is not None and ranking.keeps) or _is_batched(scores):
        return None
    for name, form in FORMS.items():
        is_turned = source.key != scores.dim() - 1
        if form.is_turned == is_turned and are_equal(found.scores, rows := form.rows(scores)):
            return name if found.output.shape[:-1] == rows.shape[:-1] else None
    return None


def refuse_changed(followed: Followed, found: Product) -> None:
    """Refuse a softmax that was edited early, but does not meet the values as it was."""
    if _form(followed, found) is None:
        refuse_early(followed.source.module, followed.source.number)


def has_copies(followed: Followed, found: Product) -> bool:
    """Return whether numbers of a softmax are elsewhere than in what meets the values."""
    root = followed.source.root
    whole = root.attention()
    own = {memory_of(x) for x in (whole, found.operand) if x is not None}
    return not living(root.memories) <= own


def without_values(source: Source, attention: Tensor, form: Form = FORMS[""]) -> RawCall:
    """Return the call of a softmax that has not met its values."""
    rows = form.rows(attention)
    return RawCall(
        source.module,
        "softmax",
        rows.new_zeros(*rows.shape[:-2], rows.shape[-1], 0),
        rows[..., :0],
        scores=form.rows(source.scores),
        weights=rows,
        running=source.running,
        over_last=not form.is_turned,
    )


class _First(NamedTuple):
    """The first of two softmaxes that are the same, and what it was edited to, if it was.

    It `awaits` the second, or the end of calls.
    """

    source: Source
    same: Same
    edited: Tensor | None
    awaits: set[Tracker]


class _Firsts(threading.local):
    def __init__(self) -> None:
        self.known: dict[tuple[int, int], _First] = {}


_firsts = _Firsts()


def first_of(source: Source, same: Same) -> _First | None:
    """Return the softmax that a module takes once more, if it has begun."""
    number = comes_again(source.module, source.number)
    first = None if number is None else _firsts.known.pop((id(source.module), number), None)
    return first if first is not None and same.is_of(first.same) else None


def forget_firsts(tracker: Tracker) -> None:
    """Wait no more for the second of two softmaxes in a call that ended."""
    for name, first in list(_firsts.known.items()):
        if tracker in first.awaits:
            del _firsts.known[name]


def as_first(first: _First, attention: Tensor) -> Tensor:
    """Return a softmax that is taken once more, as it was edited the first time."""
    edited = first.edited
    return attention if edited is None else laid_as(edited.clone(), attention)


def begun_early(source: Source, attention: Tensor, same: Same) -> Tensor:
    """Return what a model goes on with after a softmax: edited, if it is read before it is used."""
    if is_observed():
        return attention
    with_gradients = attention.requires_grad and torch.is_grad_enabled()
    again = comes_again(source.module, source.number)
    number = source.number if again is None else again
    name = source.module, number, source.scores
    form = early_form(*name, with_gradients=with_gradients)
    if form is None:
        return attention
    source.number = number
    source.begun = call = without_values(source, attention, form)
    weights = call.weights if edited_early(call) else None
    edited = None if weights is None else form.softmax(weights)
    call.weights = None  # It lives as long as the model holds it.
    if again is not None:
        awaits = editing(source.module)
        _firsts.known[id(source.module), number] = _First(source, same, edited, awaits)
    return attention if edited is None else edited


def unedited(found: Product, dropout: float) -> tuple[Tensor, Tensor]:
    """Return attention that was edited early, and its product with values, without the edits.

    What an edit cut may have been dropped, too: such rows are edited again.
    """
    weights = found.scores.softmax(-1).to(found.weights.dtype)
    if dropout:
        weights = weights.masked_fill(found.weights == 0, 0.0) / (1 - dropout)
    return weights, (weights @ found.value).to(found.output.dtype)
