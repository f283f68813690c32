"""Memory for what is kept, apart from the heap.

Small results that stay between large temporaries fragment the heap: the next run finds no gap for
its own temporaries, and takes new memory from the system.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST_BYTES = 1 << 15
"""What is smaller fits into gaps of the heap."""
_CHUNK_BYTES = 1 << 23
_ALIGNMENT = 64
_FLAGS: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


class _Chunk(threading.local):
    """The rest of this thread's last chunk; a chunk lives as long as a tensor in it."""

    rest: Tensor | None = None


_chunk = _Chunk()


def empty(rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """Allocate (rows, size) in memory that the system gives when it is touched, in huge pages.

    Tensors share a chunk, which is given back when all of them are gone. Small ones are on the
    heap.
    """
    taken = rows * size * dtype.itemsize
    if taken < LEAST_BYTES:
        return torch.empty(rows, size, dtype=dtype, device="cpu")
    with torch.inference_mode(False):
        memory = _taken(-(-taken // _ALIGNMENT) * _ALIGNMENT)
        return memory[:taken].view(dtype).view(rows, size)


def copied(arrays: Iterable[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copy arrays (n,): side by side to such memory, or, if all are small, each by itself."""
    some = list(arrays)
    sizes = [len(one) for one in some]
    if sum(sizes) * dtype.itemsize < LEAST_BYTES:
        return [one.to(dtype, copy=True) for one in some]
    parts = list(empty(1, sum(sizes), dtype)[0].split(sizes))
    for part, one in zip(parts, some, strict=True):
        part.copy_(one)
    return parts


def _taken(size: int) -> Tensor:
    """Take bytes of the chunk, or of a new one."""
    rest = _chunk.rest
    if rest is not None and size <= len(rest):
        _chunk.rest = rest[size:]
        return rest[:size]
    if 4 * size > _CHUNK_BYTES:
        return _mapped(size)
    fresh = _mapped(_CHUNK_BYTES)
    _chunk.rest = fresh[size:]
    return fresh[:size]


def _mapped(size: int) -> Tensor:
    """Get memory from the system, past the heap."""
    try:
        memory = mmap.mmap(-1, size, **_FLAGS)
    except OSError:  # There are too many maps.
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # A kernel may have no huge pages.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, np.uint8))
