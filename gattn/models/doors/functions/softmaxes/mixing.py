"""Tells functions that only mix the attention of heads: weighted sums, the same for all keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from gattn.models.doors.functions.softmaxes.following import Followed, seen_before

_SCALES = frozenset(
    (
        *("mul", "mul_", "multiply", "div", "div_", "divide", "true_divide"),
        *("__mul__", "__rmul__", "__imul__", "__truediv__", "__itruediv__"),
    )
)
_SUMS = frozenset(("add", "add_", "sub", "sub_", "__add__", "__radd__", "__iadd__", "__sub__"))
_PRODUCTS = frozenset(
    (
        *("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "einsum", "tensordot"),
        *("linear", "conv1d", "conv2d", "conv3d"),
    )
)
_LINEAR = _SCALES | _SUMS | _PRODUCTS
_ROUNDING = 1e-9


def is_scale(func: Any) -> bool:
    """Return whether a function multiplies or divides number by number."""
    return getattr(func, "__name__", "") in _SCALES


def mixed_key(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> int | None:
    """Return the dimension of the keys in a mixture; None if a function makes something else.

    A mixture is linear in the attention, and weighs all keys alike; a bias may be added to it. So
    the function f is run again on random numbers x and y instead: f(c P x + y) - f(y) is c P (f(x)
    - f(0)) for all c and P that multiply and exchange keys. It mixes neither queries nor texts:
    with c that multiply these, f(c x) - f(0) is c (f(x) - f(0)).
    """
    if getattr(func, "__name__", "") not in _LINEAR:
        return None
    with torch.no_grad(), _disable_current_modes():  # It is no part of the model.
        return _Trial(func, args, kwargs, followed, result).key()


class _Trial:
    """A function that is run again, on random numbers in place of attention."""

    def __init__(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        followed: Followed,
        result: Tensor,
    ) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._followed, self._result = followed, result
        self._sizes = followed.scores.shape
        self._size = self._sizes[followed.key]
        self._keys = followed.folded or self._size
        self._generator = torch.Generator().manual_seed(0)
        self._drawn: dict[int, Tensor] = {}

    def key(self) -> int | None:
        """Return the dimension of the keys in what a mixture gives; None if it gives none."""
        size, keys = self._size, self._keys
        order = torch.arange(size).reshape(-1, keys)
        order = order[:, torch.randperm(keys, generator=self._generator)].flatten()
        factors = self._factors(keys).repeat(size // keys)

        def moved(x: Tensor, dim: int) -> Tensor:
            return _times(x.index_select(dim, order.to(x.device)), factors, dim)

        others: dict[int, Tensor] = {}

        def other_of(x: Tensor) -> Tensor:
            if id(x) not in others:
                others[id(x)] = self._new(x)
            return others[id(x)]

        one = self._ran(lambda x, its: self._own(x))
        other = self._ran(lambda x, its: other_of(x))
        both = self._ran(lambda x, its: moved(self._own(x), its.key) + other_of(x))
        bias = self._ran(lambda x, its: torch.zeros_like(x, dtype=torch.double))
        if one is None or other is None or both is None or bias is None:
            return None
        is_product = getattr(self._func, "__name__", "") in _PRODUCTS
        if not is_product and bool(bias.any()):
            return None
        least = _ROUNDING * float(both.abs().max()) if both.numel() else 0.0
        places = [n for n, count in enumerate(both.shape) if count == size]
        for n in sorted(places, key=lambda n: (n != self._followed.key, -n)):
            is_even = bool((bias == bias.narrow(n, 0, 1)).all())
            if is_even and bool(((moved(one - bias, n) + other - both).abs() <= least).all()):
                return n if not is_product or self._is_of_heads(one - bias, bias) else None
        return None

    def _is_of_heads(self, one: Tensor, bias: Tensor) -> bool:
        """Return whether at most one dimension is mixed, which holds neither queries nor texts.

        Where sizes do not tell them apart, queries are beside the keys.
        """
        key, dims = self._followed.key, len(self._sizes)
        if self._followed.folded and not self._keeps(key, self._keys, one, bias):
            return False
        mixed = [n for n in range(dims) if n != key and not self._keeps(n, 1, one, bias)]
        if not mixed:
            return True
        has_folded = bool(self._followed.folded)
        if len(mixed) > 1 or (mixed[0] == 0 and dims > 3 - has_folded):
            return False
        beside = key - 1 if key == dims - 1 else key + 1
        rest = [n for n in range(dims) if n not in (0, key, *mixed)]
        are_told = self._sizes[mixed[0]] != self._keys in [self._sizes[n] for n in rest]
        return has_folded or mixed[0] != beside or are_told

    def _keeps(self, dim: int, inner: int, one: Tensor, bias: Tensor) -> bool:
        """Return whether the places along a dimension, of so many numbers each, are kept apart."""
        size = self._sizes[dim]
        if size // inner == 1:
            return True
        factors = self._factors(size // inner).repeat_interleave(inner)
        given = self._ran(lambda x, its: _times(self._own(x), factors, dim))
        if given is None:
            return False
        least = _ROUNDING * float(given.abs().max()) if given.numel() else 0.0
        places = [n for n, count in enumerate(one.shape) if count == size]
        return any(
            bool(((_times(one, factors, n) - (given - bias)).abs() <= least).all()) for n in places
        )

    def _ran(self, made: Callable[[Tensor, Followed], Tensor]) -> Tensor | None:
        """Run the function on what is made in place of attention; None if it fails."""

        def given(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.is_floating_point():
                return x
            # It may have been changed in place.
            its = self._followed if x is self._result else seen_before(x)
            if its is None or not _has_keys(its, self._size):
                return x.double()
            return made(x, its).clone()

        with suppress(RuntimeError, TypeError, IndexError):
            found: Tensor = self._func(
                *tree_map(given, self._args), **tree_map(given, self._kwargs)
            )
            return found
        return None

    def _own(self, x: Tensor) -> Tensor:
        if id(x) not in self._drawn:
            self._drawn[id(x)] = self._new(x)
        return self._drawn[id(x)]

    def _new(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=self._generator, dtype=torch.double).to(x.device)

    def _factors(self, count: int) -> Tensor:
        return torch.rand(count, generator=self._generator, dtype=torch.double) + 0.5


def _times(x: Tensor, factors: Tensor, dim: int) -> Tensor:
    shape = [-1 if n == dim else 1 for n in range(x.dim())]
    return x * factors.to(x.device).reshape(shape)


def _has_keys(one: Followed, size: int) -> bool:
    return one.is_mixture and one.key >= 0 and one.scores.shape[one.key] == size
