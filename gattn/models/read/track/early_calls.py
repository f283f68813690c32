"""A call of attention that begins with its softmax, before its values are known."""

from __future__ import annotations

from typing import NamedTuple

SOFTMAX = "another softmax"


class EarlyCall(NamedTuple):
    """The number of a call, the form of its softmax, and whether that is read before the values."""

    ordinal: int
    form: str
    is_read: bool
