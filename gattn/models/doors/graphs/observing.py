"""Shows a proof the calls of attention over edges, and takes what the model continues with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Protocol

from torch import Tensor, nn

from gattn.engines.call import AttentionCall
from gattn.models.read.on_graphs.seen_edges import Ends


class Observer(Protocol):
    """Sees calls of attention over edges in one run of a model."""

    def softmax(
        self, module: nn.Module, ends: Ends | None, frame: FrameType, scores: Tensor, given: Tensor
    ) -> Tensor:
        """See the softmax of a module over segments, and return what it gives instead of `given`.

        Its `ends` are None where it is no attention; `frame` called it.
        """

    def own(self, module: nn.Module, call: AttentionCall, output: Tensor) -> Tensor:
        """See a call of a layer of gattn, and return its output, or another one."""


observer: ContextVar[Observer | None] = ContextVar("observer_of_edges", default=None)


@contextmanager
def observed_edges(see: Observer) -> Iterator[None]:
    """Show all calls of attention over edges to an observer, and to nobody else."""
    token = observer.set(see)
    try:
        yield
    finally:
        observer.reset(token)
