"""Runs a part of a model up to its first call of attention, which is not computed."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor

from gattn.models.watch.inside import outside

_is_listening: ContextVar[bool] = ContextVar("is_listening", default=False)


class Sides(NamedTuple):
    """Queries, keys and values: (sequences, heads, slots, dim)."""

    query: Tensor
    key: Tensor
    value: Tensor


class _Found(BaseException):
    """Ends the run; no model catches it."""

    def __init__(self, sides: Sides) -> None:
        super().__init__()
        self.sides = sides


def is_listening() -> bool:
    """Return whether the first call of attention is waited for."""
    return _is_listening.get()


def tell(query: Tensor, key: Tensor, value: Tensor) -> None:
    """End the run with what a call is given."""
    raise _Found(Sides(query, key, value))


def first_call(run: Callable[[], Any]) -> Sides | None:
    """Run something up to its first call of attention; None if there was none."""
    token = _is_listening.set(True)
    try:
        with outside():
            run()
    except _Found as found:
        return found.sides
    finally:
        _is_listening.reset(token)
    return None
