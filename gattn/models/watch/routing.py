"""Routes the attention of live transformers models through open contexts.

Every attention module of a routed model asks ``AttentionInterface.get_interface`` which function
to call. While a context is open, what it answers is wrapped: the function that the user's model
chose still computes the output, with its own arguments and its own mask; where edits apply, the
rows that they change are then replaced; at last the open contexts are shown the call. Nothing of
the model or its configuration is touched but hooks that tell when a call of the model begins.
Compiled code is bypassed meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.read.routed_call import RoutedCall
from gattn.models.read.tracking import Tracker
from gattn.models.watch import searches
from gattn.models.watch.attending import attending, routes
from gattn.models.watch.calls import Calls
from gattn.models.watch.compiling import bypass_compiled, restore_compiled
from gattn.models.watch.contexts import Context, close, join, present, settle
from gattn.models.watch.hooks import Hook
from gattn.models.watch.softmaxes import SoftmaxMode
from gattn.models.watch.taking_part import take_part

_TO_TORCH = 2
"""How many frames the one that runs a hook is from the hook's function."""

_lock = Lock()
_number = 0
_original: Callable[..., Any] | None = None
_hooks: WeakKeyDictionary[nn.Module, tuple[int, list[Any]]] = WeakKeyDictionary()


@contextmanager
def attached(model: nn.Module, context: Context) -> Iterator[Calls]:
    """Let a context take part in each call of a model that is as it was written."""
    known = [calls for calls, _ in present() if calls.model is model]
    calls = known[0] if known else Calls(model, routes(model), attending(model))
    join(calls, context)
    with ExitStack() as stack:
        stack.callback(close, calls, context)
        _install(model)
        stack.callback(_uninstall, model)
        if not calls.is_routed:
            stack.enter_context(SoftmaxMode())
        yield calls


def _install(model: nn.Module) -> None:
    from transformers import AttentionInterface

    global _number, _original
    with _lock:
        bypass_compiled(lambda: _number > 0)
        if _number == 0:
            _original = AttentionInterface.get_interface
            AttentionInterface.get_interface = _routed(_original)  # type: ignore[method-assign]
            searches.watch()
        _number += 1
        count, handles = _hooks.get(model, (0, []))
        _hooks[model] = count + 1, handles or _hooked(model)


def _uninstall(model: nn.Module) -> None:
    from transformers import AttentionInterface

    global _number
    with _lock:
        _number -= 1
        if _number == 0:
            AttentionInterface.get_interface = _original  # type: ignore[method-assign, assignment]
            searches.leave()
            restore_compiled()
        count, handles = _hooks.pop(model)
        if count > 1:
            _hooks[model] = count - 1, handles
            return
        for handle in handles:
            handle.remove()


def _hooked(model: nn.Module) -> list[Any]:
    """Tell the contexts when the model is called, or a model inside it by itself."""
    from transformers import PreTrainedModel

    whole, handles = ref(model), []
    for module in model.modules():
        if module is model or isinstance(module, PreTrainedModel):
            enter, leave = (
                Hook(module, partial(_enter, whole)),
                Hook(module, partial(_leave, whole)),
            )
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
    for name in attending(model):
        module = model.get_submodule(name)
        handles.append(module.register_forward_pre_hook(Hook(module, partial(_ran, whole, name))))
    return handles


def _ran(model: ref[nn.Module], name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
    """Note that a module runs that should show its attention."""
    for calls, _ in _entries_of(model()):
        calls.tracker.ran.add(name)


def _entries_of(model: nn.Module | None) -> list[tuple[Calls, Context]]:
    found = [(calls, context) for calls, context in present() if calls.model is model]
    if found:
        settle(found[0][0])
    return found


def _enter(
    model: ref[nn.Module], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    found = _entries_of(model())
    tracker = found[0][0].enter(module, sys._getframe(_TO_TORCH)) if found else None
    if tracker is None:
        return
    depth = found[0][0].depth - 1
    contexts = [one for _, one in found if not one.reads_one_call or one.depth == depth]
    found[0][0].begin(contexts)
    _watch_softmaxes(found[0][0])
    tracker.begin(module, args, kwargs)
    for context in contexts:
        context.begin(tracker)


def _leave(model: ref[nn.Module], module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
    found = _entries_of(model())
    ended = found[0][0].leave(sys._getframe(_TO_TORCH)) if found else None
    if ended is None:
        return
    tracker, contexts = ended
    some = [one for _, one in found if any(known is one for known in contexts)]
    try:
        tracker.end(result)
        tracker.check_layers()
        if some:
            _check_seen(found[0][0], tracker, module)
        for context in some:
            context.end(tracker, result)
    except BaseException:
        for context in some:
            context.broke(tracker)
        raise


def _check_seen(calls: Calls, tracker: Tracker, module: nn.Module) -> None:
    """Refuse a call that showed no attention, of a model or a part that has some.

    So is one in which a module that ran showed none beside others.

    That is known of modules that ask the interface, and of those that were seen in earlier calls.
    """
    if tracker.depth:
        if silent := sorted(tracker.ran - tracker.shown):
            raise CaptureError(
                f"{silent[0]} ran and showed no attention, though other layers did: its forward "
                "was replaced, or it ran as compiled code. A stack would be missing or its layers "
                "misnumbered, so this call is refused; run the model as it is written."
            )
        return
    path = f"{name}." if (name := tracker.name(module)) else ""
    known = [one for one in calls.attending | tracker.known if one.startswith(path)]
    if known:
        raise CaptureError(
            f"A call of {type(module).__name__} showed no attention, though it has some, such as "
            f"in {min(known)}: it ran as compiled code (torch.compiler.set_stance inside of the "
            "context), a forward was replaced, or its layers were skipped. Nothing was captured "
            "or edited, so this call is refused; run the model as it is written."
        )


def _watch_softmaxes(calls: Calls) -> None:
    """Watch softmaxes in a thread that a context was handed to: modes stay where they began."""
    if not calls.is_routed and not SoftmaxMode.is_on():
        calls.hold(SoftmaxMode())


def _routed(get_interface: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get_interface)
    def answer(interface: Any, implementation: str, default: Callable[..., Any]) -> Any:
        function = get_interface(interface, implementation, default)
        return _wrapped(function, implementation) if present() else function

    return answer


def _wrapped(function: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    is_own = not (getattr(function, "__module__", None) or "").startswith("transformers.")

    @wraps(function)
    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        result = function(module, query, key, value, attention_mask, **options)
        if not any(calls.owns(module) for calls, _ in present()):
            return result
        routed = RoutedCall(
            "", module, implementation, query, key, value, attention_mask, options, *result[:2]
        )
        routed.is_own = is_own
        take_part(routed)
        return routed.output, routed.weights, *result[2:]

    return call
