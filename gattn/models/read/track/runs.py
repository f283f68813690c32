"""Counts the calls of attention within one run of a module, so that they are told apart."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from torch import nn


class Runs(threading.local):
    """How many calls of attention each module made in its last run, in this thread."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._softmaxes: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._calls or self._softmaxes)

    def begin(self, module: nn.Module) -> None:
        """Note that a module runs."""
        self._calls.pop(id(module), None)
        self._softmaxes.pop(id(module), None)

    def count(self, module: nn.Module) -> int:
        """Return how many calls of attention there were in the present run."""
        return self._calls.get(id(module), 0)

    def next(self, module: nn.Module) -> int:
        """Count a further call of attention in the present run; the first is 0."""
        count = self._calls.get(id(module), 0)
        self._calls[id(module)] = count + 1
        return count

    def next_softmax(self, module: nn.Module) -> int:
        """Count a further softmax in the present run, which may be no attention."""
        count = self._softmaxes.get(id(module), 0)
        self._softmaxes[id(module)] = count + 1
        return count

    def clear(self, ids: Iterable[int]) -> None:
        """Forget the runs of some modules: a backward pass may run parts of them again."""
        if self:
            for one in ids:
                self._calls.pop(one, None)
                self._softmaxes.pop(one, None)


runs = Runs()
