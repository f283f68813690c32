"""Tells functions that only mix the attention of heads: weighted sums, the same for all keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.softmaxes.einsum_labels import labels_of

_SCALES = frozenset(
    (
        *("mul", "mul_", "multiply", "div", "div_", "divide", "true_divide"),
        *("__mul__", "__rmul__", "__imul__", "__truediv__", "__itruediv__"),
    )
)
_SUMS = frozenset(("add", "add_", "sub", "sub_", "__add__", "__radd__", "__iadd__", "__sub__"))
_CONVOLUTIONS = frozenset(("conv1d", "conv2d", "conv3d"))


def is_scale(func: Any) -> bool:
    """Return whether a function multiplies or divides number by number."""
    return getattr(func, "__name__", "") in _SCALES


def mixed_key(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    size: torch.Size,
    key: int,
    mixtures: int,
    result: Tensor,
) -> int | None:
    """Return the dimension of the keys in a mixture; None if a function makes something else.

    `size` and `key` are the shape of the attention and the dimension of its keys; `mixtures` counts
    the operands that are attention or mixtures of it.
    """
    name = getattr(func, "__name__", "")
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if func is torch.einsum:
        return _key_of_einsum(args, size, key)
    if result.dim() != len(size) or result.shape[key] != size[key]:
        return None
    weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
    is_parameter = isinstance(weight, nn.Parameter)
    if name in _SUMS:
        is_mixture = mixtures == len(given) == len(args)
    elif name in _SCALES:
        factors = [x for x in given if x.shape != size]
        is_even = all(x.dim() < len(size) - key or x.shape[key - len(size)] == 1 for x in factors)
        is_divisor = "div" in name and isinstance(args[0], Tensor) and args[0].shape != size
        is_mixture = len(factors) == len(given) - 1 and is_even and not is_divisor
    elif name == "linear":
        is_mixture = is_parameter and key != len(size) - 1
    elif name in _CONVOLUTIONS:
        is_mixture = is_parameter and key > 1 and weight.shape[2:].numel() == 1
    else:
        is_mixture = False
    return key if is_mixture else None


def _key_of_einsum(args: tuple[Any, ...], size: torch.Size, key: int) -> int | None:
    """Find the keys in what an einsum of attention and a parameter gives."""
    if len(args) != 3 or not isinstance(args[0], str):
        return None
    labels = labels_of(*args)
    place = 0 if args[1].shape == size else 1
    if labels is None or not isinstance(args[2 - place], nn.Parameter):
        return None
    mine, its, out = labels[place], labels[1 - place], labels[2]
    label = mine[key]
    return out.index(label) if label in out and label not in its else None
