"""Marks code whose torch functions no door should see: gattn's own, and what a call calls."""

from __future__ import annotations

from contextvars import ContextVar, Token

_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


def is_inside() -> bool:
    """Return whether functions are called that no door should see."""
    return _is_inside.get()


class inside:  # noqa: N801 - Called like a function; as a class it takes half as many frames.
    """Let no door see the functions that are called."""

    __slots__ = ("_token",)
    _is_inside = True

    def __enter__(self) -> None:
        self._token: Token[bool] = _is_inside.set(self._is_inside)

    def __exit__(self, *raised: object) -> None:
        _is_inside.reset(self._token)


class outside(inside):  # noqa: N801
    """Let doors see them again."""

    __slots__ = ()
    _is_inside = False
