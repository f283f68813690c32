"""Digests of numbers, which tell whether they changed."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_WORDS = 2**17
"""How many words of 8 bytes are summed up at a time."""


def digest(x: Tensor) -> bytes:
    """Return a digest of a tensor's numbers: of sums of their words, where it lies.

    Each word is multiplied with an odd number of its own, so that one that changes changes its sum.
    It is read each time: versions of tensors do not tell what `.data` and NumPy change.
    """
    with _disable_current_modes(), torch.no_grad():
        flat = x.detach().contiguous().view(-1)
        data = flat.view(torch.uint8) if len(flat) else flat.new_empty(0, dtype=torch.uint8)
        factors = _factors(x.device)
        sums = [(part * factors[: len(part)]).sum() for part in map(_words, data.split(8 * _WORDS))]
        return hashed(torch.stack(sums).cpu().numpy())


def _words(data: Tensor) -> Tensor:
    """Take bytes as words of 8, with zeros at the end."""
    whole = data.new_zeros(len(data) + -len(data) % 8)
    whole[: len(data)] = data
    return whole.view(torch.int64)


@cache
def _factors(device: torch.device) -> Tensor:
    drawn = np.random.default_rng(0).integers(-(2**62), 2**62, _WORDS) * 2 + 1
    return torch.from_numpy(drawn).to(device)


def hashed(x: np.ndarray[Any, Any]) -> bytes:
    """Return a digest of an array's numbers."""
    return blake2b(np.ascontiguousarray(x).tobytes(), digest_size=16).digest()
