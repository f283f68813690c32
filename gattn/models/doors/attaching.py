"""Lets contexts take part in the calls of a model, through the doors that show its attention.

Neither the model nor its configuration is changed, apart from hooks that tell when a call begins;
compiled code is bypassed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from gattn.models.doors import interface, searches
from gattn.models.doors.attending import attending, routes
from gattn.models.doors.graphs import dense_gat, segments
from gattn.models.doors.softmaxes import SoftmaxMode
from gattn.models.watch.calls import Calls
from gattn.models.watch.compiling import bypass_compiled, restore_compiled
from gattn.models.watch.contexts import Context, close, join, present
from gattn.models.watch.model_hooks import hooked

_lock = Lock()
_number = 0
_hooks: WeakKeyDictionary[nn.Module, tuple[int, list[Any]]] = WeakKeyDictionary()


@contextmanager
def attached(model: nn.Module, context: Context) -> Iterator[Calls]:
    """Let a context take part in each call of a model, which runs as written."""
    known = [calls for calls, _ in present() if calls.model is model]
    mode = None if routes(model) else SoftmaxMode
    calls = known[0] if known else Calls(model, attending(model), mode)
    join(calls, context)
    with ExitStack() as stack:
        stack.callback(close, calls, context)
        _install(calls)
        stack.callback(_uninstall, model)
        if calls.mode is not None:
            stack.enter_context(calls.mode())
        yield calls


def _install(calls: Calls) -> None:
    from transformers import PreTrainedModel

    global _number
    with _lock:
        bypass_compiled(lambda: _number > 0)
        if _number == 0:
            interface.watch()
            segments.watch()
            dense_gat.watch()
            searches.watch()
        _number += 1
        count, handles = _hooks.get(calls.model, (0, []))
        handles = handles or hooked(calls.model, PreTrainedModel, calls.attending)
        _hooks[calls.model] = count + 1, handles


def _uninstall(model: nn.Module) -> None:
    global _number
    with _lock:
        _number -= 1
        if _number == 0:
            interface.leave()
            segments.leave()
            dense_gat.leave()
            searches.leave()
            restore_compiled()
        count, handles = _hooks.pop(model)
        if count > 1:
            _hooks[model] = count - 1, handles
            return
        for handle in handles:
            handle.remove()
