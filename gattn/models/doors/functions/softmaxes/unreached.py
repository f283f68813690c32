"""Warns of attention that code has read or kept as it was before an edit, which did not reach it.

Where a model changes its attention between softmax and values, as by a mask or in its shape, edits
wait for the values. What is there by then is edited; what was made of it before is not.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gattn.checks import warn
from gattn.models.doors.functions.calling.beside import editing
from gattn.models.doors.functions.calling.memory import Memory, living, memory_of
from gattn.models.doors.functions.calling.raw_call import named
from gattn.models.doors.functions.softmaxes.follow.following import softmaxes
from gattn.models.doors.functions.softmaxes.follow.source import Source
from gattn.models.read.track.tracking import Tracker

_WAITED = (
    "{} is edited where its attention meets the values, not before: it changes its attention until "
    "then, as by a mask or in its shape, writes its softmax out, or continues a text. {} is not "
    "edited; what comes of the values is.{}"
)
_NO_GRADIENTS = " Under torch.no_grad(), so is the attention that they are multiplied with."

Memories = Collection[Memory | None]


@dataclass(frozen=True, eq=False)
class _Late:
    """A softmax that was edited where it met its values, and the memory that holds that.

    It `awaits` the end of the calls that edit it.
    """

    source: Source
    written: Memories
    awaits: set[Tracker]
    takes_gradients: bool

    @property
    def left(self) -> set[Memory]:
        """The memory that holds what was made of it before, if anything holds that."""
        return living(self.source.memories) - set(self.written)


class _Unreached(threading.local):
    def __init__(self) -> None:
        self.late: list[_Late] = []

    def ended(self, tracker: Tracker) -> list[_Late]:
        """Return the softmaxes whose last call ends."""
        found = [one for one in self.late if one.awaits == {tracker}]
        for one in self.late:
            one.awaits.discard(tracker)
        self.late = [one for one in self.late if one.awaits]
        return found


_unreached = _Unreached()


def note_late(source: Source, written: list[Tensor]) -> None:
    """Note a softmax that was edited where it met its values, and the tensors that hold that."""
    memories, awaits = {memory_of(x) for x in written}, editing(source.module)
    _unreached.late.append(_Late(source.root, memories, awaits, torch.is_grad_enabled()))


def forget_late(tracker: Tracker) -> None:
    """Note that a call broke off."""
    _unreached.ended(tracker)


def warn_of_unreached(tracker: Tracker, result: Any) -> None:
    """Warn of what a call has read, keeps or returns of attention as it was before its edits."""

    @cache
    def held() -> Memories:
        return _held(tracker.model, result)

    @cache
    def kept() -> set[Source]:
        return _kept([one for one in ended if one.takes_gradients])

    ended = _unreached.ended(tracker)
    for one in ended:
        left, given_out = one.left, one.source.given_out
        if any(memory is None or memory not in one.written for memory in given_out):
            found = "What Python got of its numbers before"
        elif left and not (
            one.takes_gradients and left.isdisjoint(held()) and one.source not in kept()
        ):
            found = "What the model keeps or returns of it"
        else:  # Gradients may need what nobody holds.
            continue
        more = _NO_GRADIENTS if one.takes_gradients else ""
        warn(_WAITED.format(named(one.source.module), found, more))


def _kept(some: Sequence[_Late]) -> set[Source]:
    """List softmaxes of which Python holds tensors that were made of them, as in lists or globals.

    All are looked for at once: it takes as long as there are objects.
    """
    left = {one.source: one.left for one in some}
    known = list(softmaxes.known.values())
    tensors, roots = [], []
    for made, followed, _ in known:
        root, x = followed.source.root, made()
        if x is not None and memory_of(x) in left.get(root, ()):
            tensors.append(x)
            roots.append(root)
    late = (followed.late for _, followed, _ in known if followed.late is not None)
    own = {id(tensors), *(id(one.args) for one in late)}
    holders = [
        one
        for one in (gc.get_referrers(*tensors) if tensors else ())
        if id(one) not in own and not type(one).__module__.startswith("gattn.")
    ]
    found = {id(x) for x in gc.get_referents(*holders)}
    return {root for x, root in zip(tensors, roots, strict=True) if id(x) in found}


def _held(model: nn.Module, result: Any) -> Memories:
    """Return the memory of tensors that modules hold as attributes, or that a call returned."""
    some = [result, getattr(result, "__dict__", None), *map(vars, model.modules())]
    return {memory_of(x) for x in tree_leaves(some) if isinstance(x, Tensor)}
