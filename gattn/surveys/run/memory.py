"""Returns freed memory to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Make glibc return freed memory, which it otherwise keeps in gaps that add up."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
