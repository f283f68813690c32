"""Tells functions that only mix the attention of heads: weighted sums, the same for all keys."""

from __future__ import annotations

from collections.abc import Mapping
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
    - f(0)) for all c and P that multiply and exchange keys.
    """
    if getattr(func, "__name__", "") not in _LINEAR:
        return None
    with torch.no_grad(), _disable_current_modes():  # It is no part of the model.
        return _key(func, args, kwargs, followed, result)


def _key(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Tensor
) -> int | None:
    sizes = followed.scores.shape
    size, keys = sizes[followed.key], followed.folded or sizes[followed.key]
    generator = torch.Generator().manual_seed(0)
    order = torch.arange(size).reshape(-1, keys)[:, torch.randperm(keys, generator=generator)]
    order = order.flatten()
    factors = torch.rand(keys, generator=generator, dtype=torch.double).repeat(size // keys) + 0.5

    def moved(x: Tensor, dim: int) -> Tensor:
        shape = [-1 if n == dim else 1 for n in range(x.dim())]
        return factors.to(x.device).reshape(shape) * x.index_select(dim, order.to(x.device))

    def drawn(of: Tensor) -> Tensor:
        return torch.randn(of.shape, generator=generator, dtype=torch.double).to(of.device)

    ran: list[Tensor] = []
    known: dict[int, list[Tensor]] = {}
    with suppress(RuntimeError, TypeError):
        for run in range(4):

            def given(x: Any, run: int = run) -> Any:
                if not isinstance(x, Tensor) or not x.is_floating_point():
                    return x
                its = followed if x is result else seen_before(x)  # It was changed in place.
                if its is None or not _has_keys(its, size):
                    return x.double()
                if id(x) not in known:
                    one, other = drawn(x), drawn(x)
                    both = moved(one, its.key) + other
                    known[id(x)] = [one, other, both, torch.zeros_like(one)]
                return known[id(x)][run].clone()

            ran.append(func(*tree_map(given, args), **tree_map(given, dict(kwargs))))
    if len(ran) < 4:
        return None
    one, other, both, bias = ran
    if getattr(func, "__name__", "") not in _PRODUCTS and bool(bias.any()):
        return None
    least = _ROUNDING * float(both.abs().max()) if both.numel() else 0.0
    places = [n for n, count in enumerate(both.shape) if count == size]
    for n in sorted(places, key=lambda n: (n != followed.key, -n)):
        is_even = bool((bias == bias.narrow(n, 0, 1)).all())
        if is_even and bool(((moved(one - bias, n) + other - both).abs() <= least).all()):
            return n
    return None


def _has_keys(one: Followed, size: int) -> bool:
    return one.is_mixture and one.key >= 0 and one.scores.shape[one.key] == size
