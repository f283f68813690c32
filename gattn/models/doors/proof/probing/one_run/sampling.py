"""Tells what decides the places between tokens at which a model samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import MAKES, By, is_sampling, tensors_in


class Places:
    """Follows memory that depends on what a model is given, or on chance, to grids."""

    def __init__(self) -> None:
        self._by: dict[Memory, By] = {}

    def begin(self, given: Any) -> None:
        """Follow what the model is given."""
        self._add([x for x in leaves(given) if isinstance(x, Tensor)], By.VALUES)

    def note(self, kernel: str, given: Sequence[Tensor], result: Any, *, is_random: bool) -> None:
        """Look at a kernel that ran."""
        by = None if kernel in MAKES else self._of(given)
        if is_random and by is None:
            by = By.CHANCE
        if by is not None:
            self._add(tensors_in((result,)), by)

    def decided(self, kernel: str, given: Sequence[Tensor]) -> By | None:
        """Tell what decides where a kernel samples: nothing if that is always the same."""
        return self._of(given[1:2]) if is_sampling(kernel) else None

    def _of(self, tensors: Sequence[Tensor]) -> By | None:
        known = (self._by.get(memory) for x in tensors if (memory := memory_of(x)) is not None)
        return max((by for by in known if by is not None), default=None)

    def _add(self, tensors: Sequence[Tensor], by: By) -> None:
        for x in tensors:
            if (memory := memory_of(x)) is not None:
                self._by[memory] = max(by, self._by.get(memory, by))
