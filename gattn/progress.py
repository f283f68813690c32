"""Progress bars of long computations, and estimates of their time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")
_PATIENCE = 1.0
"""The seconds after which progress is shown."""

_silent = ContextVar("silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """Show no progress within this context, which is a step of something that shows its own."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def bar(
    items: Iterable[Any] | None = None,
    *,
    desc: str,
    unit: str,
    total: int | None = None,
    progress: bool = True,
) -> tqdm[Any]:
    """Make a progress bar on stderr, which appears after one second, or never."""
    made: Any = _patient()
    some = {"desc": desc, "unit": f" {unit}", "total": total, "disable": not progress}
    found: tqdm[Any] = made(items, delay=_PATIENCE, **some)
    return found


@cache
def _patient() -> type[tqdm[Any]]:
    """Make the class of bars that keep their delay when a line is written above them."""
    from tqdm import tqdm

    class Patient(tqdm):  # type: ignore[type-arg]
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            """Show the bar, or `msg`, unless it is too early."""
            begun: float = getattr(self, "start_t", 0.0)  # A bar without delay shows at once.
            if time.time() >= begun + _PATIENCE:
                super().display(msg, pos)

    return Patient


def walk(
    items: Sequence[T], desc: str, unit: str, *, progress: bool = True, fewer: str = ""
) -> Iterator[T]:
    """Iterate over items of about equal cost, with a progress bar on stderr after one second.

    Parameters
    ----------
    items : sequence
        The items.
    desc, unit : str
        What is computed, and what an item is called: "flow", "pair".
    progress : bool
        Whether to show anything.
    fewer : str
        How a user asks for less, such as "choose some with queries=". If given, an estimated time
        of more than a second is printed after the first item.
    """
    progress &= not _silent.get()
    begun = time.perf_counter()
    for count, item in enumerate(bar(items, desc=desc, unit=unit, progress=progress)):
        yield item
        if progress and fewer and count == 0:
            announce(desc, unit, len(items), time.perf_counter() - begun, fewer)


def announce(desc: str, unit: str, count: int, seconds: float, fewer: str) -> None:
    """Print how long `count` items of so many seconds will take, if more than a second."""
    from tqdm import tqdm

    if seconds * count > _PATIENCE:
        text = f"{desc}: {count} x {unit}, about {seconds * count:.0f} s; {fewer}"
        tqdm.write(text, file=sys.stderr)  # above the bar
