"""Edits softmaxes at once whose numbers are read before they meet the values.

A model may log its attention, keep a copy of it, or make something else of it on the way to the
values: what reads it then reads what an edit wrote. The call begins with the softmax, and goes on
where it meets the values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.handing import (
    edited_early,
    is_begun_early,
    refuse_early,
)
from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.functions.calling.raw_call import RawCall, is_observed
from gattn.models.doors.functions.softmaxes.following import Followed, softmaxes
from gattn.models.doors.functions.softmaxes.products import Product
from gattn.models.doors.functions.softmaxes.source import Source

_is_batched = torch._C._functorch.is_batchedtensor


def early_of(followed: Followed, found: Product) -> int | None:
    """Return the number of a softmax that may be edited before its product."""
    return followed.source.number if is_observed() and _is_as_it_was(followed, found) else None


def _is_as_it_was(followed: Followed, found: Product) -> bool:
    """Return whether a softmax meets the values as torch gave it, whole and unchanged."""
    source = followed.source
    if not source.is_plain or source.is_again or followed.dropout or found.dropped is not None:
        return False
    if source.ranking is not None and source.ranking.keeps:
        return False
    scores = source.scores
    if _is_batched(scores):
        return False
    is_alike = found.scores.shape == scores.shape and found.output.shape[:-1] == scores.shape[:-1]
    return is_alike and _are_equal(found.scores, scores)


def refuse_changed(followed: Followed, found: Product) -> None:
    """Refuse a softmax that was edited early, but does not meet the values as it was."""
    if not _is_as_it_was(followed, found):
        refuse_early(followed.source.module, followed.source.number)


def has_copies(followed: Followed, found: Product) -> bool:
    """Return whether numbers of a softmax are elsewhere than in what meets the values."""
    root = followed.source.root
    whole = root.attention()
    own = {memory_of(x) for x in (whole, found.operand) if x is not None}
    return any(
        one.source.root is root and (x := tensor()) is not None and memory_of(x) not in own
        for tensor, one, _ in softmaxes.known.copy().values()
    )


def _are_equal(one: Tensor, other: Tensor) -> bool:
    with _disable_current_modes():  # It is no part of the model.
        return bool(((one == other) | (one.isnan() & other.isnan())).all())


def without_values(source: Source, attention: Tensor) -> RawCall:
    """Return the call of a softmax that has not met its values."""
    return RawCall(
        source.module,
        "softmax",
        attention.new_zeros(*attention.shape[:-2], attention.shape[-1], 0),
        attention[..., :0],
        scores=source.scores,
        weights=attention,
        running=source.running,
    )


def begun_early(source: Source, attention: Tensor) -> Tensor:
    """Return what a model goes on with after a softmax: edited, if it is read before it is used."""
    if is_observed():
        return attention
    with_gradients = attention.requires_grad and torch.is_grad_enabled()
    if not is_begun_early(source.module, source.number, with_gradients=with_gradients):
        return attention
    source.begun = call = without_values(source, attention)
    return call.weights if edited_early(call) and call.weights is not None else attention


def unedited(found: Product) -> tuple[Tensor, Tensor]:
    """Return attention that was edited early, and its product with values, without the edits."""
    weights = found.scores.softmax(-1).to(found.weights.dtype)
    return weights, (weights @ found.value).to(found.output.dtype)
