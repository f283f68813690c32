"""Tells which memory holds a model's parameters while it runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.proof.probing.one_run.scripted import ScriptModule
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.probing.one_run.walking import Walk

_COPIES = frozenset(("clone", "_to_copy"))


class Parameters:
    """The memory of parameters, also of those that are loaded while a module runs.

    Parameters
    ----------
    model : nn.Module
        The model.
    walk : Walk
        Which of its modules runs.
    """

    def __init__(self, model: nn.Module, walk: Walk) -> None:
        self._known: dict[int, Hashable] = {}
        for name, x in model.named_parameters():
            self._known.setdefault(place_of(x), name)
        for name, part in model.named_modules():
            for n, frozen in enumerate(part.frozen if isinstance(part, ScriptModule) else ()):
                self._known.setdefault(place_of(frozen), f"{name}.{n}")
        self._known.pop(0, None)
        self._model, self._walk = model, walk
        self._copies: list[Tensor] = []
        self._casts: dict[Memory, Hashable] = {}

    @property
    def places(self) -> set[int]:
        """Where the memory of those that are known begins."""
        return set(self._known)

    def holds(self, x: Tensor) -> bool:
        """Return whether a tensor lies in the memory of a parameter, or in that of its copy."""
        return self.of(x) is not None

    def of(self, x: Tensor) -> Hashable | None:
        """Tell by which parameter a tensor was made; memory itself may soon be another's."""
        place = place_of(x)
        if place in self._known:
            return self._known[place]
        memory = memory_of(x)
        if memory in self._casts:
            return self._casts[memory]
        where = self._walk.innermost
        own = self._model.get_submodule(where).named_parameters(recurse=False)
        return next((f"{where}.{last}" for last, one in own if place_of(one) == place), None)

    def note(self, kernel: str, tensors: Sequence[Tensor], result: Any) -> None:
        """Note a copy of one in another type, or for each element of a batch, as products make."""
        if kernel not in _COPIES or not tensors:
            return
        x = tensors[0]
        is_repeated = x.layout is torch.strided and 0 in x.stride()
        name = self.of(x) if is_repeated or kernel == "_to_copy" else None
        if name is None:
            return
        if kernel == "_to_copy":
            if (memory := memory_of(result)) is not None:
                self._casts[memory] = name
            return
        self._known[place_of(result)] = name
        self._copies.append(result)  # Kept, so that its memory stays.
