"""Lists of nodes: whether two are equal, how many nodes they name, and what does not fit them."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class NotNeighboursError(Exception):
    """Why a softmax is not attention over known edges."""


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two lists of nodes are equal."""
    return one.shape == other.shape and bool((one == other).all())


def first_known(*numbers: int | None) -> Any:
    """Give the first number that is known."""
    return next((int(number) for number in numbers if number is not None), None)


def count_nodes(*indices: Tensor) -> int:
    """Count the nodes that indices name: one more than the largest."""
    return max((int(index.max()) + 1 for index in indices if index.numel()), default=0)


def check_inside(index: Tensor, count: int) -> None:
    """Refuse nodes beyond those that there are."""
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise NotNeighboursError(f"its edges name nodes outside of 0 .. {count - 1}")
