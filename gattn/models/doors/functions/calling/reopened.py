"""Lets the mode see what torch's own functions call: it is off while a function is handled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gattn.models.doors.functions.calling.handling import unhandled


def see(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run a function of torch that is written in Python, with the mode on inside it."""
    with mode, unhandled():
        return unguarded(func)(*args, **kwargs)


def backward(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run `Tensor.backward`, which may compute checkpointed attention again."""
    with mode, unhandled():
        return unguarded(torch.autograd.backward)(*_named(*args, **kwargs))


def _named(
    tensor: Any,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> tuple[Any, ...]:
    return tensor, gradient, retain_graph, create_graph, None, inputs


@cache
def unguarded(func: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function of torch, which then does not ask whether it is overridden.

    If it asked, it would be handed to the mode again before it ran.
    """
    assert isinstance(func, FunctionType)
    names = {name: _never for name in func.__globals__ if name.startswith("has_torch_function")}
    copied = FunctionType(
        func.__code__, {**func.__globals__, **names}, func.__name__, func.__defaults__
    )
    copied.__kwdefaults__ = func.__kwdefaults__
    return copied


def _never(*args: Any) -> bool:
    return False
