"""Puts back what a run of a model changes of its own tensors, as momentum encoders do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from gattn.models.doors.proof.probing.one_run.holding import (
    IGNORED,
    Held,
    attributes_of,
    content,
    decides,
    held,
    held_by_module,
)
from gattn.models.load.scripts import is_script

_DEPTH = 6
"""How deep lists and objects within attributes are followed."""


class State:
    """The tensors, attributes and random generators of a model that its forward may change.

    Memory is copied just before it is first written to; whole tensors that are exchanged are kept
    without a copy, and so is what attributes hold, such as a cache.

    Parameters
    ----------
    model : nn.Module
        The model.
    others : sequence
        What its hooks hold, the variables around functions as cells.
    """

    def __init__(self, model: nn.Module, others: Sequence[Any] = ()) -> None:
        self._model, self._modules = model, [id(x) for x in model.modules()]
        found, tensors = _held(model, [content(x) for x in others])
        self._cells = [(x, content(x)) for x in others if isinstance(x, CellType)]
        self._held = found
        self._by_id = {one.place: one for one in self._held}
        self._own = {place for x in tensors if (place := place_of(x))}
        some = {id(x): x for module in model.modules() for x in vars(module).values()}
        generators = [x for x in some.values() if isinstance(x, torch.Generator)]
        self._generators = [(one, one.get_state()) for one in generators]
        self._data = [(x, x.data, x.data_ptr()) for x in model.parameters()]
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._reached: dict[nn.Module, list[Any]] = {}

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

    def is_prepared(self, module: nn.Module) -> bool:
        """Return whether what a module and its parts hold was changed since the run began.

        A layer may hold its parent, or a function with the parent in it, and read what that holds.
        Floating-point tensors are left out: they decide no order of tokens.
        """
        if module not in self._reached:
            some = reached(module)
            known = [x for x in some if isinstance(x, Tensor) or id(x) in self._by_id]
            self._reached[module] = known
        return any(map(self._is_otherwise, self._reached[module]))

    def _is_otherwise(self, one: Any) -> bool:
        if isinstance(one, Tensor):
            return decides(one) and bool(self._before) and place_of(one) in self._before
        known = self._by_id.get(id(one))
        return known is not None and known.decides_otherwise

    def _keep(self, x: Any) -> None:
        place = place_of(x) if isinstance(x, Tensor) else 0
        if place in self._own and place not in self._before:
            storage = x.untyped_storage()
            self._before[place] = storage, storage.clone()

    @property
    def is_changed(self) -> bool:
        """Whether a run changed anything: wrote to a tensor, or exchanged what something holds."""
        is_held = any(one.is_changed for one in self._held)
        cells = any(content(cell) is not before for cell, before in self._cells)
        return bool(self._before) or is_held or cells

    def restore(self) -> None:
        """Put all tensors, attributes and generators back to what they were before any run."""
        with torch._C.DisableTorchFunction():  # Many tensors are asked where they lie.
            changed = [one for one in self._held if one.is_changed]
            if changed and [id(x) for x in self._model.modules()] == self._modules:
                for one in changed:  # Those of other modules would belong to these.
                    one.put_back()
            for cell, before in self._cells:
                if content(cell) is not before:
                    cell.cell_contents = before
            for x, data, place in self._data:
                if x.data_ptr() != place:
                    x.data = data
            for storage, before in self._before.values():
                storage.copy_(before)
            for generator, state in self._generators:
                generator.set_state(state)


def place_of(x: Tensor) -> int:
    """Return where the memory of a tensor begins; 0 if it has none of its own, as if sparse."""
    has_memory = x.layout == torch.strided and not x.is_meta
    return x.untyped_storage().data_ptr() if has_memory else 0


def _held(model: nn.Module, others: Sequence[Any]) -> tuple[list[Held], list[Tensor]]:
    """List all that holds something and may be changed, and all tensors."""
    found: dict[int, Held] = {}
    tensors: dict[int, Tensor] = {id(x): x for x in model.parameters()}
    inner: list[Any] = list(others)
    for module in model.modules():
        own = held_by_module(module)
        found[own.place] = own
        inner += [module._buffers, *own.inner]
    for _ in range(_DEPTH):
        outer, inner = inner, []
        for one in outer:
            if isinstance(one, Tensor):
                tensors[id(one)] = one
            now = held(one)
            if now is not None and now.place not in found:
                found[now.place] = now
                inner += now.inner
    return list(found.values()), list(tensors.values())


def reached(module: nn.Module) -> Iterator[Any]:
    """List what can be read from within a module: what it holds, and what that holds in turn."""
    known: dict[int, Any] = {}
    waiting: list[Any] = [module]
    while waiting:
        one = waiting.pop()
        if id(one) in known:
            continue
        known[id(one)] = one
        yield one
        if isinstance(one, nn.Module) and not is_script(one):
            own = vars(one)
            waiting += (own, own["_buffers"], *own["_modules"].values())
            waiting += (x for name, x in own.items() if name not in IGNORED)
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, dict):
            waiting += (x for name, x in one.items() if name not in IGNORED)
        elif isinstance(one, MethodType):
            waiting += (one.__self__, one.__func__)
        elif isinstance(one, FunctionType):
            waiting += map(content, one.__closure__ or ())
            waiting += one.__defaults__ or ()
        elif isinstance(one, ref):
            waiting.append(one())
        elif (attributes := attributes_of(one)) is not None:
            waiting.append(attributes)
