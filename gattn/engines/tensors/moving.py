"""Tensors that go to where others are."""

from __future__ import annotations

import torch
from torch import Tensor


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Bring a tensor to a device, from main memory without the host waiting for it if it may.

    CUDA first copies what lies in pages that may move, so that a tensor may change or go at once.
    Of pinned tensors, and on devices of other makers, that does not hold.
    """
    if x.device == device:
        return x
    may_go_on = x.device.type == "cpu" and device.type in _COPY_FIRST and not x.is_pinned()
    return x.to(device, non_blocking=may_go_on)


_COPY_FIRST = ["cuda"]
"""Types of devices."""
