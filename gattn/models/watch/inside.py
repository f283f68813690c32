"""Marks code whose torch functions no door should see: gattn's own, and what a call calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


def is_inside() -> bool:
    """Return whether functions are called that no door should see."""
    return _is_inside.get()


def inside() -> AbstractContextManager[None]:
    """Let no door see the functions that are called."""
    return _marked(True)


def outside() -> AbstractContextManager[None]:
    """Let doors see them again."""
    return _marked(False)


@contextmanager
def _marked(is_inside: bool) -> Iterator[None]:
    token = _is_inside.set(is_inside)
    try:
        yield
    finally:
        _is_inside.reset(token)
