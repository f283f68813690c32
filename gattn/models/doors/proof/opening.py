"""Opens contexts on live models, after proving that their attention can be read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from gattn.models.doors.attaching import attached
from gattn.models.doors.attending import routes, unseen
from gattn.models.doors.preflight import prove
from gattn.models.doors.proof.plan import plan_of
from gattn.models.load.loading import as_written, is_transformers
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import Context, without_contexts


@contextmanager
def opened(model: nn.Module, context: Context) -> Iterator[Calls]:
    """Let a context take part in each call of the model.

    Contexts nest, and take part only in calls of their own thread or task, and of those that copy
    its context variables. A model that does not route its attention is proved first.
    """
    model = as_written(model)
    if is_transformers(model) and not routes(model):
        with without_contexts():
            prove(model)
        if missed := unseen(model):
            _warn(model, missed)
    parts = unseen(model) if is_transformers(model) and routes(model) else []
    with context.watching(model), attached(model, context, plan_of) as calls:
        yield calls
        shown, left = calls.last.layers.shown, calls.last.left_out
    if left:
        _warn_of_channels(model, left)
    if shown and (missed := [part for part in parts if part.split(" (")[0] not in shown]):
        _warn(model, missed)


def _warn(model: nn.Module, missed: list[str]) -> None:
    warnings.warn(
        f"{len(missed)} modules of {type(model).__name__} do not show their attention, such as "
        f"{missed[0]}: gattn can neither show nor edit it.",
        stacklevel=5,
    )


def _warn_of_channels(model: nn.Module, left: Sequence[str]) -> None:
    warnings.warn(
        f"{len(left)} modules of {type(model).__name__} attend over channels, or over tokens that "
        f"were mixed before, such as {left[0] or 'the model itself'}: gattn neither shows nor "
        "edits their attention, and layers are counted without them.",
        stacklevel=5,
    )
