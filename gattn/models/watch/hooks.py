"""Hooks on a model's modules that copies of the model do not inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import filterfalse
from threading import get_ident
from typing import Any
from weakref import ref

from torch import nn

from gattn.models.load.scripts import is_script
from gattn.models.watch.inside import inside


class Uncopied:
    """A hook whose copies do nothing.

    Copies of a module, which may also be made while it runs, inherit its hooks, and nobody would
    remove those.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Call the function."""
        return self._function(module, *args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Make its copies do nothing."""
        return _Nothing, ()


class _Nothing(Uncopied):
    """The copy of a hook."""

    def __init__(self) -> None:
        pass

    def __call__(self, module: nn.Module, *args: Any) -> None:
        """Do nothing."""


class Hook(Uncopied):
    """Calls a function when a module runs, but not when a copy of it runs; keeps neither alive."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._module = ref(module)

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Call the function, if the module is the one that the hook was made for."""
        if self._module() is not module:
            return None
        with inside():  # What it computes is not the model's.
            return self._function(module, *args)


@contextmanager
def hooks_on(
    modules: Iterable[nn.Module],
    enter: Callable[..., Any] | None = None,
    leave: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Call functions before and after some modules run, as long as the context is open.

    `enter` and `leave` take what torch gives hooks with keyword arguments.
    """
    handles: list[Any] = []
    try:
        for module in filterfalse(is_script, modules):
            if enter is not None:
                hook = Hook(module, _with_kwargs(enter, 3))
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            if leave is not None:
                hook = Hook(module, _with_kwargs(leave, 4))
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def in_this_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a hook do nothing in the calls of other threads."""
    own = get_ident()
    return lambda *given: function(*given) if get_ident() == own else None


def _with_kwargs(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Do nothing in a call of another thread that finds a hook before its keyword arguments."""
    return lambda *given: function(*given) if len(given) == count else None
