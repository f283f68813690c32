"""Opens contexts on live models, after proving that their attention can be read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from gattn.models.doors.attaching import attached
from gattn.models.doors.attending import unseen
from gattn.models.doors.proof.kinds import kinds_of
from gattn.models.doors.proof.plan import plan_of
from gattn.models.load.loading import as_written, is_transformers
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import Context


@contextmanager
def opened(model: nn.Module, context: Context) -> Iterator[Calls]:
    """Let a context take part in each call of the model.

    Contexts nest, and take part only in calls of their own thread or task, and of those that copy
    its context variables. Whatever does not come through
    transformers' interface is proved when the model is called.
    """
    model = as_written(model)
    is_transformer = is_transformers(model)
    parts, prove = (unseen(model), kinds_of) if is_transformer else ([], plan_of)
    with context.watching(model), attached(model, context, prove) as calls:
        yield calls
        shown = calls.last.layers.shown
    if shown and (missed := [part for part in parts if part.split(" (")[0] not in shown]):
        _warn(model, missed)


def _warn(model: nn.Module, missed: list[str]) -> None:
    warnings.warn(
        f"{len(missed)} modules of {type(model).__name__} do not show their attention, such as "
        f"{missed[0]}: gattn can neither show nor edit it.",
        stacklevel=5,
    )
