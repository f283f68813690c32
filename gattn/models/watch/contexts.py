"""Contexts, which take part in the calls of a model while they are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.calls import Calls

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit
    from gattn.models.load.encoding import Encoding
    from gattn.models.read.reading import Reading


class Context:
    """What an open context does; the base does nothing."""

    is_closed = False
    depth = 0
    """How many calls of the model it was opened within."""
    edits_attention = False
    """Whether it may edit attention."""
    hears_parts = False
    """Whether it puts what heads read without parts of the stream in place of queries and keys."""
    reads_one_call = False
    """Whether it ignores calls within the one that it reads."""
    encodings: Sequence[Encoding] | None = None
    """The sequences that run, in the order of the batch, if they are known as texts."""

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Watch what else it needs of a model while it is open."""
        return nullcontext()

    def begin(self, tracker: Tracker) -> None:
        """Learn that a call of the model begins."""

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Return the edits of each element of a call's batch; an empty list if there are none."""
        return []

    def met(self, readings: Sequence[Reading], tracker: Tracker) -> None:
        """Look at an edited call."""

    def wants(self, place: Place) -> bool:
        """Return whether it looks at a call."""
        return False

    def ignores(self, place: Place) -> bool:
        """Return whether it neither edits a call nor looks at it, as its place tells."""
        return type(self).edits is Context.edits and not self.wants(place)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Look at a call, read as graph attention with the edits of all contexts."""

    def end(self, tracker: Tracker, result: Any) -> None:
        """Learn what a call of the model returned."""

    def broke(self, tracker: Tracker) -> None:
        """Learn that a call of the model broke off: it raised, or was interrupted."""

    def search(self, tracker: Tracker) -> None:
        """Learn that a search begins, which runs more sequences than it returns."""

    def returned(self, tracker: Tracker, sequences: Tensor, prompts: Tensor, beams: int) -> None:
        """Learn which sequences (sequences, tokens) a search returned, with `beams` per text."""


_open: ContextVar[tuple[tuple[Calls, Context], ...]] = ContextVar("contexts", default=())


def join(calls: Calls, context: Context) -> None:
    """Let a context take part in the calls of a model that begin from now on."""
    settle(calls)
    context.depth = calls.depth
    _open.set((*present(), (calls, context)))


def close(calls: Calls, context: Context) -> None:
    """End a context's part in calls."""
    settle(calls)
    context.is_closed = True
    _open.set(present())


@contextmanager
def without_contexts() -> Iterator[None]:
    """Suspend all open contexts."""
    around = _open.set(())
    try:
        yield
    finally:
        _open.reset(around)


def present() -> tuple[tuple[Calls, Context], ...]:
    """Return the contexts that are open in this thread or task, the outermost first.

    Contexts may close in any order, and a task inherits those of the task that started it, which
    may have closed them since.
    """
    found = _open.get()
    for _, context in found:
        if context.is_closed:
            return tuple(entry for entry in found if not entry[1].is_closed)
    return found


def names_shown(
    tracker: Tracker, stack: str, sequence: int, *, is_query: bool
) -> Sequence[str] | None:
    """Name a sequence's tokens as in its text, if a context that runs it knows the text."""
    for calls, context in present():
        encodings = context.encodings if calls.tracker is tracker else None
        if encodings is not None and sequence < len(encodings):
            names = encodings[sequence].names(stack)
            found: Sequence[str] = names.get("query_tokens" if is_query else "", names["tokens"])
            return found
    return None


def takes_part(context: Context) -> Tracker | None:
    """Return the tracker of the present call, if a context is open here and reads that call."""
    for calls, known in present():
        if known is context:
            settle(calls)
            return calls.tracker if calls.has(context) else None
    return None


def tracker_of(context: Context) -> Tracker:
    """Return the tracker of the call whose attention a context is being shown."""
    return next(calls for calls, known in present() if known is context).tracker


def settle(calls: Calls) -> None:
    """Tell the contexts which calls of this thread broke off."""
    for tracker, contexts in calls.settle():
        for _, context in present():
            if any(known is context for known in contexts):
                context.broke(tracker)
