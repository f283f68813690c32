"""Hooks that tell open contexts when calls of a model begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import filterfalse
from typing import Any
from weakref import ref

from torch import nn

from gattn.errors import CaptureError
from gattn.models.load.scripts import is_script
from gattn.models.read.track.runs import runs
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import Context, present, settle
from gattn.models.watch.hooks import Hook

_TO_TORCH = 2
"""How many frames the one that runs a hook is from the hook's function."""


class _Counts(Hook):
    """Tells one run of a module from the next."""

    def __call__(self, module: nn.Module, *args: Any) -> None:
        """Note that a module runs; for a copy that does no harm."""
        self._function(module)


def hooked(
    model: nn.Module,
    is_whole: Callable[[nn.Module], bool],
    attending: Collection[str],
    modules: Mapping[str, nn.Module],
    *,
    counts_runs: bool = False,
) -> list[Any]:
    """Add hooks to a model, and to those within it that are models themselves.

    The modules in `attending` are hooked too, to notice if one runs and shows no attention; where
    `counts_runs`, all that may attend are. `modules` are all those of the model by name. If it
    is none that `is_whole` knows, its direct children may begin a call, too, since users call them.
    """
    whole, handles = ref(model), []
    children = () if is_whole(model) else {*model.children()}
    types = {*map(type, modules.values())}
    torchs = {kind for kind in types if kind.__module__.startswith("torch.nn.modules.")}
    for module in filterfalse(is_script, modules.values()):
        # Torch's own modules without parts never attend, and lists of modules never run.
        is_plain = not module._modules and type(module) in torchs
        may_attend = not is_plain and type(module) is not nn.ModuleList
        if counts_runs and may_attend:
            handles.append(module.register_forward_pre_hook(_Counts(module, runs.begin)))
        may_begin = module is model or (may_attend and module in children)
        if may_begin or is_whole(module):
            enter = Hook(module, partial(_enter, whole))
            leave = Hook(module, partial(_leave, whole))
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
    for name in attending:
        module = model.get_submodule(name)
        handles.append(module.register_forward_pre_hook(Hook(module, partial(_ran, whole, name))))
    return handles


def _ran(model: ref[nn.Module], name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
    """Note that a module that should show its attention runs."""
    for calls, _ in _entries_of(model()):
        calls.tracker.layers.ran.add(name)


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
    found[0][0].watch_thread()
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
        tracker.layers.check()
        if some:
            _check_seen(found[0][0], tracker, module)
        for context in some:
            context.end(tracker, result)
    except BaseException:
        for context in some:
            context.broke(tracker)
        raise


def _check_seen(calls: Calls, tracker: Tracker, module: nn.Module) -> None:
    """Refuse a call in which some module, or all of them, ran without showing attention.

    Modules are known to attend if they ask the interface, or were seen in earlier calls.
    """
    if tracker.layers.depth:
        if silent := sorted(tracker.layers.ran - tracker.layers.shown):
            raise CaptureError(
                f"{silent[0]} ran without showing its attention, though other layers did: its "
                "forward was replaced, or it ran as compiled code. A stack would be missing or its "
                "layers misnumbered, so this call is refused; run the model as written."
            )
        return
    path = f"{name}." if (name := tracker.modules.name(module)) else ""
    known = [one for one in calls.attending | tracker.modules.stacks.keys() if one.startswith(path)]
    if known:
        raise CaptureError(
            f"A call of {type(module).__name__} showed no attention, though "
            f"{min(known) or 'the model itself'} attends in others: its code does something else "
            "with this input, it ran as compiled code (torch.compiler.set_stance inside the "
            "context), a forward was replaced, or its layers were skipped. Nothing was captured or "
            "edited, so this call is refused: run the model as written, on inputs with which it "
            "attends."
        )
