"""Remembers the scores that logarithms of a softmax, or differences of scores, were made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.calling.memory import version_of


class Origin(NamedTuple):
    """The scores that a tensor was made of, and the dimension of their keys, if that is known."""

    scores: Tensor
    key: int | None
    version: int = 0


_origins: Any = WeakTensorKeyDictionary()


def remember(tensor: Any, origin: Origin) -> None:
    """Remember what a tensor was made of, as long as it is not changed."""
    _origins[tensor] = origin._replace(version=version_of(tensor))


def origin_of(given: Tensor) -> tuple[Tensor, int | None]:
    """Return the scores that a tensor was made of, or itself where it was changed since."""
    origin = _origins.get(given)
    if origin is None or origin.version != version_of(given):
        return given, None
    return origin.scores, origin.key
