"""Tells contexts which sequences a search of `generate` returned.

A search, by beams or with drafts, runs more than it returns, so `GenerationMixin`'s methods are
wrapped while a context is open, as the attention interface is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.hugging_face.generating import SEARCHES
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import Context, present, settle

_originals: list[tuple[Any, str, Callable[..., Any]]] = []


def watch() -> None:
    """Wrap the searches, if they are loaded: without them there is no model that searches."""
    if _originals or "transformers.generation.utils" not in sys.modules:
        return
    from transformers import GenerationMixin

    for name in SEARCHES:
        _originals.append((GenerationMixin, name, getattr(GenerationMixin, name)))
        setattr(GenerationMixin, name, _watched(_originals[-1][-1]))


def leave() -> None:
    """Put them back."""
    while _originals:
        mixin, name, search = _originals.pop()
        setattr(mixin, name, search)


def _watched(search: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(search)
    def run(model: Any, *args: Any, **kwargs: Any) -> Any:
        entries = _entries(model)
        if not entries:
            return search(model, *args, **kwargs)
        given = inspect.signature(search).bind(model, *args, **kwargs).arguments
        settings = given["generation_config"]
        if getattr(settings, "assistant_early_exit", None) is not None:
            raise CaptureError(
                "The model drafts with its own first layers (assistant_early_exit), so its calls "
                "are those of two models: use another model as the assistant, or none."
            )
        for tracker, context in entries:
            context.search(tracker)
        result = search(model, *args, **kwargs)
        sequences = result if isinstance(result, Tensor) else result.sequences
        beams = int(getattr(settings, "num_beams", 1) or 1)
        for tracker, context in entries:
            if not context.is_closed:
                context.returned(tracker, sequences, given["input_ids"], beams)
        return result

    return run


def _entries(model: Any) -> list[tuple[Tracker, Context]]:
    """Return the contexts of the model that generates, or of its parts, and their trackers.

    A context that reads one call ignores those within it.
    """
    parts = list(model.modules())
    found = [
        (calls, context)
        for calls, context in present()
        if calls.owns(model) or any(part is calls.model for part in parts)
    ]
    for calls, _ in found:
        settle(calls)
    return [
        (calls.next, context)
        for calls, context in found
        if not context.reads_one_call or context.depth == calls.depth
    ]
