"""Finds which numbers of a model's own decide how it runs: those that become indices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.proof.probing.one_run.digests import digest
from gattn.models.doors.proof.probing.one_run.state import place_of

Name = tuple[str, str]
"""A module, and the name of a tensor that it holds."""


class Constants:
    """The floating-point tensors that a model holds, and which of them its code read.

    Code reads them as numbers (`int(self.shift)`), or makes integers of them (`self.order.long()`).

    Parameters
    ----------
    model : nn.Module
        The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: dict[int, Name] = {}
        self._parameters: set[Name] = set()
        for module_name, module in model.named_modules():
            for held in (module._parameters, module._buffers, vars(module)):
                for name, x in held.items():
                    if isinstance(x, Tensor) and x.is_floating_point() and place_of(x):
                        self._names[place_of(x)] = module_name, name
            self._parameters.update((module_name, name) for name in module._parameters)
        self._read: set[Name] = set()
        self._made: Any = WeakTensorKeyDictionary()

    def note(self, kernel: str, given: Sequence[Tensor], result: Any) -> bool:
        """Look at a kernel that ran; return whether it made something of constants alone."""
        names = [name for x in given for name in self._of(x)]
        if not names or not all(map(self._of, given)):
            if names and kernel.endswith("_"):  # A cache, say, is none.
                self._names.pop(place_of(given[0]), None)
            return False
        for x in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(x, Tensor) and x.is_floating_point():
                if place_of(x) not in self._names:
                    self._made[x] = names
            elif isinstance(x, Tensor) and x.dtype != torch.bool:
                self._read.update(names)
        return True

    def take(self, x: Tensor) -> bool:
        """Note that code reads the numbers of a tensor; return whether it was made of constants."""
        names = self._of(x) if x.is_floating_point() else ()
        self._read.update(names)
        return bool(names)

    def are_weights(self, x: Tensor) -> bool:
        """Return whether a tensor was made of parameters alone, which hold no tokens."""
        return bool(names := self._of(x)) and self._parameters.issuperset(names)

    def note_read(self, name: Name) -> None:
        """Note that code read numbers that were made of a tensor."""
        self._read.add(name)

    def _of(self, x: Tensor) -> Collection[Name]:
        """Name the constants that a tensor was made of alone; none if there are others, too."""
        own = self._names.get(place_of(x))
        found: Collection[Name] = (own,) if own is not None else self._made.get(x, ())
        return found

    def read(self) -> dict[Name, bytes]:
        """Return a digest of each tensor that was read."""
        return digests(self._model, self._read)


def digests(model: nn.Module, names: Iterable[Name]) -> dict[Name, bytes]:
    """Return a digest of each of some tensors that a model holds."""
    return {name: digest(_held(model, *name)) for name in names}


def are_as_before(model: nn.Module, before: Mapping[Name, bytes]) -> bool:
    """Return whether tensors that a model holds have the same digests as before."""
    try:
        return digests(model, before) == before
    except AttributeError:  # It holds none of this name any more.
        return False


def _held(model: nn.Module, module: str, name: str) -> Tensor:
    held: Tensor = getattr(model.get_submodule(module), name)
    return held
