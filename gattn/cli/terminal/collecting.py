"""Looks for no garbage while libraries load.

Importing torch and transformers makes 700,000 objects and no garbage; Python's collector would look
at them again and again, for a quarter of the time that they take to load.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_collected() -> Iterator[None]:
    """Collect no garbage until `collect_from_now_on`, or until a command ends."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
        else:
            gc.disable()


def collect_from_now_on() -> None:
    """Collect garbage, and leave out what was loaded before."""
    gc.freeze()
    gc.enable()
