"""Says whether rows of attention and a leading dimension are exchanged, where sizes do not tell.

Where heads share values, products do not say which of the two are queries. A proof finds out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import nn

from gattn.models.watch.contexts import present


@dataclass(eq=False)
class Arrangement:
    """The modules in which the other of two dimensions has the queries, while a proof runs.

    Parameters
    ----------
    turned : collection of nn.Module
        These modules; in others sizes tell, or heads come first.
    asked : set of nn.Module
        The modules where that was asked.
    """

    turned: Collection[nn.Module] = ()
    asked: set[nn.Module] = field(default_factory=set)


_arrangement: ContextVar[Arrangement | None] = ContextVar("arrangement", default=None)


@contextmanager
def arranging(arrangement: Arrangement) -> Iterator[None]:
    """Use this arrangement while a proof runs."""
    token = _arrangement.set(arrangement)
    try:
        yield
    finally:
        _arrangement.reset(token)


def is_turned(module: nn.Module) -> bool:
    """Return whether the other dimension has the queries in a module, as was proved."""
    if (trying := _arrangement.get()) is not None:
        trying.asked.add(module)
        return module in trying.turned
    return any(calls.tracker.turns(module) for calls, _ in present() if calls.owns(module))
