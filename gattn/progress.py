"""Shows how far long computations are, and says first what they will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_PATIENCE = 1.0
"""The seconds beyond which something is said."""

_silent = ContextVar("silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """Show no progress within: what runs is itself a step of something that does."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def walk(
    items: Sequence[T], desc: str, unit: str, *, progress: bool = True, fewer: str = ""
) -> Iterator[T]:
    """Walk items of about equal cost with a progress bar on stderr, from the first second on.

    Parameters
    ----------
    items : sequence
        What is walked.
    desc, unit : str
        What is computed, and what an item is called: "flow", "pair".
    progress : bool
        Whether to show anything.
    fewer : str
        How a user asks for less, such as "choose some with queries=". Where given, an estimate of
        the time is printed once the first item is done, if it is over a second.
    """
    from tqdm import tqdm

    progress &= not _silent.get()
    begun = time.perf_counter()
    bar = tqdm(items, desc=desc, unit=unit, delay=_PATIENCE, disable=not progress)
    for count, item in enumerate(bar):
        yield item
        if progress and fewer and count == 0:
            announce(desc, unit, len(items), time.perf_counter() - begun, fewer)


def announce(desc: str, unit: str, count: int, seconds: float, fewer: str) -> None:
    """Print what `count` items will take where one takes so many seconds, if over a second."""
    from tqdm import tqdm

    if seconds * count > _PATIENCE:
        text = f"{desc}: {count} x {unit}, about {seconds * count:.0f} s; {fewer}"
        tqdm.write(text, file=sys.stderr)  # above the bar
