"""Tells which modules are alike: what is proved of one holds for the others."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

_IGNORED = frozenset(vars(nn.Module()))
_PLAIN = (int, float, bool, str, type(None))


class Alike:
    """Numbers modules, the same where types, shapes and plain attributes are, recursively."""

    def __init__(self) -> None:
        self._known: dict[nn.Module, int] = {}
        self._numbers: dict[object, int] = {}

    def __getitem__(self, module: nn.Module) -> int:
        if module not in self._known:
            self._known[module] = self._described(module)
        return self._known[module]

    def _described(self, module: nn.Module) -> int:
        if not module.training and "drop" in type(module).__name__.lower():
            return self._numbers.setdefault(type(module), len(self._numbers))
        attributes = tuple(
            (name, _described(value))
            for name, value in sorted(vars(module).items())
            if name not in _IGNORED
        )
        tensors = tuple(
            (name, None if x is None else (tuple(x.shape), x.dtype))
            for of in (module._parameters, module._buffers)
            for name, x in of.items()
        )
        inner = tuple((name, None if x is None else self[x]) for name, x in module._modules.items())
        described = type(module), attributes, tensors, inner, module.training
        return self._numbers.setdefault(described, len(self._numbers))


def _described(value: Any) -> object:
    """Describe an attribute, if it is plain; anything else by its type."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, (list, tuple)) and len(value) < 100:
        return type(value), tuple(_described(one) for one in value)
    return getattr(value, "__qualname__", type(value))


def shapes(given: Any) -> object:
    """Describe what a module is given: the shapes and types of tensors, and plain values."""
    leaves, form = tree_flatten(given)
    return str(form), tuple(
        (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else _described(x) for x in leaves
    )


def state_of(model: nn.Module) -> object:
    """Describe what may decide how a model's modules attend, and may change between calls.

    That is their code, their plain attributes, the integers that they hold, and whether they train;
    torch's own modules have only the last.
    """
    found: list[object] = []
    for module in model.modules():
        found += (type(module), module.training)
        if type(module).__module__.startswith("torch.nn.modules"):
            continue
        found.append(type(module).forward)
        for held in (vars(module), module._buffers):
            found += [_state(value) for name, value in held.items() if name not in _IGNORED]
    return tuple(found)


def _state(value: Any) -> object:
    if isinstance(value, Tensor) and not value.is_floating_point():
        return value.data_ptr(), value._version
    if isinstance(value, (FunctionType, MethodType, partial)):
        return id(value)
    return _described(value)
