"""Walks up the stack of calls: who called, and which `generate` of transformers is under way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from torch import nn


def callers() -> Iterator[FrameType]:
    """Walk up the stack of calls, from the caller of the function that asks.

    A frame whose own variables are read while one of them is the frame would never be freed.
    """
    frame: FrameType | None = sys._getframe(1).f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def generation_frames(model: nn.Module) -> Iterator[tuple[str, FrameType]]:
    """Walk up transformers' own methods that run a model, or one that holds it or is in it.

    A user's function is none of these, whatever its name.
    """
    for frame in callers():
        name, home = frame.f_code.co_name, str(frame.f_globals.get("__name__"))
        # Some models have a `generate` of their own.
        if home.startswith("transformers." if name == "generate" else "transformers.generation."):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and _are_of_one(owner, model):
                yield name, frame


def _are_of_one(one: nn.Module, other: nn.Module) -> bool:
    """Say whether a model is another, holds it, or is in it."""
    return (
        one is other
        or any(module is other for module in one.modules())
        or any(module is one for module in other.modules())
    )
