"""Finds where numbers that tokens made, as a gate is, may exchange them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any
from weakref import ref

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_PRODUCTS = frozenset(("mul", "rmul", "imul", "multiply"))
_SUMS = frozenset(("add", "radd", "iadd"))
_DIFFERENCES = frozenset(("sub", "isub", "subtract", "rsub"))
_TOTALS = frozenset(("sum", "mean"))


class Gates:
    """Follows tokens that numbers weigh which tokens made, in a run with NaN in some of them.

    Where such a gate is closed or open, ``x * (1 - gate) + x.flip(1) * gate`` and ``x + (x.flip(1)
    - x) * gate`` hold other tokens. A gated convolution holds its own in any case. A gate may be
    one number, which all tokens made, or have one for each token or channel.
    """

    def __init__(self) -> None:
        self._marks: Any = WeakTensorKeyDictionary()
        """The marks of what is all NaN, but for its gates."""
        self._factors: Any = WeakTensorKeyDictionary()
        """The marks that a product has if any of its factors is a gate."""
        self._less: Any = WeakTensorKeyDictionary()
        """Both sides of a difference, and the marks of the other side of each."""

    def exchange(self, name: str, given: Sequence[Tensor], result: Tensor) -> bool:
        """Look at a function of floating-point tensors; say whether it may exchange tokens."""
        if name in _TOTALS:
            return any(_differ(marks, result) for marks in self._factors.get(given[0], ()))
        if name == "lerp":
            return len(given) > 2 and _is_marked(given[2]) and self._cross(*given[:2])
        if name == "addcmul":
            product = given[1] * given[2]
            self.exchange("mul", given[1:], product)
            return self.exchange("add", (given[0], product), result)
        if name in _PRODUCTS and len(given) == 1:
            self._scale(given[0], result)
        if len(given) != 2:
            return False
        if name in _PRODUCTS:
            self._weigh(given, result)
        elif name in _SUMS or name in _DIFFERENCES:
            one, other = map(self._marks_of, given)
            if any(x in self._marks for x in given):
                self._marks[result] = one | other
            if name in _DIFFERENCES:
                self._less[result] = (ref(given[0]), other), (ref(given[1]), one)
            return self._is_choice(*given)
        return False

    def carry(
        self, given: Sequence[Tensor], through: Callable[..., Tensor], result: Tensor
    ) -> None:
        """Look at a function that only moves numbers; `through` does so with others."""
        if any(x in self._marks for x in given):
            self._marks[result] = through(*map(self._marks_of, given))
        if any(x in self._factors for x in given):
            some = [self._factors.get(x, (self._marks_of(x),)) for x in given]
            count = max(map(len, some))
            self._factors[result] = [
                through(*(one[min(n, len(one) - 1)] for one in some)) for n in range(count)
            ]

    def set_apart(self, x: Tensor) -> Tensor:
        """Return a copy of what is about to change in place, and forget what was known of it."""
        twin = x.clone()
        self._scale(x, twin)
        for known in (self._marks, self._factors, self._less):
            known.pop(x, None)
        return twin

    def multiply(self, x: Tensor, gate: Tensor, marks: Tensor, result: Tensor) -> bool:
        """Look at a product of matrices, one of which gates made; say whether it mixes tokens.

        `marks` are those that the product has with a matrix without zeros.
        """
        if not self._is_gate(gate) or self._is_gate(x):
            return False
        self._marks[result] = marks
        return bool(marks.all()) and not bool(self._marks_of(x).all())

    def _scale(self, x: Tensor, result: Tensor) -> None:
        for known in (self._marks, self._factors, self._less):
            if x in known and x.shape == result.shape:
                known[result] = known[x]

    def _weigh(self, given: Sequence[Tensor], result: Tensor) -> None:
        if not all(map(_is_marked, given)):
            for x in filter(_is_marked, given):
                self._scale(x, result)
            return
        tokens = [x for x in given if not self._is_gate(x)]
        if len(tokens) == 1 and tokens[0].shape == result.shape:
            self._marks[result] = self._marks_of(tokens[0])
        factors = [m for x in tokens for m in self._factors.get(x, (self._marks_of(x),))]
        self._factors[result] = [m.expand(result.shape) for m in factors]
        for x in tokens:
            if x in self._less and x.shape == result.shape:
                self._less[result] = self._less[x]

    def _is_choice(self, one: Tensor, other: Tensor) -> bool:
        """Return whether a sum is of either of two that hold other tokens each."""
        if one.shape != other.shape:
            return False
        if one in self._factors and other in self._factors:
            pairs = product(self._factors[one], self._factors[other])
            return any(_are_apart(*pair) for pair in pairs)
        for gated, rest in ((one, other), (other, one)):
            if gated in self._factors and gated in self._less:
                marks = self._marks_of(rest)
                sides = self._less[gated]
                return any(_are_apart(m, marks) for side, m in sides if side() is rest)
        return False

    def _cross(self, one: Tensor, other: Tensor) -> bool:
        return _are_apart(self._marks_of(one), self._marks_of(other))

    def _is_gate(self, x: Tensor) -> bool:
        return x not in self._marks and bool(x.isnan().all())

    def _marks_of(self, x: Tensor) -> Tensor:
        marks: Tensor = self._marks[x] if x in self._marks else x.isnan()
        return marks


def _is_marked(x: Tensor) -> bool:
    return bool(x.isnan().any())


def _are_apart(one: Tensor, other: Tensor) -> bool:
    """Return whether each has marks where the other has none."""
    return bool((one & ~other).any()) and bool((other & ~one).any())


def _differ(marks: Tensor, total: Tensor) -> bool:
    """Return whether a sum over a dimension adds up numbers with other marks."""
    for dim in range(marks.dim()):
        if marks.shape[:dim] + marks.shape[dim + 1 :] == total.shape:
            first, *others = marks.unbind(dim)
            if any(_are_apart(first, one) for one in others):
                return True
    return False
