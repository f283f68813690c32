"""Looks at the numbers of attention calls: are they finite, and softmaxes of their scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.probing.one_run.inputs import leaves, numbers_of
from gattn.models.read.seen_call import LEAST
from gattn.normalizers.base import widened

Place = tuple[str, int]

_INPUTS = (
    "its inputs hold NaN or infinity, with which nothing can be proved; give it finite numbers"
)
_CALLS = (
    "its queries, keys, values or scores are NaN or infinite, with which nothing can be proved; "
    "look for NaN, infinity or huge numbers in the weights and inputs"
)
_HUGE = (
    f"its scores exceed {-LEAST:.0f}, so that masks, which add as large negative numbers, cannot "
    "be told from scores; look for huge numbers in the weights and inputs"
)


class Numbers:
    """What the numbers of one run of a model tell.

    `infinite` says what is not finite, if anything; `wrong` names the calls whose attention is not
    the softmax of their scores, by their places. What was found `is_passing` if other inputs of
    the same shape may do better.

    Parameters
    ----------
    given
        What the model is called with.
    """

    def __init__(self, given: Any) -> None:
        tensors = [x for x in leaves(given) if isinstance(x, Tensor)]
        self.infinite = _INPUTS if any(_is_broken(x) for x in tensors) else ""
        self.wrong: dict[Place, str] = {}
        self.is_passing = bool(self.infinite)

    def take(self, call: RawCall, place: Place) -> None:
        """Look at a call of attention."""
        vectors = [x for x in (call.query, call.key, call.value) if x is not None]
        added = [x for x in (call.scores, call.mask) if x is not None]
        is_finite = all(bool(torch.isfinite(x).all()) for x in vectors)
        if not is_finite or any(map(_is_broken, added)):
            self.infinite, self.is_passing = self.infinite or _CALLS, True
        elif call.scores is not None and bool((call.scores > -LEAST).any()):
            self.wrong[place], self.is_passing = _HUGE, True
        elif not call.altered and not call.dropout and (reason := _difference(call)):
            self.wrong[place] = reason

    def refuse(self, layouts: dict[Place, Any], reasons: dict[Place, str]) -> None:
        """Refuse the calls whose numbers are wrong, and say so if numbers are why others are."""
        for place, reason in self.wrong.items():
            layouts.pop(place, None)
            reasons[place] = reason
        for place in reasons if self.infinite else ():
            reasons[place] = self.infinite


def _is_broken(x: Tensor) -> bool:
    """Return whether numbers are NaN or infinite; masks may hold minus infinity."""
    if x.is_nested or not x.is_floating_point():
        return False
    x = numbers_of(x.detach())
    return bool((x.isnan() | (x == torch.inf)).any())


def _difference(call: RawCall) -> str:
    """Say where the attention that met the values is not the softmax of the scores."""
    if call.scores is None or call.weights is None:
        return ""
    scores, given = widened(call.scores.detach()), widened(call.weights.detach())
    is_read = (scores > -torch.inf).any(-1, keepdim=True)
    kept, dropped = torch.where(is_read, scores, 0.0), call.dropped
    if dropped is not None:  # They take their share, without a value.
        kept = torch.cat([kept, widened(dropped.detach()).expand(*kept.shape[:-1], -1)], -1)
    wanted = kept.softmax(-1)[..., : scores.shape[-1]]
    error = torch.where(is_read, (wanted - given).abs(), 0.0)
    kinds = {x.dtype for x in (call.scores, call.weights, call.value, call.output)}
    most = 1e-2 if kinds & {torch.float16, torch.bfloat16} else 1e-4
    if not error.numel() or float(error.max()) <= most:
        return ""
    row = int((error > most).nonzero()[0][-2])
    return (
        "its attention is changed between its softmax and its values in a way that torch does not "
        f"tell, as by .data, NumPy or rounding: that of query {row} is off by "
        f"{float(error.max()):.1e}. Change it by torch's functions on the tensor itself"
    )
