"""Modes that see what a model's code reads of numbers in a run, and let it read that again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gattn.models.doors.orders import decides
from gattn.models.doors.proof.probing.one_run.attention_picked import picks_attention
from gattn.models.doors.proof.probing.one_run.deciding import as_decided, copied
from gattn.models.doors.proof.probing.one_run.missing import given_tensor, meets_nan, with_marks
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.walking import Walk
from gattn.models.watch.inside import is_inside

_ONE_NUMBER = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in (
        *("item", "__bool__", "__int__", "__float__", "__index__"),
        *("is_nonzero", "equal", "allclose", "__contains__", "__complex__"),
    )
    if hasattr(of, name)
)
ALL_NUMBERS = frozenset((Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__))
_READS = _ONE_NUMBER | ALL_NUMBERS
_DIFFERENT = frozenset(("unique", "unique_consecutive"))
AS_MANY = frozenset(("nonzero", "argwhere", "where")) | _DIFFERENT
"""What makes as much as there are such numbers among those that it is given."""
_BY_LENGTHS = frozenset(("tensor_split", "_pack_padded_sequence"))
"""What reads sizes out of integers, which shows in no kernel."""

Name = tuple[tuple[str, int], str, int]
"""The run in which code reads, by which function, and how many times it did so within this run."""


class Reading(TorchFunctionMode):
    """Names what code reads by the run in which it does."""

    def __init__(self, walk: Walk, begins: Mapping[str, int]) -> None:
        self._walk, self._begins = walk, begins
        self._counts: Counter[tuple[tuple[str, int], str]] = Counter()

    def __enter__(self) -> Any:
        self._was_inside = is_inside()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def _is_read(self, func: Any) -> bool:
        """Return whether the model's code reads by a function, and not gattn's own."""
        return func in _READS and self._is_own()

    def _is_own(self) -> bool:
        return is_inside() == self._was_inside

    def _is_decided(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> bool:
        """Return whether values decide integers, masks or sizes in a function of the model's."""
        if func in _READS or not self._is_own():
            return False
        if getattr(func, "__name__", "") in _DIFFERENT:
            return True
        with torch._C.DisableTorchFunction():
            return decides(func, args, kwargs, result)

    def _met(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Name | None:
        """Name a call of the model's that looks for NaN; None for any other function."""
        return self._name(func) if self._is_own() and meets_nan(func, args, kwargs) else None

    def _name(self, func: Any) -> Name:
        run = self._walk.running[-1] if self._walk.running else None
        place = ("", 0) if run is None else (run.name, run.number + self._begins.get(run.name, 0))
        name = getattr(func, "__name__", "")
        self._counts[place, name] += 1
        return place, name, self._counts[place, name]


class Noting(Reading):
    """Notes what code reads."""

    def __init__(self, walk: Walk, reads: Any) -> None:
        super().__init__(walk, {})
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and note what it gives code to read."""
        self._reads.look()
        self._reads.begin_function()
        if name := self._met(func, args, kwargs):
            self._reads.meet(name, func, given_tensor(args, kwargs))
        count = self._reads.count_told
        picks = self._is_own() and picks_attention(func, args)
        with self._reads.picking(self._name(func)) if picks else nullcontext():
            result = func(*args, **(kwargs or {}))
        self._reads.end_function()
        is_told = self._reads.count_told > count or getattr(func, "__name__", "") in _BY_LENGTHS
        if self._is_read(func):
            given = _given((*args, *(kwargs or {}).values()))
            self._reads.note(func, self._name(func), given, result)
        elif is_told and self._is_own():
            self._reads.learn(func, _given((*args, *(kwargs or {}).values())))
        return result


class NotingDecided(Reading):
    """Notes what values decide."""

    def __init__(self, walk: Walk, decided: dict[Name, Any]) -> None:
        super().__init__(walk, {})
        self._decided = decided

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and note what values decide."""
        name, result = self._met(func, args, kwargs), func(*args, **(kwargs or {}))
        if self._is_decided(func, args, kwargs or {}, result):
            with torch._C.DisableTorchFunction():
                self._decided[name or self._name(func)] = copied(result)
        return result


class Repeated(Reading):
    """Lets code read again what it read, and values decide as they did."""

    def __init__(
        self,
        walk: Walk,
        found: Mapping[Name, Any],
        decided: Mapping[Name, Any],
        tested: Mapping[Name, Tensor | bool],
        begins: Mapping[str, int],
    ) -> None:
        super().__init__(walk, begins)
        self._found, self._decided, self._tested = found, decided, tested

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or return what it gave in the run that was noted."""
        if self._is_read(func) and (name := self._name(func)) in self._found:
            return self._found[name]
        given, met = kwargs or {}, self._met(func, args, kwargs)
        found = None if met is None else self._tested.get(met)
        result = func(*args, **given) if found is None else with_marks(func, args, given, found)
        if self._decided and self._is_decided(func, args, given, result):
            name = met or self._name(func)
            if name in self._decided:
                with torch._C.DisableTorchFunction():
                    return as_decided(name[1], args, given, result, self._decided[name])
        return result


def _given(args: Iterable[Any]) -> list[Tensor]:
    """List the tensors that a function takes, those that bound slices too."""
    found = tensors_in(args)
    for x in args:
        for one in x if isinstance(x, tuple) else (x,):
            if isinstance(one, slice):
                found += tensors_in((one.start, one.stop, one.step))
    return found
