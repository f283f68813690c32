"""Lets the open contexts take part in a call of an attention function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gattn.errors import CaptureError, ModelError
from gattn.models.edit.applying import apply
from gattn.models.load.loading import META
from gattn.models.read.places import Place
from gattn.models.read.reading import read
from gattn.models.read.routed_call import RoutedCall
from gattn.models.read.tracking import Tracker
from gattn.models.watch.contexts import Context, present, settle

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit


def take_part(call: RoutedCall) -> None:
    """Let all open contexts edit a call's output, then look at it."""
    if call.query.is_meta:
        raise ModelError(META)
    # What gattn computes is its own affair, not a part of the model's autocast.
    with torch.autocast(call.query.device.type, enabled=False):
        entries = _entries(call.module)
        if not entries:
            return
        call.name = entries[0][0].name(call.module)
        _refuse_unprovable(call)
        places: dict[Tracker, Place] = {}
        for tracker, _ in entries:
            if tracker not in places:
                places[tracker] = tracker.place(call)
        each: list[list[Edit]] = [[] for _ in range(len(call.query))]
        for tracker, context in entries:
            edits = context.edits(call, places[tracker], tracker)
            for known, more in zip(each, edits, strict=False):
                known.extend(more)
        watching = [
            (context, places[tracker])
            for tracker, context in entries
            if tracker.is_calling and context.wants(places[tracker])
        ]
        if not watching and not any(each):
            return
        tracker = entries[0][0]
        readings = read(call, places[tracker], tracker.mask(call), each)
        for _, context in entries:
            context.met(readings)
        apply(call, readings)
        for context, place in watching:
            context.see(call, place, readings)


def _refuse_unprovable(call: RoutedCall) -> None:
    """Refuse a user's own function under dropout: who attends to whom is told by its output."""
    if call.is_own and call.options.get("dropout"):
        raise CaptureError(
            f"{call.name} runs the attention function {call.implementation!r} of your own, which "
            "cannot be proved under dropout: call model.eval() or set attention_dropout=0."
        )


def _entries(module: nn.Module) -> list[tuple[Tracker, Context]]:
    """List the contexts of a module's models, with what follows the present call of each."""
    found = [(calls, context) for calls, context in present() if calls.owns(module)]
    for calls in {id(calls): calls for calls, _ in found}.values():
        settle(calls)
    return [(calls.tracker, context) for calls, context in found if calls.has(context)]
