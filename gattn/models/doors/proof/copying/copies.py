"""Copies of a model that a proof runs: they share its parameters, and leave all else as it is."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from operator import is_
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MethodType,
)
from typing import Any
from weakref import ProxyTypes, proxy, ref

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.proof.copying.twins import Twins
from gattn.models.doors.proof.probing.one_run.holding import IGNORED
from gattn.models.doors.proof.probing.one_run.hooks import KINDS, is_users
from gattn.models.doors.proof.probing.one_run.inputs import detached
from gattn.models.doors.proof.probing.one_run.scripted import stand_ins
from gattn.models.doors.proof.probing.one_run.state import reached

_CONSUMED = (GeneratorType, AsyncGeneratorType, CoroutineType)


def copied(model: nn.Module, *, with_hooks: bool = False) -> nn.Module:
    """Copy a model except its parameters: running may change its modules, hooks and buffers.

    What cannot be copied, such as a lock or an open file, is shared, too. The user has not called
    the model, so a copy has the user's hooks only on request.

    Raises
    ------
    CaptureError
        If the model holds a Python generator, which a run of a copy would use up.
    """
    held = list(reached(model))
    # A part may hold the whole model, whose parameters are shared, too.
    others = [one for one in held if isinstance(one, nn.Module)]
    memory: dict[int, Any] = {
        id(x): x for one in (*others, *model.modules()) for x in one._parameters.values()
    }
    for module in model.modules():
        for value in (*module._buffers.values(), *vars(module).values()):
            if isinstance(value, Tensor) and id(value) not in memory:
                memory[id(value)] = detached(value)
            elif type(value) in (dict, OrderedDict) and not value:
                memory[id(value)] = type(value)()  # `deepcopy` takes long, and modules have many.
    memory |= {id(one): one for one in held if type(one) in ProxyTypes}
    memory |= stand_ins(model)
    try:
        twin: nn.Module = copy.deepcopy(model, dict(memory))
    except Exception:  # Attributes of all types cannot be copied, in many ways.
        twin = _Copier(memory).module(model)
    twins, shared = Twins(model, twin), {id(one) for one in held}
    _rebind(twin, shared, twins.by_id)
    for one in list(reached(twin)):
        if id(one) not in shared:
            twins.rekey(one)
    for module in twin.modules():
        for name, hooks in vars(module).items():
            is_kept = with_hooks and name in KINDS
            if name.endswith("_hooks") and isinstance(hooks, dict) and not is_kept:
                for number in [number for number, hook in hooks.items() if is_users(hook)]:
                    del hooks[number]
    return twin


def _rebind(twin: nn.Module, shared: Collection[int], twins: Mapping[int, nn.Module]) -> None:
    """Let functions and weak references, wherever a copy holds them, lead to copies, too."""
    known: dict[int, Any] = {}
    for one in list(reached(twin)):
        if id(one) in shared or not isinstance(one, (list, dict)):
            continue
        names = range(len(one)) if isinstance(one, list) else [*one]
        for name in names:
            if name not in IGNORED and (new := _rebound(one[name], twins, known)) is not one[name]:
                one[name] = new


def _rebound(value: Any, twins: Mapping[int, nn.Module], known: dict[int, Any]) -> Any:
    """Let a function that was made with modules in it, as `torch.compile` makes, hold copies.

    So do methods, and weak references and tuples of all these.
    """
    if id(value) in known:
        return known[id(value)]
    if type(value) in ProxyTypes:
        target = _behind(value)
        return proxy(twins[id(target)]) if id(target) in twins else value
    if isinstance(value, ref):
        target = value()
        return ref(twins[id(target)]) if id(target) in twins else value
    if type(value) is tuple:
        found = tuple(_rebound(x, twins, known) for x in value)
        return value if all(map(is_, found, value)) else found
    if isinstance(value, nn.Module):
        return twins.get(id(value), value)
    if isinstance(value, MethodType) and id(value.__self__) in twins:
        return MethodType(value.__func__, twins[id(value.__self__)])
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value
    cells = tuple(CellType() for _ in value.__closure__)
    function = FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    known[id(value)] = function
    function.__kwdefaults__ = value.__kwdefaults__
    function.__dict__.update((n, _rebound(x, twins, known)) for n, x in vars(value).items())
    for cell, own in zip(cells, value.__closure__, strict=True):
        with suppress(ValueError):  # It may be empty.
            cell.cell_contents = _rebound(own.cell_contents, twins, known)
    return function


def _behind(value: Any) -> Any:
    """Return the module that a proxy stands for; None if it is no module, or none any more."""
    try:
        return getattr(value.forward, "__self__", None)
    except (AttributeError, ReferenceError):
        return None


class _Copier:
    """Copies modules attribute by attribute, and shares what cannot be copied."""

    def __init__(self, memory: dict[int, Any]) -> None:
        self._memory = memory
        self._originals: list[Any] = []  # Kept, so that their identities stay theirs.

    def module(self, module: nn.Module) -> nn.Module:
        """Copy a module with its parts."""
        if id(module) not in self._memory:
            twin = module.__class__.__new__(module.__class__)
            self._memory[id(module)] = twin
            for name, value in vars(module).items():
                twin.__dict__[name] = self._any(value, f"{type(module).__name__}.{name}")
        known: nn.Module = self._memory[id(module)]
        return known

    def _any(self, value: Any, place: str) -> Any:
        if id(value) in self._memory:
            return self._memory[id(value)]
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, _CONSUMED):
            raise CaptureError(
                f"{place} is a {type(value).__name__}, which cannot be copied, and which a run to "
                "prove what attention means would use up: hold what it gives in a list"
            )
        found = self._one(value, place)
        self._memory[id(value)] = found
        self._originals.append(value)
        return found

    def _one(self, value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            return detached(value)
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if type(value) in (list, set, frozenset, tuple):
            return type(value)(self._any(one, place) for one in value)
        if isinstance(value, dict):
            twin = copy.copy(value)
            for name, one in value.items():
                twin[name] = self._any(one, place)
            return twin
        trial = dict(self._memory)
        try:
            found = copy.deepcopy(value, trial)
        except Exception:
            return self._attributes(value, place)
        self._memory.update(trial)
        return found

    def _attributes(self, value: Any, place: str) -> Any:
        try:
            twin = copy.copy(value)
        except Exception:
            return value
        if twin is value or not hasattr(twin, "__dict__"):
            return value
        self._memory[id(value)] = twin
        for name, one in vars(value).items():
            twin.__dict__[name] = self._any(one, f"{place}.{name}")
        return twin
