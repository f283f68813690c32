"""Lets marks, which are NaN, pass through code that replaces NaN, or asks where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.proof.probing.one_run.inputs import has_nan


def _functions(*names: str) -> frozenset[Any]:
    return frozenset(getattr(of, x) for of in (torch, Tensor) for x in names if hasattr(of, x))


REPLACES = _functions("nan_to_num", "nan_to_num_")
_TESTS = _functions("isnan", "isfinite", "isinf", "isposinf", "isneginf")
_COMPARES = _functions("eq", "ne", "not_equal", "__eq__", "__ne__")
"""What tells NaN if it compares numbers with themselves, as `x != x`."""
_HOLD = _functions("isfinite", "eq", "__eq__")
"""The tests that hold of most numbers, rather than of NaN."""


def is_test(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Return whether code looks for NaN or infinity."""
    if func not in _COMPARES:
        return func in _TESTS
    x, other = given_tensor(args, kwargs), args[1] if len(args) > 1 else (kwargs or {}).get("other")
    return x is other and isinstance(x, Tensor) and x.is_floating_point()


def meets_nan(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Return whether code calls a function lest NaN or infinity spreads."""
    return func in REPLACES or is_test(func, args, kwargs)


def given_tensor(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """Return the tensor that one of these functions is given."""
    return args[0] if args else (kwargs or {}).get("input")


def found_in(func: Any, x: Any) -> Tensor | bool | None:
    """Return what a test finds of a model's own numbers: one answer, if it is the same for all.

    It is None where NaN of the model's own is to be replaced, or nothing is known.
    """
    if not isinstance(x, Tensor) or x.layout is not torch.strided:
        return None
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # It is no part of the model.
        if func in REPLACES:
            return None if has_nan(x) else False
        found = func(x, x) if func in _COMPARES else func(x)
        is_same = not found.numel() or bool(found.all()) or not bool(found.any())
        return bool(found.flatten()[:1].any()) if is_same else found


def with_marks(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Tensor | bool
) -> Any:
    """Run a function that is given marks, as if they were the numbers that it was given before."""
    with torch._C.DisableTorchFunction():
        marks = given_tensor(args, kwargs).isnan()
    result = func(*args, **kwargs)
    with torch._C.DisableTorchFunction():
        if func in REPLACES:
            result.data.masked_fill_(marks, torch.nan)  # It may be followed.
        elif isinstance(found, Tensor) and found.shape == result.shape:
            result.copy_(torch.where(marks, found, result))
        else:  # It may be any of those that were found in another shape, such as infinite.
            is_found = func not in _HOLD if isinstance(found, Tensor) else found
            result.masked_fill_(marks, is_found)
        return result
