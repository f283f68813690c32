"""Gives freed memory back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Give back what was freed, where that takes asking: glibc keeps it in gaps, which add up."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
