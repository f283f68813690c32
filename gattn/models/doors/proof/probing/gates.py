"""Finds where numbers that tokens made, as a gate is, may exchange them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.softmaxes.einsum_labels import labels_of
from gattn.models.doors.proof.probing.one_run.inputs import has_nan, is_nan

_PRODUCTS = frozenset(("mul", "rmul", "imul", "multiply"))
_SUMS = frozenset(("add", "radd", "iadd"))
_DIFFERENCES = frozenset(("sub", "isub", "subtract", "rsub"))
_TOTALS = frozenset(("sum", "mean"))
_MAPS = {"linear": -1, "matmul": -1, "conv1d": -2, "conv2d": -3, "conv3d": -4}
"""What adds up the numbers of a dimension with weights."""
_PICKS = frozenset(("amax", "amin", "max", "min", "median", "nanmedian", "kthvalue"))
_PICKS |= {"maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "clip"}
_POSITIVE = frozenset(("relu", "clamp", "clamp_min", "clip"))


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
        self._joined: Any = WeakTensorKeyDictionary()
        """What was joined of tensors that hold other tokens each."""

    def exchange(self, name: str, given: Sequence[Tensor], result: Tensor) -> bool:
        """Look at a function of floating-point tensors; say whether it may exchange tokens."""
        if not given:  # What integers and masks decide is no token.
            return False
        if name in _TOTALS:
            return any(_differ(marks, result) for marks in self._factors.get(given[0], ()))
        if name in _MAPS:
            return self._adds_up(_MAPS[name], given[:2])
        if name in _POSITIVE and len(given) == 1 and given[0] in self._less:
            self._factors[result] = (self._marks_of(given[0]),)  # As a gate, it may be zero.
            self._less[result] = self._less[given[0]]
        if name in _PICKS:
            return self._picks(given, result)
        if name == "lerp":
            return len(given) > 2 and has_nan(given[2]) and self._cross(*given[:2])
        if name == "addcmul":
            product = given[1] * given[2]
            self.exchange("mul", given[1:], product)
            return self.exchange("add", (given[0], product), result)
        if name in _PRODUCTS | _SUMS | _DIFFERENCES and len(given) == 1:
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
                self._less[result] = (given[0], other), (given[1], one)
            if all(x in self._factors and x.shape == result.shape for x in given):
                some = torch.stack([m for x in given for m in self._factors[x]])
                self._factors[result] = tuple(some.unique(dim=0))
            return self._is_choice(*given)
        return False

    def carry(
        self, given: Sequence[Tensor], through: Callable[..., Tensor], result: Tensor
    ) -> None:
        """Look at a function that only moves numbers; `through` does so with others."""
        if any(x in self._marks for x in given):
            self._marks[result] = through(*map(self._marks_of, given))
        pairs = combinations(given, 2)
        if any(x in self._joined for x in given) or any(
            one.shape == other.shape and self._cross(one, other) for one, other in pairs
        ):
            self._joined[result] = True
        if any(x in self._factors for x in given):  # What is no product stays, whatever gates do.
            some = [self._factors.get(x, (self._marks_of(x) & False,)) for x in given]
            count = max(map(len, some))
            self._factors[result] = [
                through(*(one[min(n, len(one) - 1)] for one in some)) for n in range(count)
            ]

    def contract(self, equation: str, given: Sequence[Tensor], result: Tensor) -> bool:
        """Look at an einsum of two tensors that multiplies number by number, and may add up."""
        labels = labels_of(equation, *given)
        if labels is None:
            return False
        *each, out = labels
        every = out + "".join(n for n in dict.fromkeys("".join(each)) if n not in out)
        if not any(set(every) == set(own) for own in each):
            return False
        factors = []
        for x, own in zip(given, each, strict=True):

            def aligned(x: Tensor, own: str = own) -> Tensor:
                x = x.permute(*(own.index(n) for n in every if n in own))
                return x[tuple(slice(None) if n in own else None for n in every)]

            factors.append(aligned(x))
            self.carry([x], aligned, factors[-1])
        whole = factors[0] * factors[1]
        self.exchange("mul", factors, whole)
        if len(every) == len(out):
            self._scale(whole, result)
            result.data.masked_fill_(~whole.isnan(), 0)
        dims = range(len(out), len(every))
        return any(_are_several(m, dim) for m in self._factors.get(whole, ()) for dim in dims)

    def weigh_by_values(self, marks: Tensor, result: Tensor) -> None:
        """Note a product of what has these marks, and of masks or steps that values made."""
        self._factors[result] = (marks,)

    def set_apart(self, x: Tensor) -> Tensor:
        """Return a copy of what is about to change in place, and forget what was known of it."""
        twin = x.clone()
        self._scale(x, twin)
        for known in (self._marks, self._factors, self._less, self._joined):
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
        if not all(map(has_nan, given)):
            for x in filter(has_nan, given):
                self._scale(x, result)
            return
        gate, weighed = sorted(given, key=Tensor.numel)
        if weighed.shape == result.shape != gate.shape and self._cross(gate, weighed):
            result.data.masked_fill_(~weighed.isnan(), 0)  # It holds the tokens that it weighs.
        tokens = [x for x in given if not self._is_gate(x)]
        if len(tokens) == 1 and tokens[0].shape == result.shape:
            self._marks[result] = self._marks_of(tokens[0])
        factors = [m for x in tokens for m in self._factors.get(x, (self._marks_of(x),))]
        if factors:  # A product of gates is a gate.
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
                return any(_are_apart(m, marks) for side, m in sides if _are_equal(side, rest))
        return False

    def _adds_up(self, dim: int, given: Sequence[Tensor]) -> bool:
        """Return whether a product of matrices adds up products with gates, of other tokens."""
        return any(
            _are_several(marks, -2 if n else dim)
            for n, x in enumerate(given)
            if x.dim() > 1
            for marks in self._factors.get(x, ())
        )

    def _picks(self, given: Sequence[Tensor], result: Tensor) -> bool:
        """Return whether larger or smaller numbers are taken, of other tokens each."""
        first, *others = given
        if not others:
            return first in self._joined and _differ(self._marks_of(first), result)
        return any(first.shape == x.shape and self._cross(first, x) for x in others)

    def _cross(self, one: Tensor, other: Tensor) -> bool:
        return _are_apart(self._marks_of(one), self._marks_of(other))

    def _is_gate(self, x: Tensor) -> bool:
        return x not in self._marks and is_nan(x)

    def _marks_of(self, x: Tensor) -> Tensor:
        marks: Tensor = self._marks[x] if x in self._marks else x.isnan()
        return marks


def _are_apart(one: Tensor, other: Tensor) -> bool:
    """Return whether each has marks where the other has none."""
    return bool((one & ~other).any()) and bool((other & ~one).any())


def _are_several(marks: Tensor, dim: int) -> bool:
    """Return whether places along a dimension have other marks each."""
    found = marks.movedim(dim, 0).flatten(1).unique(dim=0)
    return any(_are_apart(*pair) for pair in combinations(found, 2))


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _differ(marks: Tensor, total: Tensor) -> bool:
    """Return whether a sum over a dimension adds up numbers with other marks."""
    for dim in range(marks.dim()):
        if marks.shape[:dim] + marks.shape[dim + 1 :] == total.shape:
            first, *others = marks.unbind(dim)
            if any(_are_apart(first, one) for one in others):
                return True
    return False
