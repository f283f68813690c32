"""Tells open contexts which sequences a search ended with: beams, and drafts that were checked.

Such a search runs more than it returns, so `GenerationMixin`'s methods are wrapped while a context
is open, as the attention interface is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gattn.errors import CaptureError

if TYPE_CHECKING:
    from gattn.models.routing import Context
    from gattn.models.tracking import Tracker

_SEARCHES = ("_beam_search", "_assisted_decoding")
_originals: dict[str, Callable[..., Any]] = {}


def watch() -> None:
    """Wrap the searches."""
    from transformers import GenerationMixin

    for name in _SEARCHES:
        _originals[name] = getattr(GenerationMixin, name)
        setattr(GenerationMixin, name, _watched(_originals[name]))


def leave() -> None:
    """Put them back."""
    from transformers import GenerationMixin

    for name, search in _originals.items():
        setattr(GenerationMixin, name, search)
    _originals.clear()


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
                "The model drafts by leaving its own layers early (assistant_early_exit), so its "
                "calls are of two models: give another model as the assistant, or none."
            )
        for tracker, context in entries:
            tracker.reorders = True
            context.search()
        try:
            result = search(model, *args, **kwargs)
        finally:
            for tracker, _ in entries:
                tracker.reorders = False
        sequences = result if isinstance(result, Tensor) else result.sequences
        beams = int(getattr(settings, "num_beams", 1) or 1)
        for tracker, context in entries:
            if (tracker, context) in _entries(model):
                context.returned(sequences, given["input_ids"], beams)
        return result

    return run


def _entries(model: Any) -> list[tuple[Tracker, Context]]:
    """Give the open contexts of the model that generates, of its whole or of a part."""
    from gattn.models.routing import present

    parts = list(model.modules())
    return [
        (tracker, context)
        for tracker, context in present()
        if tracker.owns(model) or any(part is tracker.model for part in parts)
    ]
