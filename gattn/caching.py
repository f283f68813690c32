"""Properties and functions that are computed once per object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, Generic, TypeVar, TypeVarTuple, overload

import torch

T = TypeVar("T")
Owner = TypeVar("Owner")
Ts = TypeVarTuple("Ts")


class cached_property(Generic[T]):  # noqa: N801 - it stands in for functools' own
    """A property that is computed once per object, like `functools.cached_property`.

    Before Python 3.12, that one takes a lock, which `torch.compile` cannot trace.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | cached_property[T]:
        if instance is None:
            return self
        return self._of(instance)

    def _of(self, instance: object) -> T:
        # Without __set__, Python finds this value itself from now on.
        found = instance.__dict__[self.name] = self.function(instance)
        return found


class cached_tensor(cached_property[T]):  # noqa: N801
    """A tensor that is computed once, and allows gradients even if made in inference mode."""

    def _of(self, instance: object) -> T:
        if not torch.is_inference_mode_enabled():
            return super()._of(instance)
        with torch.inference_mode(False):
            return super()._of(instance)


class cached_operand(cached_property[T]):  # noqa: N801
    """A property with gradients: if computed without, it is computed again when they are on.

    Proofs and recordings read a call under `no_grad`, before and after it is computed.
    """

    def _of(self, instance: object) -> T:
        known = instance.__dict__
        flowing, resting = f"{self.name} with gradients", f"{self.name} without"
        name = flowing if torch.is_grad_enabled() or flowing in known else resting
        if name not in known:
            known[name] = self.function(instance)
        found: T = known[name]
        return found


def fields_alone(self: Any) -> dict[str, Any]:
    """Give a dataclass its state to pickle: no cached property, which may be on another device.

    Of memory that several tensors share, a tensor brings only its own part.
    """
    return {one.name: _by_itself(getattr(self, one.name)) for one in fields(self)}


def _by_itself(value: Any) -> Any:
    if type(value) is not torch.Tensor or value.layout != torch.strided:
        return value
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def cached_function(function: Callable[[Owner, *Ts], T]) -> Callable[[Owner, *Ts], T]:
    """Compute a function once per object and further arguments; the object keeps the results.

    This is a cached property for another file than the object's own.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def cached(owner: Owner, *arguments: *Ts) -> T:
        known = owner.__dict__.setdefault(name, {})
        if arguments not in known:
            known[arguments] = function(owner, *arguments)
        found: T = known[arguments]
        return found

    return cached
