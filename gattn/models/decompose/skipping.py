"""Skips a model's products of matrices, where a run is not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_FACTORS = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1}
_FACTORS |= {_aten.baddbmm.default: 1}


class Skipping(TorchDispatchMode):
    """While it is open and `is_on`, products of matrices are zeros of the right shape.

    A run that reads one part of each layer so takes about the time of that part. Other threads
    are left alone.

    Parameters
    ----------
    is_on : bool
        Whether products are skipped from the start.
    """

    def __init__(self, is_on: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_on = is_on

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute what is no product, or not skipped."""
        if not self.is_on or func not in _FACTORS:
            return func(*args, **(kwargs or {}))
        left, right = args[_FACTORS[func] :][:2]
        zeros: Tensor = left.new_zeros(*left.shape[:-1], right.shape[-1])
        return zeros
