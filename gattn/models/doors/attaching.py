"""Lets contexts take part in the calls of a model, through the doors that show its attention.

Neither the model nor its configuration is changed, apart from hooks that tell when a call begins;
compiled code is bypassed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from gattn.models.doors import interface, searches
from gattn.models.doors.attending import attending, is_as_any, routes, unseen
from gattn.models.doors.graphs import own_layers, segments, written_out  # noqa: F401
from gattn.models.load.loading import is_transformers
from gattn.models.load.walking import modules_of
from gattn.models.read.on_graphs import merging
from gattn.models.read.track.any_library.any_model import AnyTracker
from gattn.models.read.track.runs import runs
from gattn.models.read.track.tracking import Tracker
from gattn.models.read.track.unrouted import UnroutedTracker
from gattn.models.watch.calls import Calls
from gattn.models.watch.compiling import bypass_compiled, restore_compiled
from gattn.models.watch.contexts import Context, close, join, present
from gattn.models.watch.model_hooks import hooked

_lock = Lock()
_number = 0
_hooks: WeakKeyDictionary[nn.Module, tuple[int, list[Any]]] = WeakKeyDictionary()


@contextmanager
def attached(
    model: nn.Module,
    context: Context,
    prove: Callable[..., Any] | None = None,
    is_any: bool | None = None,
) -> Iterator[Calls]:
    """Let a context take part in each call of a model, which runs as written.

    `prove` proves what the attention of a model means that does not route it, and `is_any` says
    whether it is read as one of any library, which its class tells otherwise.
    """
    known = [calls for calls, _ in present() if calls.model is model]
    calls = known[0] if known else _calls(model, prove, is_any)
    join(calls, context)
    with ExitStack() as stack:
        stack.enter_context(own_layers.watched())
        stack.callback(close, calls, context)
        _install(calls)
        stack.callback(_uninstall, model)
        if calls.mode is not None:
            stack.enter_context(calls.mode())
        yield calls


def _calls(model: nn.Module, prove: Callable[..., Any] | None, is_any: bool | None) -> Calls:
    is_any = is_as_any(model) if is_any is None else is_any
    if not is_any and routes(model) and not unseen(model):
        return Calls(model, attending(model), None, Tracker)
    from gattn.models.doors.functions.mode import FunctionMode

    if is_any:
        return Calls(model, frozenset(), FunctionMode, partial(AnyTracker, prove=prove))
    if not routes(model):
        tracker = partial(UnroutedTracker, prove=prove)
        return Calls(model, attending(model), FunctionMode, tracker)
    return Calls(model, attending(model), FunctionMode, Tracker)


def _install(calls: Calls) -> None:
    global _number
    with _lock:
        bypass_compiled(lambda: _number > 0)
        for library in (interface, searches, segments):
            library.watch()  # It may have been loaded since the first context opened.
        _number += 1
        count, handles = _hooks.get(calls.model, (0, []))
        handles = handles or hooked(
            calls.model,
            is_transformers,
            calls.attending,
            calls.modules,
            counts_runs=calls.mode is not None,
        )
        _hooks[calls.model] = count + 1, handles


def _uninstall(model: nn.Module) -> None:
    global _number
    with _lock:
        _number -= 1
        if _number == 0:
            interface.leave()
            segments.leave()
            searches.leave()
            merging.forget()
            restore_compiled()
        count, handles = _hooks.pop(model)
        if count > 1:
            _hooks[model] = count - 1, handles
            return
        for handle in handles:
            handle.remove()
    if runs:  # Of copies of the model, parts ran by themselves.
        runs.clear(map(id, modules_of(model)))
