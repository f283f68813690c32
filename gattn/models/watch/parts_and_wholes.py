"""Refuses contexts on a model and a part of it that give the same tokens other numbers."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from gattn.errors import CaptureError
from gattn.models.read.places import Place, Side
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import present


def trackers_of(module: nn.Module) -> list[Tracker]:
    """Return the trackers of all watched models that run and hold a module, the first one first."""
    owners = [calls for calls, _ in present() if calls.owns(module) and calls.are_running]
    return list(dict.fromkeys(calls.tracker for calls in owners))


def check_numbers(name: str, places: Collection[Place]) -> None:
    """Refuse a call of a module whose tokens have other numbers in one context than in another."""
    first, *others = ([*place.queries, *place.keys] for place in places)
    for other in others:
        if not all(map(_are_alike, first, other)):
            raise numbered_twice(name, "tokens")


def _are_alike(one: Side, other: Side) -> bool:
    return torch.equal(one.slots, other.slots) and torch.equal(one.at, other.at)


def numbered_twice(name: str, what: str) -> CaptureError:
    """Say that a module's tokens or nodes (`what`) have other numbers in the part and the whole."""
    return CaptureError(
        f"Contexts are open on a model and on a part of it, and {name} is in both: its {what} have "
        "other numbers in the whole, which moves or picks them before, than in the part, where "
        "they are numbered as it is given them. Open all contexts on the whole model, or all on "
        "the part."
    )
