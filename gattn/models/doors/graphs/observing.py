"""Shows a proof the calls of attention over edges, and takes what the model continues with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def values(self, query: Tensor, some: Sequence[Tensor], order: Tensor | None) -> None:
        """See what attention along listed edges into `query` is multiplied with, in some order."""

    def own(self, module: nn.Module, call: AttentionCall, output: Tensor) -> Tensor:
        """See a call of a layer of gattn, and return its output, or another one."""


observer: ContextVar[Observer | None] = ContextVar("observer_of_edges", default=None)
_is_own: ContextVar[bool] = ContextVar("is_own", default=False)


def is_own() -> bool:
    """Return whether a layer of gattn computes attention, which a proof is shown afterwards."""
    return _is_own.get()


@contextmanager
def of_own_layer() -> Iterator[None]:
    """Say that what runs is a layer of gattn."""
    token = _is_own.set(True)
    try:
        yield
    finally:
        _is_own.reset(token)


@contextmanager
def observed_edges(see: Observer) -> Iterator[None]:
    """Show all calls of attention over edges to an observer, and to nobody else."""
    token = observer.set(see)
    try:
        yield
    finally:
        observer.reset(token)
