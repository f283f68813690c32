"""Lets marks, which are NaN, pass through code that replaces NaN, or asks where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.proof.probing.one_run.inputs import has_nan

REPLACES = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in ("nan_to_num", "nan_to_num_", "isnan", "isfinite")
    if hasattr(of, name)
)
"""What code calls lest NaN spreads."""


def first(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """Return the tensor that one of these functions is given."""
    return args[0] if args else (kwargs or {}).get("input")


def holds_nan(x: Any) -> bool:
    """Return whether a tensor may hold NaN of the model's own."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # It is no part of the model.
        return not isinstance(x, Tensor) or x.layout is not torch.strided or has_nan(x)


def kept_nan(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a function as if the marks that it is given were numbers."""
    with torch._C.DisableTorchFunction():
        marks = first(args, kwargs).isnan()
    result = func(*args, **kwargs)
    with torch._C.DisableTorchFunction():
        if result.is_floating_point():
            result.data.masked_fill_(marks, torch.nan)  # It may be followed.
        else:
            result.masked_fill_(marks, func.__name__ == "isfinite")
        return result
