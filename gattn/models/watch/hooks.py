"""Hooks on a model's modules, which copies of the model do not take along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


@contextmanager
def hooks_on(
    modules: Iterable[nn.Module],
    enter: Callable[..., Any] | None = None,
    leave: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Call functions before and after some modules run, as long as the context is open.

    Parameters
    ----------
    modules : iterable of Module
        The modules.
    enter, leave : callable, optional
        Take what torch gives its hooks, arguments by name among it.
    """
    handles: list[Any] = []
    try:
        for module in modules:
            if enter is not None:
                hook = Hook(module, enter)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            if leave is not None:
                hook = Hook(module, leave)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
