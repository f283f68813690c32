"""Tells functions that only mix the attention of heads: weighted sums, the same for all keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from gattn.models.doors.functions.softmaxes.follow.following import Followed, seen_before

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
        *("linear", "conv1d", "conv2d", "conv3d", "mean", "sum"),
    )
)
_LINEAR = _SCALES | _SUMS | _PRODUCTS
_ROUNDING = 1e-9
Sides = tuple[int | None, int | None]
ONE = -9
"""The place of queries of which there is one: it is no other dimension's."""


def is_scale(func: Any) -> bool:
    """Return whether a function multiplies or divides number by number."""
    return getattr(func, "__name__", "") in _SCALES


def mixed_dims(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> tuple[int | None, Sides, bool]:
    """Return the dimension of keys in a mixture, None if a function makes something else.

    Also return those of queries and of texts, as in `Followed.sides`, and whether it is across a
    leading dimension.

    A mixture is linear in the attention, and weighs all keys alike; a bias may be added to it. So
    the function f is run again on random numbers x and y instead: f(c P x + y) - f(y) is c P (f(x)
    - f(0)) for all c and P that multiply and exchange keys. It mixes neither queries nor texts:
    with c that multiply these, f(c x) - f(0) is c (f(x) - f(0)).
    """
    if getattr(func, "__name__", "") not in _LINEAR:
        return None, (None, None), False
    with torch.no_grad(), _disable_current_modes():  # It is no part of the model.
        trial = _Trial(func, args, kwargs, followed, result)
        return trial.key(), trial.sides, trial.is_across


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
        self.sides: Sides = followed.sides
        self.is_across = False

    def key(self) -> int | None:
        """Return the dimension of the keys in what a mixture gives; None if it gives none."""
        size, keys = self._size, self._keys
        order = torch.arange(size, device="cpu").reshape(-1, keys)
        order = order[:, torch.randperm(keys, generator=self._generator, device="cpu")].flatten()
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
        """Return whether at most one dimension is mixed, which holds neither queries nor texts."""
        key, dims = self._followed.key, range(len(self._sizes))
        if self._followed.folded and self._place(key, self._keys, one, bias) is None:
            return False
        places = {n: self._place(n, 1, one, bias) for n in dims if n != key}
        query, text = self._followed.sides
        self.sides = (
            None if query is None else places.get(query, query),
            None if text is None else places.get(text, text),
        )
        mixed = [n for n, place in places.items() if place is None]
        self.is_across = bool(mixed)
        is_known = query is not None or bool(self._followed.folded)
        return not mixed or (is_known and len(mixed) == 1 and mixed[0] not in (query, text))

    def _place(self, dim: int, inner: int, one: Tensor, bias: Tensor) -> int | None:
        """Return where a dimension is kept, of so many numbers in each place; None if it is mixed.

        A dimension of one place is nowhere else.
        """
        size = self._sizes[dim]
        if size // inner == 1:
            return ONE
        factors = self._factors(size // inner).repeat_interleave(inner)
        given = self._ran(lambda x, its: _times(self._own(x), factors, dim))
        if given is None:
            return None
        least = _ROUNDING * float(given.abs().max()) if given.numel() else 0.0
        places = [n for n, count in enumerate(one.shape) if count == size]
        for n in sorted(places, key=lambda n: n != dim):
            if bool(((_times(one, factors, n) - (given - bias)).abs() <= least).all()):
                return n
        return None

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
        return torch.randn(x.shape, generator=self._generator, dtype=torch.double, device="cpu").to(
            x.device
        )

    def _factors(self, count: int) -> Tensor:
        return torch.rand(count, generator=self._generator, dtype=torch.double, device="cpu") + 0.5


def _times(x: Tensor, factors: Tensor, dim: int) -> Tensor:
    shape = [-1 if n == dim else 1 for n in range(x.dim())]
    return x * factors.to(x.device).reshape(shape)


def _has_keys(one: Followed, size: int) -> bool:
    return one.is_mixture and one.key >= 0 and one.scores.shape[one.key] == size
