"""Follows which functions a model's code calls, which an edit may change where numbers decide."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from types import CodeType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gattn.models.doors.functions.calling.handling import is_first
from gattn.models.doors.functions.mode import watches
from gattn.models.doors.functions.softmaxes.follow.known import Observers, OfTensors
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.graphs.frames import frames
from gattn.models.doors.graphs.segments import is_running

_PLAIN = frozenset((int, bool, str, type(None), torch.dtype, torch.device, torch.Size))
_WRITES = frozenset(("__setitem__", "__set__"))
"""Functions that give nothing, and change a tensor."""
_AS_MANY = frozenset(("nonzero", "argwhere", "unique", "unique_consecutive", "bincount"))
_AS_MANY |= {"masked_select"}
"""Functions that give as many numbers as values decide."""


class Passed(NamedTuple):
    """What tells the functions that ran before a call from others, in one run or several.

    They ran before it began; by those `met`, values are known that it begins without where it is
    read early.
    """

    before: set[int]
    met: set[int]


class Steps:
    """Describes the functions that ran so far: which, and on which tensors and whole numbers.

    A tensor is described by its sizes and by the function that made it. Other numbers do not count:
    they are of what tokens hold; nor do sizes that values decide, as in a log of where numbers are
    above another one, unless a function takes these together with other tensors.

    Parameters
    ----------
    idle : collection of code
        The hooks whose functions do not count.

    Attributes
    ----------
    so_far : int
        What tells them from others.
    trail : set of int
        What told them from others after each function.
    """

    def __init__(self, idle: Collection[CodeType] = ()) -> None:
        self._idle = idle
        self.begin()
        _steps.add(self)

    def begin(self) -> None:
        """Begin anew."""
        self.so_far = self._count = 0
        self.trail: set[int] = {0}
        self._made: dict[int, tuple[ref[Tensor], int]] = {}
        self._by_values: OfTensors[bool] = OfTensors()

    def end(self) -> None:
        """See no more functions."""
        _steps.remove(self)

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Any) -> None:
        """Look at a function that ran."""
        if self._idle and any(one.f_code in self._idle for one in frames(sys._getframe(1))):
            return
        with torch._C.DisableTorchFunction():
            some = [x for x in operands(args, kwargs) if isinstance(x, Tensor)]
            is_by_values = bool(some) and all(map(self._by_values.of, some))
            given = self._described((*args, *kwargs.values()), has_sizes=not is_by_values)
            of = getattr(getattr(func, "__self__", None), "__name__", "")  # T, for one
            name = getattr(func, "__name__", ""), of
            self.so_far = hash((self.so_far, name, given, *kwargs))
            self.trail.add(self.so_far)
            self._count += 1
            for x in made:
                if isinstance(x, Tensor):
                    self._made[id(x)] = ref(x), self._count
                    if is_by_values or _gives_as_many(func, args, kwargs):
                        self._by_values.note(x, True)

    def _described(self, x: Any, *, has_sizes: bool) -> object:
        kind = type(x)
        if kind in _PLAIN:
            return str(x) if kind is int else x  # -1 and -2 have the same hash.
        if isinstance(x, Tensor) and not is_lazy(x):
            shape = tuple(x.shape) if has_sizes and not x.is_nested else None
            return shape, self._number(x)
        if isinstance(x, (tuple, list)):
            return tuple(self._described(one, has_sizes=has_sizes) for one in x)
        if kind is slice:
            return self._described((x.start, x.stop, x.step), has_sizes=has_sizes)
        return kind

    def _number(self, x: Tensor) -> int:
        """Return the number of the function that made a tensor; of the tensor if none did."""
        known = self._made.get(id(x))
        if known is None or known[0]() is not x:
            self._count += 1
            known = self._made[id(x)] = ref(x), self._count
        return known[1]


def _gives_as_many(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether values decide the size of what a function gives."""
    name = getattr(func, "__name__", "")
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "__getitem__":
        where = args[1] if isinstance(args[1], tuple) else args[1:]
        return any(isinstance(x, Tensor) and x.dtype == torch.bool for x in where)
    if name == "repeat_interleave":
        return isinstance(kwargs.get("repeats", args[:2][-1] if args else None), Tensor)
    return name in _AS_MANY


_steps: Observers[Steps] = Observers()


def _see(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    made = result if isinstance(result, (tuple, list)) else (result,)
    is_step = any(isinstance(x, Tensor) for x in made) or getattr(func, "__name__", "") in _WRITES
    if is_step and is_first() and not is_running():
        for steps in _steps:
            steps.note(func, args, kwargs, made)
    return result


watches[_steps] = _see
