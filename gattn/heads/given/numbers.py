"""Numbers of any library, as tensors of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.checks import refuse_hidden
from gattn.errors import ShapeError


def as_floats(values: Any, name: str) -> Tensor:
    """Take numbers of any kind, on any device: double where they are, half as single."""
    refuse_hidden(name, values, ShapeError)
    try:
        found = values.detach() if isinstance(values, Tensor) else torch.from_numpy(_array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{name} must hold numbers, not {type(values).__name__}.") from error
    if found.is_complex() or found.dtype == torch.bool:
        raise ShapeError(f"{name} must hold real numbers, not {found.dtype}.")
    if not found.is_floating_point():
        return found.double()
    return found if found.dtype == torch.float64 else found.float()


def _array(values: Any) -> NDArray[Any]:
    found = np.array(values, order="C")
    if found.dtype.byteorder not in "=|":
        found = found.astype(found.dtype.newbyteorder("="))
    return found.astype(np.float64) if found.size == 0 or found.dtype == np.longdouble else found
