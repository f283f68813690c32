"""Hooks on a model's modules, which copies of the model do not take along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import nn


class Hook:
    """Calls a function when a module runs, but none of its copies; the module may go.

    A copy of a module takes the hooks of the original along, and there is no one to remove them.

    Parameters
    ----------
    module : nn.Module
        The module.
    function : callable
        Takes what torch gives its hooks.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self._module, self._function = ref(module), function

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Call the function, where the module is the one that it was made for."""
        return self._function(module, *args) if self._module() is module else None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Copy it as a hook that does nothing."""
        return _Nothing, ()


class _Nothing(Hook):
    """What a copy has in place of a hook."""

    def __init__(self) -> None:
        pass

    def __call__(self, module: nn.Module, *args: Any) -> None:
        """Do nothing."""
