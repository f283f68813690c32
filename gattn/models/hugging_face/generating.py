"""Knows which step of `generate` runs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from gattn.models.hugging_face.frames import generation_frames

SEARCHES = ("_beam_search", "_assisted_decoding")
"""The methods of `GenerationMixin` that run more sequences than they return."""


class Step(NamedTuple):
    """What a call is to `generate`, if that makes it."""

    is_prompt: bool | None = None
    unfinished: Tensor | None = None
    reorders: bool = False


def present_step(model: nn.Module) -> Step:
    """Look up the stack of calls for what `generate` knows of this one.

    It feeds prompts in pieces of any length, and goes on with rows that have ended, as padding.
    Searches take rows from others, and several tokens at once.
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
    """Look up the stack of calls for a generation that cuts its prompt into chunks."""
    for name, frame in generation_frames(model):
        if name == "_prefill":
            config = frame.f_locals.get("generation_config")
            return getattr(config, "prefill_chunk_size", None) is not None
    return False
