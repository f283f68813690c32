"""Digests of numbers, which tell whether they changed."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_FEW = 4096
"""How many numbers are read each time; more of them only after a change in place."""

_digests: Any = WeakTensorKeyDictionary()


def digest(x: Tensor) -> bytes:
    """Return a digest of a tensor's numbers."""
    if x.numel() <= _FEW and x.device.type == "cpu":
        return _digest(x)
    version = (x.data_ptr(), 0) if x.is_inference() else (x.data_ptr(), x._version)
    if _digests.get(x, ("", ""))[0] != version:
        _digests[x] = version, _digest(x)
    found: bytes = _digests[x][1]
    return found


def _digest(x: Tensor) -> bytes:
    x = x.detach().cpu()
    return hashed((x.contiguous().view(-1).view(torch.uint8) if x.numel() else x).numpy())


def hashed(x: np.ndarray[Any, Any]) -> bytes:
    """Return a digest of an array's numbers."""
    return blake2b(np.ascontiguousarray(x).tobytes(), digest_size=16).digest()
