"""Tells which mode is shown a function first: those around it are shown it, too.

They also see what gattn itself calls meanwhile.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

_depth: ContextVar[int] = ContextVar("modes_that_handle", default=0)


class handling:  # noqa: N801 - Called like a function; as a class it takes half as many frames.
    """Say that one more mode handles a function."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token: Token[int] = _depth.set(self._now())

    def __exit__(self, *raised: object) -> None:
        _depth.reset(self._token)

    def _now(self) -> int:
        return _depth.get() + 1


class unhandled(handling):  # noqa: N801
    """Say that none does: what runs is a model's own."""

    __slots__ = ()

    def _now(self) -> int:
        return 0


def is_first() -> bool:
    """Return whether the mode that handles a function is the first that is shown it."""
    return _depth.get() == 1
