"""Runs a part of a model up to its first call of attention, which is not computed further."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from gattn.models.watch.inside import outside

if TYPE_CHECKING:
    from gattn.models.read.seen_call import SeenCall

_is_listening: ContextVar[bool] = ContextVar("is_listening", default=False)


class _Found(BaseException):
    """Ends the run; no model catches it."""

    def __init__(self, call: SeenCall) -> None:
        super().__init__()
        self.call = call


def is_listening() -> bool:
    """Return whether the first call of attention is waited for."""
    return _is_listening.get()


def tell(call: SeenCall) -> None:
    """End the run with a call."""
    raise _Found(call)


def first_call(run: Callable[[], Any]) -> SeenCall | None:
    """Run something up to its first call of attention; None if there was none."""
    token = _is_listening.set(True)
    try:
        with outside():
            run()
    except _Found as found:
        return found.call
    finally:
        _is_listening.reset(token)
    return None
