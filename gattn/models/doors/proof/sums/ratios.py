"""Finds where sums of weighed values are divided by sums of the weights, which is a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_EXPONENTIALS = frozenset(("exp", "exp_", "exp2", "exp2_", "_softmax", "_safe_softmax"))
_PRODUCTS = frozenset(("mul", "mul_"))
_DIVISIONS = frozenset(("div", "div_"))
_MATRICES = frozenset(("mm", "bmm", "addmm", "baddbmm"))
_ADDS = frozenset(("add", "add_", "cat", "stack"))
_SUMS = frozenset(("sum", "mean"))
_OTHER = frozenset(("log", "log_", "_log_softmax", "sigmoid", "tanh"))
"""What makes numbers that are no sums any more."""
_STEPS = 4
"""So many numbers are added up one by one as over tokens, rather than over branches of a gate."""


class Ratios:
    """The modules that divide sums of `exp(k) * v` over tokens by those of `exp(k)`.

    They are `found` where these are sums, running sums, products with another matrix, or added up
    in a loop. Sums over the last dimension alone may be over the channels of a token.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._scores: Any = WeakTensorKeyDictionary()
        self._weights: Any = WeakTensorKeyDictionary()
        self._weighed: Any = WeakTensorKeyDictionary()
        self._inverse: Any = WeakTensorKeyDictionary()

    def note(self, where: str, kernel: str, given: Sequence[Any], result: Tensor) -> None:
        """Look at a kernel that ran."""
        parts = given[0] if given and isinstance(given[0], (list, tuple)) else given
        tensors = [x for x in parts if isinstance(x, Tensor)]
        if kernel in _EXPONENTIALS and result.numel() > 1:
            # Code may take them twice of the same scores.
            scores = self._scores.setdefault(tensors[0], object())
            self._weights[result] = _Sum(frozenset((scores,)))
        elif tensors and kernel not in _OTHER:
            self._follow(where, kernel, given, tensors, result)

    def _follow(
        self, where: str, kernel: str, given: Sequence[Any], tensors: list[Tensor], result: Tensor
    ) -> None:
        inverse = next((self._inverse[x] for x in tensors if x in self._inverse), None)
        weighed = [self._weighed[x] for x in tensors if x in self._weighed]
        weights = [self._weights[x] for x in tensors if x in self._weights]
        if inverse is not None:
            self._inverse[result] = inverse
            self._compare(where, weighed, [inverse])
        elif kernel in _DIVISIONS:
            if tensors[0] in self._weighed:
                self._weighed[result] = weighed[0]
                self._compare(where, weighed, weights)
        elif kernel == "reciprocal":
            for one in weights:
                self._inverse[result] = one
        elif weighed or weights:
            is_value = kernel in _PRODUCTS and len(weights) == 1 < len(tensors)
            into = self._weighed if weighed or is_value else self._weights
            into[result] = _joined(weighed or weights, kernel, given)

    def _compare(self, where: str, some: Sequence[_Sum], others: Sequence[_Sum]) -> None:
        pairs = ((one, other) for one in some for other in others if one.of & other.of)
        if any(one.is_over_tokens and other.is_over_tokens for one, other in pairs):
            self.found.add(where)


class _Sum(NamedTuple):
    """What was made of exponentials: of which, how many were added up, and whether a kernel did."""

    of: frozenset[object]
    count: int = 1
    is_sum: bool = False

    @property
    def is_over_tokens(self) -> bool:
        """Whether it may be a sum over tokens."""
        return self.is_sum or self.count >= _STEPS


def _joined(some: Sequence[_Sum], kernel: str, given: Sequence[Any]) -> _Sum:
    of = frozenset[object]().union(*(one.of for one in some))
    counts = [one.count for one in some]
    is_sum = _adds_up(kernel, given) or any(one.is_sum for one in some)
    return _Sum(of, sum(counts) if kernel in _ADDS else max(counts), is_sum)


def _adds_up(kernel: str, given: Sequence[Any]) -> bool:
    if kernel not in _SUMS:
        return kernel == "cumsum" or kernel in _MATRICES
    x, dims = given[0], given[1] if len(given) > 1 else ()
    return any(dim % x.dim() != x.dim() - 1 for dim in dims or range(x.dim()))
