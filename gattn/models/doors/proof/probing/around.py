"""Finds what lies around a model that its code may read and change: in classes and globals."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from gattn.models.doors.proof.probing.describing import function_of, is_own, names_in, package_of
from gattn.models.doors.proof.probing.one_run.hooks import KINDS, held_by, is_users
from gattn.models.doors.proof.probing.one_run.state import attributes_of, content, reached


def around(model: nn.Module) -> list[Any]:
    """List the lists, dictionaries and objects that code of the user's own finds around a model.

    Those are attributes of the classes of its modules, globals, and variables around functions.
    """
    found: dict[int, Any] = {}
    known: dict[int, Any] = {}
    waiting = [*_in_classes(model), *_in_hooks(model)]
    waiting += [x for x in reached(model) if isinstance(x, (FunctionType, MethodType))]
    while waiting:
        one = function_of(waiting.pop())
        if id(one) in known:
            continue
        known[id(one)] = one
        if isinstance(one, FunctionType):
            waiting += _around(one) if is_own(package_of(one)) else ()
        elif isinstance(one, ModuleType):
            held = _named(one) if is_own(one.__name__.partition(".")[0]) else ()
            found |= {id(x): x for x in held if _holds(x)}
        elif _holds(one):
            found[id(one)] = one
    return list(found.values())


def _in_classes(model: nn.Module) -> list[Any]:
    kinds = {kind for module in model.modules() for kind in type(module).__mro__[:-1]}
    own = [kind for kind in kinds if is_own(package_of(kind))]
    return [x for kind in own for x in _named(kind)]


def _named(holder: type | ModuleType) -> list[Any]:
    return [x for name, x in vars(holder).items() if name[:2] != "__"]


def _in_hooks(model: nn.Module) -> list[Any]:
    every = [getattr(module, kind) for module in model.modules() for kind in KINDS]
    hooks = [hook for hooks in every for hook in hooks.values() if is_users(hook)]
    return [content(x) for x in held_by(hooks)]


def _around(function: FunctionType) -> Iterator[Any]:
    """List what code of a function finds by name."""
    names = function.__globals__
    yield from (names[name] for name in names_in(function.__code__) if name in names)
    yield from map(content, function.__closure__ or ())


def _holds(x: Any) -> bool:
    is_object = attributes_of(x) is not None and is_own(package_of(type(x)))
    return is_object or isinstance(x, (dict, list))
