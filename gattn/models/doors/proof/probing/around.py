"""Finds what lies around a model that its code may read and change: in classes and globals."""

from __future__ import annotations

from collections.abc import Iterator
from dis import get_instructions
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from gattn.models.doors.proof.probing.describing import function_of, is_own, names_in, package_of
from gattn.models.doors.proof.probing.one_run.binding import Bound, OfClass, slots_of
from gattn.models.doors.proof.probing.one_run.holding import HOLDERS, attributes_of, content
from gattn.models.doors.proof.probing.one_run.hooks import KINDS, held_by, is_users
from gattn.models.doors.proof.probing.one_run.state import reached


def around(model: nn.Module) -> list[Any]:
    """List what code of the user's own finds around a model, and may change.

    That is what attributes of classes, globals, and variables around functions hold, and what these
    names are bound to.
    """
    found: dict[int, Any] = {}
    known: dict[int, Any] = {}
    code: list[CodeType] = []
    waiting = [*_classes(model), *_in_hooks(model)]
    waiting += [x for x in reached(model) if isinstance(x, (FunctionType, MethodType))]
    while waiting:
        one = function_of(waiting.pop())
        if id(one) in known:
            continue
        known[id(one)] = one
        if isinstance(one, FunctionType) and is_own(package_of(one)):
            waiting += _around(one)
            code.append(one.__code__)
            found |= {id(x): x for x in (vars(one), *(one.__closure__ or ()))}
        elif isinstance(one, ModuleType) and is_own(one.__name__.partition(".")[0]):
            found |= {id(x): x for x in _named(one) if _holds(x)}
        elif isinstance(one, type) and is_own(package_of(one)):
            found[id(one)] = OfClass(one)
            waiting += _named(one)
        elif _holds(one):
            found[id(one)] = one
            waiting.append(type(one))
    bound = {name for one in code for name in _bound_in(one)}
    for one in known.values():
        if isinstance(one, FunctionType) and is_own(package_of(one)):
            found.setdefault(id(one.__globals__), Bound(one.__globals__, bound))
        elif isinstance(one, ModuleType) and is_own(one.__name__.partition(".")[0]):
            found.setdefault(id(vars(one)), Bound(vars(one), bound))
    return list(found.values())


def _classes(model: nn.Module) -> set[type]:
    """Return the classes of modules, and of objects that these hold."""
    some = [x for module in model.modules() for x in (module, *vars(module).values())]
    return {kind for x in some for kind in type(x).__mro__[:-1]}


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


@cache
def _bound_in(code: CodeType) -> frozenset[str]:
    """Return the globals, and the attributes, that code, and code within it, binds."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    binds = ("STORE_GLOBAL", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_ATTR")
    own = {one.argval for one in get_instructions(code) if one.opname in binds}
    return frozenset(own.union(*map(_bound_in, inner)))


def _holds(x: Any) -> bool:
    has_own = attributes_of(x) is not None or slots_of(x)
    return (has_own and is_own(package_of(type(x)))) or isinstance(x, (*HOLDERS, Tensor))
