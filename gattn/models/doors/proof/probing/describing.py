"""Describes what decides how code behaves: what is described alike does the same."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dis import get_instructions
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gattn.models.doors.proof.probing.one_run.digests import digest, hashed
from gattn.models.doors.proof.probing.one_run.holding import attributes_of
from gattn.models.doors.proof.probing.one_run.state import place_of

_PLAIN = frozenset(
    (int, float, complex, bool, str, bytes, range, type(None), torch.dtype, torch.device)
)
_NAMED = (BuiltinFunctionType, ModuleType)
_LISTS = (list, tuple, deque)
_DICTS = (dict, OrderedDict, defaultdict)
_ENVIRONMENT = type(os.environ)
_OBJECTS = (SimpleNamespace, Namespace, ContextVar, _ENVIRONMENT)
_HOLDERS = (*_LISTS, *_DICTS, Tensor, np.ndarray, *_OBJECTS)
_LIBRARIES = frozenset(("torch", "torch_geometric", "transformers"))
_KNOWN = sys.stdlib_module_names | _LIBRARIES | {"numpy", "gattn"}
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_ENVIRONMENTAL = frozenset(("environ", "getenv"))
_DEPTH = 5
"""How deep lists and objects within values are followed."""


class Description:
    """Describes values: plain ones, integers and code by what they are, other tensors by shapes.

    Modules within values are described by their types.
    """

    def __init__(self) -> None:
        self._known: dict[int, object] = {}

    def __call__(self, value: Any, depth: int = _DEPTH) -> object:
        """Describe a value, which must live longer than the description."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, Tensor):
            return _of_tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return kind, _of_array(np.asarray(value))
        if isinstance(value, Enum):
            return kind, value.name
        if isinstance(value, _NAMED):
            return value
        if isinstance(value, nn.Module) or depth == 0:
            return value if isinstance(value, type) else kind
        if id(value) not in self._known:
            self._known[id(value)] = kind  # It may hold itself.
            self._known[id(value)] = kind, self._parts(value, depth - 1)
        return self._known[id(value)]

    def code(self, kind: type[nn.Module]) -> object:
        """Describe the methods and attributes of a class of modules.

        Of a library's, that are `forward`, and of torch-geometric's what others put there, such as
        another `message`.
        """
        kinds = kind.__mro__[:-1]  # without object
        own = [one for one in kinds if package_of(one) not in _LIBRARIES]
        held = [x for one in own for name, x in vars(one).items() if not name.startswith("__")]
        graphs = [one for one in kinds if package_of(one) == "torch_geometric"]
        held += [x for one in graphs for x in vars(one).values() if _is_foreign(x)]
        return self(kind.forward), self._all(map(function_of, held), _DEPTH)

    def _parts(self, value: Any, depth: int) -> object:
        if isinstance(value, _LISTS):
            return self._all(value, depth)
        if isinstance(value, ContextVar):
            return self(value.get(None), depth)
        if isinstance(value, _ENVIRONMENT):
            return tuple(sorted(value.items()))
        if isinstance(value, (set, frozenset)):
            return frozenset(self._all(value, depth))
        if isinstance(value, _DICTS):
            return self._all(value, depth), self._all(value.values(), depth)
        if isinstance(value, FunctionType):
            return self._function(value, depth)
        if isinstance(value, MethodType):
            return self(value.__func__, depth), self(value.__self__, depth)
        if isinstance(value, partial):
            return self._all((value.func, value.args, value.keywords), depth)
        if isinstance(value, type):
            return value, self._of_class(value, depth)
        own = attributes_of(value)
        held = self._of_class(type(value), depth)
        return held if own is None else (held, self._parts(own, depth))

    def _of_class(self, kind: type, depth: int) -> object:
        """Describe the numbers and methods of a class that is no library's, as of settings."""
        if issubclass(kind, nn.Module):
            return None
        own = [one for one in kind.__mro__[:-1] if is_own(package_of(one))]
        held = [function_of(x) for one in own for name, x in vars(one).items() if name[:2] != "__"]
        methods = tuple(x.__code__ for x in held if isinstance(x, FunctionType))
        numbers = [x for x in held if type(x) in _PLAIN or isinstance(x, _HOLDERS)]
        return methods, self._all(numbers, depth)

    def _function(self, function: FunctionType, depth: int) -> object:
        """Describe a function: its code, its defaults, and what it takes from around it."""
        code = function.__code__
        if package_of(function) in _LIBRARIES:
            return code
        names = function.__globals__
        around = [names[name] for name in names_in(code) if name in names]
        home = package_of(function)
        called = [x for x in around if isinstance(x, FunctionType)]
        held = [x for x in around if _is_setting(x, home)]
        if is_own(home):
            held += [x for x in called if package_of(x) == home]
        for module in around:
            if isinstance(module, ModuleType) and is_own(top := module.__name__.partition(".")[0]):
                held += [x for x in vars(module).values() if _is_setting(x, top)]
        if _reads_environment(code, around):
            held.append(os.environ)
        given = function.__defaults__, function.__kwdefaults__
        codes = tuple(x.__code__ for x in called)
        return code, codes, self._all((*given, *_contents(function), *held), depth)

    def _all(self, values: Iterable[Any], depth: int) -> tuple[object, ...]:
        return tuple(self(value, depth) for value in values)


def package_of(x: type | FunctionType) -> str:
    """Return the package, or the module outside of any, that a class or a function is in."""
    return str(x.__module__).partition(".")[0]


def _is_setting(x: Any, package: str) -> bool:
    """Return whether code of a package may decide by a global: a number, or what holds some."""
    if type(x) in _PLAIN or isinstance(x, _HOLDERS):
        return True
    kind = x if isinstance(x, type) else type(x)
    is_near = package_of(kind) == package and not issubclass(kind, nn.Module)
    return is_near and is_own(package)


def _reads_environment(code: CodeType, around: Iterable[Any]) -> bool:
    """Return whether code that finds these around it reads the environment through `os`."""
    by_os = not _ENVIRONMENTAL.isdisjoint(code.co_names)
    return any(x is os.getenv or (x is os and by_os) for x in around)


@cache
def is_own(package: str) -> bool:
    """Return whether a package is the user's own, and not installed."""
    where = Path(getattr(sys.modules.get(package), "__file__", None) or "").parts
    return package not in _KNOWN and _INSTALLED.isdisjoint(where)


@cache
def names_in(code: CodeType) -> tuple[str, ...]:
    """List the names that code, and code within it, takes from its module."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    own = [one.argval for one in get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    return tuple(dict.fromkeys((*own, *(name for one in inner for name in names_in(one)))))


def _contents(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # It is empty yet.
            yield None


def function_of(held: Any) -> Any:
    """Return the function behind what a class holds."""
    held = getattr(held, "fget", held) if isinstance(held, property) else held
    return getattr(held, "__func__", held)


def _is_foreign(held: Any) -> bool:
    """Return whether what a library's class holds is a function of somebody else."""
    function = function_of(held)
    is_function = isinstance(function, FunctionType)
    return is_function and package_of(function) not in _LIBRARIES


def _of_tensor(x: Tensor) -> object:
    shape = tuple(x.shape), x.dtype
    if x.is_floating_point() or x.is_complex() or not place_of(x):
        return shape
    return *shape, digest(x)


def _of_array(x: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return x.shape, x.dtype.str, b"" if x.dtype.hasobject else hashed(x)
