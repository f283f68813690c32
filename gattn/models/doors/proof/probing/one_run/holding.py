"""Remembers what something holds, such as a list, a class or a generator, to put it back."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import deque
from collections.abc import Collection
from contextvars import ContextVar
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor, nn

from gattn.models.doors.proof.probing.one_run.binding import MISSING, Bound, OfSlots, slots_of

_STEPS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
IGNORED = frozenset(vars(nn.Module()))
IGNORED |= {f"_{step}_forward{when}_hooks" for step in _STEPS for when in ("", "_pre")}
"""What all modules have, and torch-geometric's layers, among it their hooks."""
_CODE = (FunctionType, MethodType, ModuleType)
_NAMESPACES = (SimpleNamespace, Namespace)
_MOST_BYTES = 2**20
"""Larger arrays are not copied: they are data, which code reads."""


class Held:
    """What something holds now, to be compared, and put back; a list, or attributes.

    Parameters
    ----------
    now : any
        What holds something.
    """

    def __init__(self, now: Any) -> None:
        self._now = now
        self._before = self._copied()
        self._told = self._tell()

    @property
    def place(self) -> int:
        """What tells it apart while it is held."""
        return id(self._now)

    @property
    def inner(self) -> Collection[Any]:
        """What it holds that may hold something in turn."""
        found: Collection[Any] = self._before
        return found

    @property
    def decides_otherwise(self) -> bool:
        """Whether it holds other numbers, texts or functions than before."""
        if not self.is_changed:
            return False
        now, before = self._now, self._before
        return len(now) != len(before) or any(map(_differs, now, before))

    @property
    def is_changed(self) -> bool:
        """Whether it holds anything else than before; also of what `put_back` leaves as it is."""
        return bool(self._tell() != self._told)

    def put_back(self) -> None:
        """Let it hold what it held before."""
        self._now[:] = self._before

    def _copied(self) -> Any:
        return self._now.copy()

    def _tell(self) -> Any:
        """Tell what it holds from anything else."""
        return list(map(id, self._now))


class _Tuple(Held):
    def _copied(self) -> Any:
        return self._now


class _Attributes(Held):
    @property
    def inner(self) -> Collection[Any]:
        return list(self._before.values())

    @property
    def decides_otherwise(self) -> bool:
        if not self.is_changed:
            return False
        return any(_differs(x, self._before.get(name)) for name, x in self._now.items())

    def put_back(self) -> None:
        now, before = self._now, self._before
        for name in [name for name in now if name not in before and name not in IGNORED]:
            del now[name]
        for name, x in before.items():
            if now.get(name, now) is not x:
                now[name] = x

    def _tell(self) -> Any:
        return list(self._now), list(map(id, self._now.values()))


class _OfModule(_Attributes):
    def _copied(self) -> Any:
        return {name: x for name, x in self._now.items() if name not in IGNORED}


class _Bound(Held):
    """The names of a module or a class."""

    _now: Bound

    @property
    def place(self) -> int:
        return id(self._now.holder)

    @property
    def inner(self) -> Collection[Any]:
        return list(self._before.values())

    @property
    def decides_otherwise(self) -> bool:
        now, before = self._now.values(), self._before
        some = now.keys() | before.keys()
        return any(_differs(now.get(name), before.get(name)) for name in some)

    def put_back(self) -> None:
        now = self._now.values()
        for name in now.keys() | self._before.keys():
            x = self._before.get(name, MISSING)
            if now.get(name, MISSING) is not x:
                self._now.bind(name, x)

    def _copied(self) -> Any:
        return self._now.values()

    def _tell(self) -> Any:
        return {name: id(x) for name, x in self._now.values().items()}


class _Items(Held):
    """A set or a queue."""

    @property
    def decides_otherwise(self) -> bool:
        return self.is_changed

    def put_back(self) -> None:
        self._now.clear()
        (self._now.update if isinstance(self._now, set) else self._now.extend)(self._before)


class _Numbers(Held):
    """An array, or bytes."""

    @property
    def inner(self) -> Collection[Any]:
        return ()

    @property
    def decides_otherwise(self) -> bool:
        return self.is_changed

    def put_back(self) -> None:
        self._now[...] = self._before

    def _tell(self) -> Any:
        return self._now.tobytes()


class _Bytes(_Numbers):
    def put_back(self) -> None:
        self._now[:] = self._before

    def _tell(self) -> Any:
        return bytes(self._now)


class _Variable(Held):
    """A context variable."""

    _now: ContextVar[Any]

    @property
    def inner(self) -> Collection[Any]:
        return () if self._before is MISSING else (self._before,)

    @property
    def decides_otherwise(self) -> bool:
        return self.is_changed

    def put_back(self) -> None:
        if self._before is not MISSING:
            self._now.set(self._before)

    def _copied(self) -> Any:
        try:
            return self._now.get()
        except LookupError:
            return MISSING

    def _tell(self) -> Any:
        return id(self._copied())


class _Generator(_Numbers):
    """A generator of random numbers."""

    @property
    def decides_otherwise(self) -> bool:
        return False

    def put_back(self) -> None:
        if isinstance(self._now, random.SystemRandom):
            return  # It has no state.
        if isinstance(self._now, random.Random):
            self._now.setstate(self._before)
        elif isinstance(self._now, np.random.Generator):
            self._now.bit_generator.state = self._before
        else:
            self._now.set_state(self._before)

    def _copied(self) -> Any:
        one = self._now
        if isinstance(one, random.Random):
            return None if isinstance(one, random.SystemRandom) else one.getstate()
        return one.bit_generator.state if isinstance(one, np.random.Generator) else one.get_state()

    def _tell(self) -> Any:
        return str(self._copied())


_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
HOLDERS = (list, dict, set, deque, bytearray, np.ndarray, ContextVar, *_NAMESPACES, *_GENERATORS)
"""What holds something that code may change, whoever made the class."""


def held(x: Any) -> Held | None:
    """Remember what something holds; None if that is nothing that could be put back."""
    if isinstance(x, Bound):
        return _Bound(x)
    if isinstance(x, list):
        return Held(x)
    if isinstance(x, tuple):
        return _Tuple(x)
    if isinstance(x, dict):
        return _Attributes(x)
    if isinstance(x, (set, deque)):
        return _Items(x)
    if isinstance(x, bytearray):
        return _Bytes(x)
    if isinstance(x, np.ndarray):
        is_plain = not x.dtype.hasobject and x.flags.writeable and x.nbytes <= _MOST_BYTES
        return _Numbers(x) if is_plain else None
    if isinstance(x, ContextVar):
        return _Variable(x)
    if isinstance(x, _GENERATORS):
        return _Generator(x)
    if (own := attributes_of(x)) is not None:
        return _Attributes(own)
    return _Bound(OfSlots(x)) if slots_of(x) else None


def held_by_module(module: nn.Module) -> Held:
    """Remember the attributes of a module, but for those that all have."""
    return _OfModule(vars(module))


def attributes_of(x: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of the model's own, such as a cache."""
    if isinstance(x, _NAMESPACES):
        return vars(x)
    home = type(x).__module__
    is_own = not isinstance(x, (nn.Module, Tensor, type, *_CODE)) and home != "builtins"
    return getattr(x, "__dict__", None) if is_own and not home.startswith("torch.") else None


def content(x: Any) -> Any:
    """Return what a cell holds; anything else as it is."""
    try:
        return x.cell_contents if isinstance(x, CellType) else x
    except ValueError:  # It is empty yet.
        return None


def decides(x: Any) -> bool:
    """Return whether something is a tensor of integers or a mask."""
    return isinstance(x, Tensor) and not x.is_floating_point()


def _differs(now: Any, before: Any) -> bool:
    if now is before or isinstance(now, nn.Module):
        return False
    if isinstance(now, Tensor):
        return decides(now)
    if isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before):
        return any(map(_differs, now, before))
    is_plain = isinstance(now, (bool, int, float, str, type(None)))
    return not (is_plain and type(now) is type(before) and now == before)
