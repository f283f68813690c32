"""Tells the calls of a model apart: those of several threads, and calls within calls.

The frame that runs a call's hooks shows whether the call is still running: a call that ended
without a word, by KeyboardInterrupt for example, is no longer on its thread's stack.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from gattn.models.read.track.tracking import Tracker


@dataclass(eq=False)
class _Entry:
    """A running model, or a model inside it; a call begins with the outermost."""

    module: nn.Module
    frame: FrameType
    tracker: Tracker
    is_outermost: bool
    takes_gradients: bool
    contexts: Sequence[object] = ()
    mode: TorchFunctionMode | None = None


class _Thread(threading.local):
    """What runs in a thread, and the trackers of its calls, the outer ones first."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.trackers: list[Tracker] = []
        self.last: Tracker | None = None


class Calls:
    """The calls of a model that contexts follow.

    Each thread has its own, even if threads share contexts, as with `asyncio.to_thread`. A call
    within another, by a hook or by the model itself, is a separate call.

    Parameters
    ----------
    model : nn.Module
        The model.
    attending : set of str
        The names of the modules that are known to attend.
    mode : type, optional
        The mode that each thread needs in order to see the model's attention, if any.
    tracker : callable
        Makes what follows each call: `Tracker` knows transformers' models, `AnyTracker` no library.

    Attributes
    ----------
    unfollowed, learned, weighing : sequence of str
        The modules that multiply a softmax with values as no door sees, those that attend to
        parameters or buffers, and those that weigh what each token has several of, once a context
        closed.
    """

    unfollowed: Sequence[str] = ()
    learned: Sequence[str] = ()
    weighing: Sequence[str] = ()

    def __init__(
        self,
        model: nn.Module,
        attending: AbstractSet[str] = frozenset(),
        mode: type[TorchFunctionMode] | None = None,
        tracker: Callable[..., Tracker] = Tracker,
    ) -> None:
        self.model, self.attending, self.mode = model, attending, mode
        self._tracker_type, self._first = tracker, tracker(model)
        self._thread = _Thread()

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The model's modules, by name, as they were when the context opened."""
        return self._first.modules.held

    def owns(self, module: nn.Module) -> bool:
        """Return whether a module is a part of the model."""
        return self._first.modules.owns(module)

    @property
    def depth(self) -> int:
        """How many calls of this thread are running, each within the one before."""
        return sum(entry.is_outermost for entry in self._thread.entries)

    @property
    def are_running(self) -> bool:
        """Whether some call of this thread is running."""
        return bool(self._thread.entries)

    @property
    def takes_gradients(self) -> bool:
        """Whether this thread's innermost call began with gradients, which functions turn off."""
        entries = self._thread.entries
        return bool(entries) and entries[-1].takes_gradients

    @property
    def tracker(self) -> Tracker:
        """The tracker of this thread's innermost call; between calls, of the next outermost one."""
        entries = self._thread.entries
        return entries[-1].tracker if entries else self._tracker(0)

    @property
    def last(self) -> Tracker:
        """The tracker of this thread's call that ended last."""
        return self._thread.last or self.tracker

    @property
    def next(self) -> Tracker:
        """The tracker of the next call that begins in this thread."""
        return self._tracker(self.depth)

    def _tracker(self, depth: int) -> Tracker:
        trackers = self._thread.trackers
        while len(trackers) <= depth:
            trackers.append(self._tracker_type(self.model, self._first))
        return trackers[depth]

    def settle(self) -> list[tuple[Tracker, Sequence[object]]]:
        """Find the calls of this thread that broke off, and the contexts that took part in them."""
        entries = self._thread.entries
        if not entries:
            return []
        here = sys._getframe(1)
        if _runs(entries[-1].frame, here):
            return []  # Then those around it run as well.
        broken = []
        while entries and not _runs(entries[-1].frame, here):
            entry = self._pop()
            if entry.is_outermost:
                broken.append((entry.tracker, entry.contexts))
        return broken

    def enter(self, module: nn.Module, frame: FrameType) -> Tracker | None:
        """Note that the model, or a model inside it, runs; if a call begins, give its tracker."""
        entries = self._thread.entries
        inner = {id(entry.module) for entry in entries if entry.tracker is self.tracker}
        is_outermost = not entries or module is self.model or id(module) in inner
        tracker = self._tracker(self.depth) if is_outermost else self.tracker
        begun = torch.is_grad_enabled()
        entries.append(_Entry(module, frame, tracker, is_outermost, begun))
        return tracker if is_outermost else None

    def begin(self, contexts: Sequence[object]) -> None:
        """Note which contexts take part in the call that has just begun."""
        self._thread.entries[-1].contexts = contexts

    def has(self, context: object) -> bool:
        """Return whether a context takes part in the present call; those opened later do not."""
        for entry in reversed(self._thread.entries):
            if entry.is_outermost:
                return context in entry.contexts
        return True

    def watch_thread(self) -> None:
        """Enter the mode until the call that has just begun ends, unless the thread is in it.

        Modes do not follow contexts that are handed to another thread.
        """
        if self.mode is None or any(
            isinstance(mode, self.mode) for mode in _get_current_function_mode_stack()
        ):
            return
        mode = self.mode()
        mode.__enter__()
        self._thread.entries[-1].mode = mode

    def leave(self, frame: FrameType) -> tuple[Tracker, Sequence[object]] | None:
        """Note that what entered from a frame ended; give the call that ends with it, if any."""
        entries = self._thread.entries
        if not entries or entries[-1].frame is not frame:
            return None
        entry = self._pop()
        if not entry.is_outermost:
            return None
        self._thread.last = entry.tracker
        return entry.tracker, entry.contexts

    def _pop(self) -> _Entry:
        entry = self._thread.entries.pop()
        if entry.mode is not None:
            _take_out(entry.mode)
        if entry.is_outermost:
            entry.tracker.stop()
        return entry


def _runs(frame: FrameType, here: FrameType) -> bool:
    """Return whether a frame is on the stack."""
    one: FrameType | None = here
    while one is not None and one is not frame:
        one = one.f_back
    return one is not None


def _take_out(mode: TorchFunctionMode) -> None:
    """Leave a mode, wherever it is among this thread's modes.

    An interrupt may have left it there, and other modes may have been entered or left since.
    """
    above: list[TorchFunctionMode] = []
    if not any(known is mode for known in _get_current_function_mode_stack()):
        return
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
