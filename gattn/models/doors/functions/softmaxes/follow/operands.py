"""Says what functions are given, and which numbers of it they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

WITHOUT_NUMBERS = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in (
        *("isnan", "isinf", "isfinite", "zeros_like", "ones_like", "empty_like"),
        *("full_like", "rand_like", "new_zeros", "new_ones", "new_empty", "new_full"),
    )
    if hasattr(of, name)
)
"""Functions whose results hold no number of what they are given."""
_ASK_OF_FORM = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in (
        *("size", "stride", "dim", "ndimension", "numel", "nelement", "storage_offset", "data_ptr"),
        *("untyped_storage", "is_shared", "is_pinned"),
        *("is_floating_point", "is_complex", "is_contiguous", "element_size", "get_device"),
        *("is_inference", "is_same_size", "__len__", "__hash__"),
    )
    if hasattr(of, name)
)
_OF_NUMBERS = frozenset(("data", "grad", "real", "imag", "T", "mT", "H", "mH"))
OF_THE_FIRST = frozenset(
    getattr(Tensor, name) for name in ("to", "type_as", "view_as", "reshape_as", "expand_as")
)
"""Functions whose results hold no number but of the first tensor that they are given."""


def asks_of_form(func: Any) -> bool:
    """Return whether a function reads no number, but sizes, types and the like."""
    is_getter = getattr(func, "__name__", "") == "__get__"
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    return func in _ASK_OF_FORM or (is_getter and name not in _OF_NUMBERS)


def operands(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """List a function's operands, those in lists included."""
    found: list[Any] = []
    for one in (*args, *kwargs.values()):
        found += one if isinstance(one, (list, tuple)) else (one,)
    return found
