"""Growing arrays of values."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_MOST_SLACK = 1.25


class Buffer:
    """A growing array of values, in memory that is reserved in advance."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self._size = dtype, 0
        self._memory = torch.empty(0, dtype=dtype)
        self._array = self._memory.numpy()

    def __len__(self) -> int:
        return self._size

    def cut(self, size: int) -> None:
        """Keep only the first values."""
        self._size = size

    def reserve(self, capacity: int) -> None:
        """Reserve memory for so many values."""
        memory = self._memory.new_empty(capacity)
        if self._size:
            memory[: self._size] = self._memory[: self._size]
        self._memory, self._array = memory, memory.numpy()

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
            self.reserve(max(stop, 2 * len(self._array)))
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
            self.reserve(self._size)
        return self._memory[: self._size]
