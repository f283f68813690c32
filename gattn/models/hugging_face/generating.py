"""Walks up the stack of calls: who called, and which step of transformers' `generate` runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from torch import Tensor, nn

SEARCHES = ("_beam_search", "_assisted_decoding")
"""The methods of `GenerationMixin` that run more sequences than they return."""


class Step(NamedTuple):
    """What a call is to `generate`, if that makes it."""

    is_prompt: bool | None = None
    unfinished: Tensor | None = None
    reorders: bool = False


def present_step(model: nn.Module) -> Step:
    """Look up the call stack for what `generate` knows about this call.

    It feeds prompts in pieces of any length, and continues rows that have ended with padding.
    Searches reorder rows, and feed several tokens at once.
    """
    is_prompt = False
    for name, frame in generation_frames(model):
        is_prompt |= name.startswith("_prefill")
        if name in SEARCHES:
            return Step(is_prompt, reorders=True)
        unfinished = frame.f_locals.get("unfinished_sequences") if name == "_sample" else None
        if isinstance(unfinished, Tensor) and unfinished.dim() == 1:
            return Step(is_prompt, unfinished.bool().cpu())
    return Step(True if is_prompt else None)


def comes_in_chunks(model: nn.Module) -> bool:
    """Look up the call stack for a generation that feeds its prompt in chunks."""
    for name, frame in generation_frames(model):
        if name == "_prefill":
            config = frame.f_locals.get("generation_config")
            return getattr(config, "prefill_chunk_size", None) is not None
    return False


def callers() -> Iterator[FrameType]:
    """Walk up the call stack, from the caller of the function that asks.

    A frame would never be freed if its variables were read while one of them is the frame itself.
    """
    frame: FrameType | None = sys._getframe(1).f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def generation_frames(model: nn.Module) -> Iterator[tuple[str, FrameType]]:
    """Walk up transformers' own methods that run a model, one that holds it, or one inside it.

    Functions of users do not count, whatever their names.
    """
    for frame in callers():
        name, home = frame.f_code.co_name, str(frame.f_globals.get("__name__"))
        # Some models have a `generate` of their own.
        if home.startswith("transformers." if name == "generate" else "transformers.generation."):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and _are_of_one(owner, model):
                yield name, frame


def _are_of_one(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two models are the same, or one is inside the other."""
    return (
        one is other
        or any(module is other for module in one.modules())
        or any(module is one for module in other.modules())
    )
