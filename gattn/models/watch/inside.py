"""Marks code whose torch functions no door should see: gattn's own, and what a call calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


def is_inside() -> bool:
    """Return whether functions are called that no door should see."""
    return _is_inside.get()


@contextmanager
def inside() -> Iterator[None]:
    """Let no door see the functions that are called."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)
