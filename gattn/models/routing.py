"""Routes the attention of live transformers models through open contexts.

Every attention module of a routed model asks ``AttentionInterface.get_interface`` which function
to call. While a context is open, what it answers is wrapped: the function that the user's model
chose still computes the output, with its own arguments and its own mask; where edits apply, the
rows that they change are then replaced; at last the open contexts are shown the call. Nothing of
the model or its configuration is touched but hooks that tell when a call of the model begins.
Compiled code is bypassed meanwhile.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, ModelError
from gattn.models import generating
from gattn.models.calls import Calls
from gattn.models.compiling import as_written, bypass_compiled, restore_compiled
from gattn.models.hooks import Hook
from gattn.models.loading import META
from gattn.models.places import Place
from gattn.models.tracking import Tracker

if TYPE_CHECKING:
    from gattn.models.edits import Edit
    from gattn.models.encoding import Encoding
    from gattn.models.reading import Reading


_TO_TORCH = 2
"""How many frames the one that runs a hook is from the hook's function."""

_QUERIES = ("query", "q_proj", "q_lin", "q", "to_q", "qkv", "query_key_value", "c_attn", "q_attn")


@dataclass
class RoutedCall:
    """One call of an attention function.

    `query` is (batch, heads, queries, dim), `key` and `value` (batch, key heads, keys, dim or
    value dim), `output` (batch, queries, heads, value dim), `weights` the attention where the
    function gives it. `mask` is what the implementation takes: None, booleans or an additive term
    that broadcast to (batch, heads, queries, keys).
    """

    name: str
    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    output: Tensor
    weights: Tensor | None = None
    is_own: bool = False


class Context:
    """What an open context does; the base does nothing."""

    is_closed = False
    depth = 0
    """Within how many calls of the model it was opened."""
    reads_one_call = False
    """Whether it takes no part in calls within the one that it reads."""
    encodings: Sequence[Encoding] | None = None
    """The sequences that run, where they are known as texts, in the order of the batch."""

    def begin(self, tracker: Tracker) -> None:
        """Learn that a call of the model begins."""

    def edits(self, call: RoutedCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Give the edits of each element of a call's batch; an empty list for none at all."""
        return []

    def met(self, readings: Sequence[Reading]) -> None:
        """Look at the calls that are edited."""

    def wants(self, place: Place) -> bool:
        """Say whether it looks at a call."""
        return False

    def see(self, call: RoutedCall, place: Place, readings: list[Reading]) -> None:
        """Look at a call, read as graph attention with the edits of all contexts."""

    def end(self, tracker: Tracker, result: Any) -> None:
        """Learn what a call of the model gave."""

    def broke(self, tracker: Tracker) -> None:
        """Learn that a call of the model broke off: it raised, or was interrupted."""

    def search(self, tracker: Tracker) -> None:
        """Learn that a search begins, which runs more sequences than it will return."""

    def returned(self, tracker: Tracker, sequences: Tensor, prompts: Tensor, beams: int) -> None:
        """Learn which sequences a search of so many beams a text returned, (sequences, tokens)."""


_open: ContextVar[tuple[tuple[Calls, Context], ...]] = ContextVar("contexts", default=())
_lock = Lock()
_number = 0
_original: Callable[..., Any] | None = None
_hooks: WeakKeyDictionary[nn.Module, tuple[int, list[Any]]] = WeakKeyDictionary()


@contextmanager
def opened(model: nn.Module, context: Context, *, proves: bool = True) -> Iterator[Calls]:
    """Let a context take part in each call of the model.

    Contexts nest, and take part only in calls of their own thread or task, and of those that copy
    its context variables. A model that is not routed is first proved, unless told otherwise.
    """
    model = as_written(model)
    if proves and not routes(model):
        from gattn.models.preflight import prove

        around = _open.set(())  # No open context takes part in the proof.
        try:
            prove(model)
        finally:
            _open.reset(around)
    if proves and (missed := unseen(model)):
        warnings.warn(
            f"{len(missed)} modules of {type(model).__name__} do not show their attention, such as "
            f"{missed[0]}: gattn neither shows nor edits it.",
            stacklevel=4,
        )
    known = [calls for calls, _ in present() if calls.model is model]
    calls = known[0] if known else Calls(model, routes(model), attending(model))
    settle(calls)
    context.depth = calls.depth
    with ExitStack() as stack:
        _open.set((*present(), (calls, context)))
        stack.callback(_close, calls, context)
        _install(model)
        stack.callback(_uninstall, model)
        if not calls.is_routed:
            from gattn.models.softmaxes import SoftmaxMode

            stack.enter_context(SoftmaxMode())
        yield calls


def present() -> tuple[tuple[Calls, Context], ...]:
    """Give the contexts that are open in this thread or task, the outermost first.

    Contexts may close in any order, and a task goes on with those of the task that began it, which
    may have closed them since.
    """
    return tuple(entry for entry in _open.get() if not entry[1].is_closed)


def names_shown(
    tracker: Tracker, stack: str, sequence: int, *, is_query: bool
) -> Sequence[str] | None:
    """Name a sequence's tokens as the text has them, where a context that runs it knows it."""
    for calls, context in present():
        encodings = context.encodings if calls.tracker is tracker else None
        if encodings is not None and sequence < len(encodings):
            names = encodings[sequence].names(stack)
            found: Sequence[str] = names.get("query_tokens" if is_query else "", names["tokens"])
            return found
    return None


def _close(calls: Calls, context: Context) -> None:
    settle(calls)
    context.is_closed = True
    _open.set(present())


def takes_part(context: Context) -> Tracker | None:
    """Give what follows the present call, where a context is open here and reads that call."""
    for calls, known in present():
        if known is context:
            settle(calls)
            return calls.tracker if calls.has(context) else None
    return None


def tracker_of(context: Context) -> Tracker:
    """Give what follows the present call of a context that is shown its attention."""
    return next(calls for calls, known in present() if known is context).tracker


def settle(calls: Calls) -> None:
    """Tell the contexts which calls of this thread broke off."""
    for tracker, contexts in calls.settle():
        for _, context in present():
            if any(known is context for known in contexts):
                context.broke(tracker)


def routes(model: nn.Module) -> bool:
    """Say whether a model's code routes its attention through transformers' interface."""
    homes = {type(module).__module__ for module in model.modules()}
    return any(hasattr(sys.modules.get(home), "ALL_ATTENTION_FUNCTIONS") for home in homes)


def unseen(model: nn.Module) -> list[str]:
    """Name the modules of a model whose attention is not seen.

    In a routed model those are the ones that do not ask the interface how to attend; in any model
    torch's own multi-head attention, which shows neither queries nor a softmax.
    """
    asking = [f"{name}." for name in attending(model)]
    is_routed = routes(model)
    return [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
        or (is_routed and _attends(module) and not _is_near(f"{name}.", asking))
    ]


def attending(model: nn.Module) -> frozenset[str]:
    """Name the modules of a model that ask the interface how to attend."""
    kinds = {kind for kind in {type(module) for module in model.modules()} if _asks(kind)}
    return frozenset(name for name, module in model.named_modules() if type(module) in kinds)


def _attends(module: nn.Module) -> bool:
    """Say whether a module looks as if it attended."""
    is_named = "Attention" in type(module).__name__
    return is_named and any(hasattr(module, query) for query in _QUERIES)


def _is_near(path: str, others: Sequence[str]) -> bool:
    """Say whether a module is inside of another, or the other inside of it."""
    return any(path.startswith(one) or one.startswith(path) for one in others)


def _asks(kind: type[nn.Module]) -> bool:
    """Say whether a class asks the interface which function to call."""
    functions = [
        inspect.unwrap(function)
        for base in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for function in vars(base).values()
        if inspect.isfunction(function)
    ]
    return any("get_interface" in function.__code__.co_names for function in functions)


def _install(model: nn.Module) -> None:
    from transformers import AttentionInterface

    global _number, _original
    with _lock:
        bypass_compiled(lambda: _number > 0)
        if _number == 0:
            _original = AttentionInterface.get_interface
            AttentionInterface.get_interface = _routed(_original)  # type: ignore[method-assign]
            generating.watch()
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
            generating.leave()
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
    from gattn.models.softmaxes import SoftmaxMode

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


def take_part(call: RoutedCall) -> None:
    """Let all open contexts edit a call's output, then look at it."""
    from gattn.models.editing import apply
    from gattn.models.reading import read

    if call.query.is_meta:
        raise ModelError(META)
    # What gattn computes is its own affair, not a part of the model's autocast.
    with torch.autocast(call.query.device.type, enabled=False):
        entries = _entries(call.module)
        if not entries:
            return
        call.name = entries[0][0].name(call.module)
        _refuse_unprovable(call)
        places: dict[Tracker, Place] = {}
        for tracker, _ in entries:
            if tracker not in places:
                places[tracker] = tracker.place(call)
        each: list[list[Edit]] = [[] for _ in range(len(call.query))]
        for tracker, context in entries:
            edits = context.edits(call, places[tracker], tracker)
            for known, more in zip(each, edits, strict=False):
                known.extend(more)
        watching = [
            (context, places[tracker])
            for tracker, context in entries
            if tracker.is_calling and context.wants(places[tracker])
        ]
        if not watching and not any(each):
            return
        tracker = entries[0][0]
        readings = read(call, places[tracker], tracker.mask(call), each)
        for _, context in entries:
            context.met(readings)
        apply(call, readings)
        for context, place in watching:
            context.see(call, place, readings)


def _refuse_unprovable(call: RoutedCall) -> None:
    """Refuse a user's own function under dropout: who attends to whom is told by its output."""
    if call.is_own and call.options.get("dropout"):
        raise CaptureError(
            f"{call.name} runs the attention function {call.implementation!r} of your own, which "
            "cannot be proved under dropout: call model.eval() or set attention_dropout=0."
        )


def _entries(module: nn.Module) -> list[tuple[Tracker, Context]]:
    """List the contexts of a module's models, with what follows the present call of each."""
    found = [(calls, context) for calls, context in present() if calls.owns(module)]
    for calls in {id(calls): calls for calls, _ in found}.values():
        settle(calls)
    return [(calls.tracker, context) for calls, context in found if calls.has(context)]
