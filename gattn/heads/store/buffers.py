"""Growing arrays of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.heads.store import apart

_MOST_SLACK = 1.25


class Buffer:
    """A growing array of values."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self._size = dtype, 0
        self._memory = torch.empty(0, dtype=dtype, device="cpu")
        self._array = self._memory.numpy()
        self._together: Tensor | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def is_apart(self) -> bool:
        """Whether its memory was reserved for several buffers at once, past the heap."""
        return self._together is not None

    def cut(self, size: int) -> None:
        """Keep only the first values."""
        self._size = size

    def move(self, memory: Tensor, together: Tensor | None = None) -> None:
        """Go on in other memory, with place for more values; perhaps a row of several buffers'."""
        if self._size:
            memory[: self._size] = self._memory[: self._size]
        self._memory, self._array, self._together = memory, memory.numpy(), together

    def append(self, values: Tensor) -> None:
        """Append values."""
        place = self._next(len(values))
        self._memory[place] = values

    def append_few(self, values: NDArray[Any]) -> None:
        """Append few values, with less overhead per call."""
        place = self._next(len(values))
        self._array[place] = values

    def _next(self, size: int) -> slice:
        stop = self._size + size
        if stop > len(self._array):
            self.move(self._memory.new_empty(max(stop, 2 * len(self._array))))
        place, self._size = slice(self._size, stop), stop
        return place

    def first(self, size: int) -> Buffer:
        """Copy the first values."""
        some = Buffer(self.dtype)
        some.append(self._memory[:size])
        return some

    def values(self) -> Tensor:
        """Return the values, without much unused memory."""
        if len(self._array) > _MOST_SLACK * self._size:
            self.move(self._memory.new_empty(self._size))
        return self._memory[: self._size]


def reserve(buffers: Sequence[Buffer], capacity: int) -> None:
    """Reserve memory for so many values in each of several buffers, which are empty."""
    if not buffers:
        return
    count, dtype = len(buffers), buffers[0].dtype
    if count * capacity * dtype.itemsize < apart.LEAST_BYTES:  # What is kept of one is its own.
        for buffer in buffers:
            buffer.move(torch.empty(capacity, dtype=dtype, device="cpu"))
        return
    whole = apart.empty(count, capacity, dtype)
    for buffer, own in zip(buffers, whole, strict=True):
        buffer.move(own, whole)


def append_together(buffers: Sequence[Buffer], values: Tensor) -> bool:
    """Append a row of values to each of several buffers at once, if they lie side by side."""
    whole, start = buffers[0]._together, len(buffers[0])
    stop = start + values.shape[1]
    if whole is None or stop > whole.shape[1]:
        return False
    if any(buffer._together is not whole or len(buffer) != start for buffer in buffers):
        return False
    whole[:, start:stop] = values
    for buffer in buffers:
        buffer._size = stop
    return True


class Mark(NamedTuple):
    """How many pieces and values a store has at some time."""

    pieces: int
    sizes: list[int]
