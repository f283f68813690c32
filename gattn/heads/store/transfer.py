"""From an accelerator to main memory, where kept edges are."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_PINNED = 1 << 27
"""The most bytes to copy so: torch keeps pinned memory, for the next time, as long as it runs."""


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Bring tensors of one device to main memory in one copy, or give them as they are there."""
    if all(x.device.type == "cpu" for x in tensors.values()):
        return tensors
    # The widest numbers first: so each tensor starts at a multiple of its numbers' size.
    sorted_ = sorted(tensors.items(), key=lambda named: -named[1].itemsize)
    memory = _copied(torch.cat([x.contiguous().flatten().view(torch.uint8) for _, x in sorted_]))
    parts = memory.split([x.numel() * x.itemsize for _, x in sorted_])
    return {
        name: part.view(x.dtype).view(x.shape)
        for (name, x), part in zip(sorted_, parts, strict=True)
    }


def _copied(memory: Tensor) -> Tensor:
    """Copy bytes to main memory; a GPU does so much faster to pages that stay where they are."""
    if memory.device.type != "cuda" or memory.numel() > _MOST_PINNED:
        return memory.cpu()
    pinned = torch.empty(memory.shape, dtype=memory.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(memory)


def count_of(numbers: Tensor, size: int) -> Tensor:
    """Count how often each number below `size` is there."""
    if numbers.device.type == "cpu":
        return torch.bincount(numbers, minlength=size)
    counts = numbers.new_zeros(size)  # a count by torch would wait for the device
    return counts.index_add_(0, numbers, torch.ones_like(numbers))
