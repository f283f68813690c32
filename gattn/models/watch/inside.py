"""Marks code whose torch functions no door should see: gattn's own, and what a call calls."""

from __future__ import annotations

from contextvars import ContextVar, Token

_OUTSIDE, _BY_GATTN, _BY_MODEL = range(3)
_where: ContextVar[int] = ContextVar("where", default=_OUTSIDE)


def is_inside() -> bool:
    """Return whether functions are called that no door should see."""
    return _where.get() != _OUTSIDE


def is_by_gattn() -> bool:
    """Return whether gattn calls these functions, and no function that a model called."""
    return _where.get() == _BY_GATTN


class inside:  # noqa: N801 - Called like a function; as a class it takes half as many frames.
    """Let no door see the functions that are called."""

    __slots__ = ("_token",)
    _is = _BY_GATTN

    def __enter__(self) -> None:
        self._token: Token[int] = _where.set(self._is)

    def __exit__(self, *raised: object) -> None:
        _where.reset(self._token)


class outside(inside):  # noqa: N801
    """Let doors see them again."""

    __slots__ = ()
    _is = _OUTSIDE


class by_model(inside):  # noqa: N801
    """Let no door see what a function calls that a model called."""

    __slots__ = ()
    _is = _BY_MODEL
