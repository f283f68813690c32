"""Finds where values decide, without an index, which tokens come into a slot.

By a mask of them, or by numbers that were rounded, which are one or zero, say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.watch.inside import is_inside

_SUMS = frozenset(("add", "sub", "rsub", "add_", "sub_", "lerp", "where"))
_SUMS |= {"__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"}


_PRODUCTS = frozenset(("mul", "rmul", "imul", "multiply"))
_STEPS = frozenset(("sign", "sgn", "round", "floor", "ceil", "trunc", "fix", "heaviside"))
_STEPS |= {"floor_divide", "floordiv", "rfloordiv"}
"""What makes the same numbers of many, apart from integers and masks."""
_RANKS = {"sort": 1, "msort": 1, "topk": 2}
"""What puts numbers in order, and which argument is the dimension."""


class Switching(TorchFunctionMode):
    """Looks at sums and choices between other tokens, weighed by what values decided.

    It watches runs in which marked tokens are NaN: `where(x.mean() > 3, x.flip(1), x)` chooses
    between tensors with other marks, by a mask that was made of NaN. So does
    `x.lerp(x.flip(1), x.mean().round())`.

    Attributes
    ----------
    moves : bool
        Whether there was one in the present run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moves = False
        self._switches: Any = WeakTensorKeyDictionary()
        """Masks and steps that values made, and numbers that were made of nothing else."""
        self._switched: Any = WeakTensorKeyDictionary()
        """The marks of what was multiplied with these, which may be NaN themselves."""
        self._ranked: Any = WeakTensorKeyDictionary()
        """Numbers that were put in order over tokens; to compare others with them moves none."""

    def __enter__(self) -> Switching:
        """Begin a run."""
        self.moves = False
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and look at it."""
        given = kwargs or {}
        result = func(*args, **given)
        if is_inside() or self.moves:
            return result
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunction():
            if name.strip("_") in _STEPS and bool(result.isnan().all()):
                result = torch.zeros_like(result)  # It decides, and marks nothing.
            if name in _RANKS:
                self._rank(_RANKS[name], name == "msort", args, given, result)
            elif isinstance(result, Tensor):
                self._look(name, args, given, result)
        return result

    def _rank(
        self, number: int, is_first: bool, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        x, values = tensors_in((args, kwargs))[0], tensors_in((out,))[0]
        dim = kwargs.get("dim", args[number] if len(args) > number else 0 if is_first else -1)
        if x.dim() and _has_nan(x) and not isinstance(dim, bool):
            marks = x.isnan()
            if bool((marks != marks.narrow(dim, 0, 1)).any()):
                self._ranked[values] = True

    def _look(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        given = tensors_in((args, kwargs))
        if result.dtype == torch.bool or name.strip("_") in _STEPS:
            if any(x in self._switches or _has_nan(x) for x in given):
                self._switches[result] = True
            return
        ranked = [x for x in given if x in self._ranked]
        if ranked and result.is_floating_point():
            is_view = any(_share_memory(x, result) for x in ranked)
            self.moves = not is_view
            self._ranked[result] = True
            return
        switches = [x for x in given if x in self._switches]
        others = [x for x in given if x not in self._switches]
        if switches and not others:
            self._switches[result] = True
        elif switches or any(x in self._switched for x in given):
            marks = [self._switched.get(x, x.isnan()) for x in others]
            self.moves = name in _SUMS and len(marks) > 1 and _cross(*marks[:2])
            is_product = name.strip("_") in _PRODUCTS and len(marks) == 1
            is_whole = is_product and marks[0].shape == result.shape
            self._switched[result] = marks[0] if is_whole else result.isnan()


def _share_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _has_nan(x: Tensor) -> bool:
    return x.is_floating_point() and bool(x.isnan().any())


def _cross(one: Tensor, other: Tensor) -> bool:
    """Return whether each of two tensors has marks where the other has none."""
    first, second = torch.broadcast_tensors(one, other)
    return bool((first & ~second).any()) and bool((second & ~first).any())
