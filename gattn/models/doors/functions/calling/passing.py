"""Goes on after a call of attention that nobody edits or looks at, without reading it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import is_observed
from gattn.models.read.seen_call import LEAST
from gattn.models.read.track.runs import runs
from gattn.models.watch.contexts import present, settle

_is_batched = torch._C._functorch.is_batchedtensor


def passes(
    module: nn.Module,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *rest: Any,
    **named: Any,
) -> bool:
    """Go on after a call in which whole texts read themselves, if no context takes part in it.

    It is counted. False if it must be read for that, or by some context.
    """
    return attn_mask is None and _go_on(module, output, query.shape[-2], key.shape[-2])


def passes_by_scores(module: nn.Module, output: Tensor, value: Tensor, scores: Tensor) -> bool:
    """Go on likewise after a call of which scores are known, if none of them is masked."""
    sizes = output.shape[-2], value.shape[-2]
    return not scores.is_meta and _go_on(module, output, *sizes, scores.detach())


def _go_on(
    module: nn.Module, output: Tensor, queries: int, keys: int, scores: Tensor | None = None
) -> bool:
    if is_observed() or _is_batched(output) or output.is_complex():
        return False
    found = present()
    calls = found[0][0]
    for other, _ in found:
        if other is not calls:
            return False
    settle(calls)
    tracker, part = calls.tracker, runs.count(module)
    place = tracker.whole(module, part, output.shape[:-2], queries, keys)
    if place is None:
        return False
    for _, context in found:
        if calls.has(context) and not context.ignores(place):
            return False
    if scores is not None and not bool((scores > LEAST).all()):
        return False
    runs.next(module)
    tracker.go_on(module, part, place)
    return True
