"""What graphs are built from: tensors, arrays or lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.errors import GraphError


def as_tensor(values: Any, name: str) -> Tensor:
    """Take a tensor, an array or lists."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.array(values, order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"{name} must be a tensor or an array of numbers: {error}") from error


def whole_numbers(values: Any, name: str) -> Tensor:
    """Take whole numbers as int64."""
    found = as_tensor(values, name)
    if found.numel() and (found.is_floating_point() or found.is_complex()):
        raise GraphError(f"{name} must hold whole numbers, not {found.dtype} {tuple(found.shape)}.")
    return found.long()


def check_inside(positions: Tensor, size: int, name: str) -> None:
    """Refuse positions outside 0 .. size - 1."""
    if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= size):
        raise GraphError(
            f"{name} must lie in 0 .. {size - 1}; they run from {int(positions.min())} to "
            f"{int(positions.max())}."
        )
