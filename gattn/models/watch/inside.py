"""Marks code whose torch functions no door should see: gattn's own, and what a call calls."""

from __future__ import annotations

from contextvars import ContextVar, Token

_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


def is_inside() -> bool:
    """Return whether functions are called that no door should see."""
    return _is_inside.get()


class _Marked:
    """Marks code while it runs; a class, because it runs for each call of a hook or a door."""

    __slots__ = ("_is_inside", "_token")

    def __init__(self, is_inside: bool) -> None:
        self._is_inside = is_inside

    def __enter__(self) -> None:
        self._token: Token[bool] = _is_inside.set(self._is_inside)

    def __exit__(self, *raised: object) -> None:
        _is_inside.reset(self._token)


def inside() -> _Marked:
    """Let no door see the functions that are called."""
    return _Marked(True)


def outside() -> _Marked:
    """Let doors see them again."""
    return _Marked(False)
