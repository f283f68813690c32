"""Warns of what a model makes of scores beside its attention, where edits do not reach."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from gattn.checks import warn
from gattn.models.doors.functions.calling.raw_call import RawCall, named
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import present

_BESIDE = (
    "Beside the softmax that meets the values, the model computes {} of the scores of {}{}. Edits "
    "do not reach that: it is as it was. What comes of the values is edited."
)


@dataclass(frozen=True, eq=False)
class _Beside:
    """What was made of the scores of attention that was edited; it `awaits` the end of calls."""

    module: nn.Module
    names: Collection[str]
    awaits: set[Tracker]


class _All(threading.local):
    def __init__(self) -> None:
        self.known: list[_Beside] = []

    def ended(self, tracker: Tracker) -> list[_Beside]:
        """Take out those whose last call ends."""
        found = [one for one in self.known if one.awaits == {tracker}]
        for one in self.known:
            one.awaits.discard(tracker)
        self.known = [one for one in self.known if one.awaits]
        return found


_all = _All()


def note_edited(call: RawCall) -> None:
    """Note what is made of the scores of a call whose attention was edited."""
    found = [calls.tracker for calls, _ in present() if calls.owns(call.module)]
    place, is_early = (call.module, call.ordinal), call.is_edited_early
    if names := {name for one in found for name in one.beside(*place, is_early=is_early)}:
        _all.known.append(_Beside(call.module, sorted(names), editing(call.module)))


def editing(module: nn.Module) -> set[Tracker]:
    """Return the calls in which contexts may edit a module's attention."""
    owned = [known for known in present() if known[0].owns(module)]
    return {calls.tracker for calls, context in owned if context.edits_attention}


def forget_beside(tracker: Tracker) -> None:
    """Note that a call broke off."""
    _all.ended(tracker)


def warn_of_beside(tracker: Tracker) -> None:
    """Warn of what a call has made of the scores of attention that was edited."""
    if found := _all.ended(tracker):
        others = len({one.module for one in found}) - 1
        more = f", and of {others} more" if others else ""
        names = " and ".join(found[0].names)
        warn(_BESIDE.format(names, named(found[0].module), more))
