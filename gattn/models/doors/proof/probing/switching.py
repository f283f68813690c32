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

from gattn.models.doors.functions.softmaxes.follow.following import is_followed
from gattn.models.doors.functions.softmaxes.follow.operands import OF_THE_FIRST
from gattn.models.doors.proof.probing.gates import Gates
from gattn.models.doors.proof.probing.one_run.inputs import has_nan, is_nan, mapped
from gattn.models.doors.proof.probing.one_run.missing import is_test
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.probing.zeros import is_product, marks_through
from gattn.models.watch.inside import is_inside

_SUMS = frozenset(("add", "sub", "rsub", "add_", "sub_", "lerp", "where"))
_SUMS |= {"__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"}
_CHOICES = frozenset(("where", "lerp"))
_MASKS = frozenset(("masked_fill", "masked_fill_"))
_PRODUCTS = frozenset(("mul", "rmul", "imul", "multiply"))
_STEPS = frozenset(("sign", "sgn", "round", "floor", "ceil", "trunc", "fix", "heaviside"))
_STEPS |= {"floor_divide", "floordiv", "rfloordiv"}
"""What makes the same numbers of many, apart from integers and masks."""
_INDEXES = frozenset(("getitem", "setitem", "gather", "index_select", "take", "take_along_dim"))
_INDEXES |= {"index_add", "index_copy", "index_put", "scatter_add", "scatter_reduce"}
"""What moves numbers by integers, which `Picks` follows."""
_IN_PLACE = frozenset(("mul_", "add_", "sub_", "lerp_", "addcmul_"))
_IN_PLACE |= {"__imul__", "__iadd__", "__isub__"}
_JOINS = frozenset(("cat", "concat", "concatenate", "stack", "contiguous", "clone", "reshape"))
_PUTS = frozenset(("scatter", "scatter_add"))
_OF_THE_FIRST = {one.__name__ for one in OF_THE_FIRST}
_MATRICES = frozenset(("matmul", "rmatmul", "mm", "bmm", "mv", "einsum", "tensordot"))
_TOTALS = frozenset(("sum", "mean"))
_LARGEST = frozenset(("max", "min", "median", "nanmedian", "kthvalue"))
"""What gives numbers with their indices, if it is given a dimension."""
_RANKS = {"sort": 1, "msort": 1, "topk": 2}
"""What puts numbers in order, and which argument is the dimension."""


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class Switching(TorchFunctionMode):
    """Looks at sums and choices between other tokens, weighed by what values decided.

    It watches runs in which marked tokens are NaN: `where(x.mean() > 3, x.flip(1), x)` chooses
    between tensors with other marks, by a mask that was made of NaN. So does
    `x.lerp(x.flip(1), x.mean().round())`, and so does `where(x > 3, x[:, :1], x)`, which only
    several runs show together: one with the first token marked, and one without.

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
        self._gated: Any = WeakTensorKeyDictionary()
        """Products with these: a sum may take them in place of its other tokens, or leave them."""
        self._masked: Any = WeakTensorKeyDictionary()
        """What was masked or multiplied by these."""
        self._gates = Gates()
        self._ranked: Any = WeakTensorKeyDictionary()
        """Numbers that were put in order over tokens, with their indices: to compare others with
        them, or to put them back there, moves none."""
        self._sums: dict[int, tuple[bool, ...]] = {}
        """Which side of each sum or choice had marks alone, and whether one was gated, in any run;
        by their numbers in a run."""
        self._count = 0

    def __enter__(self) -> Switching:
        """Begin a run."""
        self.moves, self._count = False, 0
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and look at it."""
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        is_over = is_inside() or self.moves
        before = args
        if not is_over and name in _IN_PLACE and isinstance(args[0], Tensor):
            with torch._C.DisableTorchFunction():
                before = self._gates.set_apart(args[0]), *args[1:]
        result = func(*args, **given)
        if is_over:
            return result
        args = before
        with torch._C.DisableTorchFunction():
            if name.strip("_") in _STEPS and is_nan(result):
                result = torch.zeros_like(result)  # It decides, and marks nothing.
            if isinstance(result, tuple) and name in _LARGEST:
                floats = [x for x in tensors_in((args, given)) if _is_numbers(x)]
                self.moves |= self._gates.exchange(name, floats, result[0])
            if name in _RANKS:
                self._rank(_RANKS[name], name == "msort", args, given, result)
            elif isinstance(result, Tensor) and not is_test(func, args, given):
                self._look(name, args, given, result)
                if is_product(name) and _is_numbers(result):
                    self.moves |= self._multiplies(func, args, given, result)
                self._carry(name, func, (args, given), result)
        return result

    def _rank(
        self, number: int, is_first: bool, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        x, values = tensors_in((args, kwargs))[0], tensors_in((out,))[0]
        dim = kwargs.get("dim", args[number] if len(args) > number else 0 if is_first else -1)
        if x.dim() and _has_nan(x) and not isinstance(dim, bool):
            marks = x.isnan()
            if bool((marks != marks.narrow(dim, 0, 1)).any()):
                self._ranked[values] = tensors_in((out,))[-1]

    def _carry(self, name: str, func: Any, given: Any, result: Tensor) -> None:
        some = tensors_in(given)
        if _is_wrapped(result):
            return
        is_view = len(some) == 1 and result is not some[0] and _share_memory(some[0], result)
        if _is_numbers(result) and (is_view or name in _JOINS):

            def through(*marks: Tensor) -> Tensor:
                new = {id(x): one for x, one in zip(some, marks, strict=True)}
                args, kwargs = mapped(lambda x: new.get(id(x), x), given)
                moved: Tensor = func(*args, **kwargs)
                return moved

            self._gates.carry(some, through, result)

    def _multiplies(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> bool:
        """Return whether a matrix that gates made, and no softmax, mixes tokens."""
        found = [x for x in tensors_in((args, kwargs))[:2] if _is_numbers(x)]
        if len(found) < 2 or any(map(is_followed, found)) or not is_nan(result):
            return False
        for x, y in (found, found[::-1]):
            if is_nan(y) and not is_nan(x) and _has_nan(x):
                marks = marks_through(func, (args, kwargs), x, y, torch.ones_like(y))
                return self._gates.multiply(x, y, marks, result)
        return False

    def _look(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        given = tensors_in((args, kwargs))
        plain = name.strip("_")
        if plain in _OF_THE_FIRST:
            given = given[:1]
        elif plain in _INDEXES:
            given = [x for n, x in enumerate(given) if not n or _is_numbers(x)]
        elif not _is_numbers(result) or plain in _STEPS:
            if any(x in self._switches or _has_nan(x) for x in given):
                self._switches[result] = True
            return
        floats = [x for x in given if _is_numbers(x)]
        self._count += name in _SUMS
        self.moves |= result.dim() != 0 and self._gates.exchange(plain, floats, result)
        if plain == "einsum" and len(floats) == 2 and not any(map(is_followed, floats)):
            self.moves |= isinstance(args[0], str) and self._gates.contract(args[0], floats, result)
        ranked = [x for x in given if x in self._ranked]
        if plain in _PUTS and any(self._ranked[x] is y for x in ranked for y in given):
            return
        if ranked and _is_numbers(result):
            is_view = any(_share_memory(x, result) for x in ranked)
            self.moves = not is_view
            self._ranked[result] = ranked[0]
            return
        switches = [x for x in given if x in self._switches]
        others = [x for x in given if x not in self._switches]
        if plain in _MATRICES and switches and others:
            self.moves = _has_nan(result)
        if switches and (plain in _PRODUCTS or name in _MASKS):
            self._masked[result] = True
        is_switched = bool(switches) or any(x in self._switched for x in floats)
        if is_switched and name in _SUMS and len(floats) > 1:
            self.moves |= self._exchanges(floats[:2], is_choice=name in _CHOICES)
        if switches and not any(_has_nan(x) or x in self._switched for x in others):
            self._switches[result] = True
        elif switches or any(x in self._switched for x in given):
            if len(others) > 1:  # What is smaller is a gate, whose own marks do not count.
                is_gate = [x in self._switched and x.shape != result.shape for x in others]
                others = [x for x, gates in zip(others, is_gate, strict=True) if not gates]
            marks = [self._switched.get(x, x.isnan()) for x in others]
            are_gated = [x in self._gated for x in others]
            is_product = plain in _PRODUCTS and len(marks) == 1
            is_whole = is_product and marks[0].shape == result.shape
            self.moves |= name in _SUMS and len(marks) > 1 and _crosses(marks, are_gated)
            self.moves |= name in _TOTALS and any(are_gated) and _are_several(marks[0], result)
            self._switched[result] = marks[0] if is_whole else result.isnan()
            if is_whole or (any(are_gated) and _share_memory(others[0], result)):
                self._gated[result] = True
                self._gates.weigh_by_values(self._switched[result], result)

    def _exchanges(self, sides: Sequence[Tensor], *, is_choice: bool) -> bool:
        """Return whether each side of a sum or choice had marks where the other had none.

        That may be in several runs. Of sums, one side is a product with a gate, or both are masked.
        """
        first, second = torch.broadcast_tensors(*(self._switched.get(x, x.isnan()) for x in sides))
        now = (
            bool((first & ~second).any()),
            bool((second & ~first).any()),
            is_choice
            or any(x in self._gated for x in sides)
            or all(x in self._masked for x in sides),
        )
        before = self._sums.get(self._count, (False,) * 3)
        found = self._sums[self._count] = tuple(map(any, zip(before, now, strict=True)))
        return all(found)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    return place_of(one) == place_of(other) != 0


def _has_nan(x: Tensor) -> bool:
    return _is_numbers(x) and has_nan(x)


def _is_numbers(x: Tensor) -> bool:
    """Return whether a tensor holds numbers that may be NaN, rather than masks or indices.

    A sparse tensor does not count: which numbers it holds may itself be decided by numbers.
    """
    return x.layout == torch.strided and (x.is_floating_point() or x.is_complex())


def _crosses(marks: Sequence[Tensor], are_gated: Sequence[bool]) -> bool:
    """Return whether each of two tensors has marks where the other has none.

    If it is a product with a gate, that holds for what is added to it.
    """
    first, second = torch.broadcast_tensors(*marks[:2])
    beyond = bool((first & ~second).any()), bool((second & ~first).any())
    is_beyond = any(more for more, is_gated in zip(beyond, are_gated, strict=False) if is_gated)
    return all(beyond) or is_beyond


def _are_several(marks: Tensor, total: Tensor) -> bool:
    """Return whether a sum over dimensions adds up numbers with other marks."""
    if marks.dim() <= total.dim() or marks.shape[marks.dim() - total.dim() :] != total.shape:
        return False
    return bool((marks != marks[(slice(0, 1),) * (marks.dim() - total.dim())]).any())
