"""Puts back what a run of a model changes of its own tensors, as momentum encoders do."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn


class State:
    """The tensors and random generators of a model, some of which its forward may change.

    Memory is copied just before it is first written to; whole tensors that are exchanged are kept
    without a copy.

    Parameters
    ----------
    model : nn.Module
        The model.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = {id(x): x for module in model.modules() for x in _tensors(module)}
        self._own = {place for x in tensors.values() if (place := place_of(x))}
        some = {id(x): x for module in model.modules() for x in vars(module).values()}
        generators = [x for x in some.values() if isinstance(x, torch.Generator)]
        self._generators = [(one, one.get_state()) for one in generators]
        self._data = [(x, x.data) for x in model.parameters()]
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Copy what a kernel is about to write to."""
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        for number, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                x = args[number] if number < len(args) else kwargs.get(argument.name)
                for one in x if isinstance(x, (list, tuple)) else (x,):
                    self._keep(one)

    def _keep(self, x: Any) -> None:
        place = place_of(x) if isinstance(x, Tensor) else 0
        if place in self._own and place not in self._before:
            storage = x.untyped_storage()
            self._before[place] = storage, storage.clone()

    def restore(self) -> None:
        """Put all tensors and generators back to what they were before any run."""
        for x, data in self._data:
            if x.data_ptr() != data.data_ptr():
                x.data = data
        for storage, before in self._before.values():
            storage.copy_(before)
        for generator, state in self._generators:
            generator.set_state(state)


def place_of(x: Tensor) -> int:
    """Return where the memory of a tensor begins; 0 if it has none of its own, as if sparse."""
    has_memory = x.layout == torch.strided and not x.is_meta
    return x.untyped_storage().data_ptr() if has_memory else 0


def _tensors(module: nn.Module) -> list[Tensor]:
    """List the tensors that a module holds itself."""
    some = chain(module._parameters.values(), module._buffers.values(), vars(module).values())
    return [x for x in some if isinstance(x, Tensor)]
