"""Tells weights of one's own from attention, which is never negative and sums to at most 1."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

if TYPE_CHECKING:
    from gattn.heads.head import AttentionGraph

_P = ParamSpec("_P")
_ROUNDING = 0.02
"""By how much rows of attention in half precision may exceed 1."""
_ADVICE = (
    "If these are scores, pass what their softmax gives; other weights are kept as they are, and "
    "pictures call them weights"
)


def is_attention(head: AttentionGraph) -> bool:
    """Return whether weights are attention, or come from a normalizer that is known."""
    if head.normalizer:
        return True
    is_positive = not len(head.attention) or float(head.attention.min()) >= 0
    return is_positive and not bool((head.total_mass > 1 + _ROUNDING).any())


def what_of(heads: Iterable[AttentionGraph]) -> str:
    """Name what shares of heads are shares of."""
    return "the attention" if all(map(is_attention, heads)) else "the weights"


def noted(head: AttentionGraph) -> str:
    """Say why a head's weights are no attention; "" if they are."""
    if is_attention(head):
        return ""
    if (head.attention < 0).any():
        return ", some of them negative"
    return f", which sum to up to {head.total_mass.max():.3g} per query"


def warn_of_weights(
    heads: Iterable[AttentionGraph], *, of_sums: bool = False, stacklevel: int = 3
) -> None:
    """Warn of the first head with negative weights, or with weights that sum to more than 1."""
    for head in heads:
        if is_attention(head):
            continue
        place = ", ".join(head.place())
        place = f"In {place}, query" if place else "Query"
        negative = np.flatnonzero(head.attention < 0)
        if len(negative):
            query, key = head.query[negative[0]], head.key[negative[0]]
            weight = head.attention[negative[0]]
            said = f"{query} gives key {key} the weight {weight:.3g}: attention is never negative"
        elif of_sums:
            query = int(np.argmax(head.total_mass > 1 + _ROUNDING))
            mass = head.total_mass[query]
            said = f"{query} has weights that sum to {mass:.3g}: attention sums to at most 1"
        else:
            continue
        warnings.warn(f"{place} {said}. {_ADVICE}.", stacklevel=stacklevel)
        return


def warned(read: Callable[_P, AttentionGraph]) -> Callable[_P, AttentionGraph]:
    """Let a function that reads a head warn of weights that are no attention."""

    @wraps(read)
    def reading(*args: _P.args, **kwargs: _P.kwargs) -> AttentionGraph:
        head = read(*args, **kwargs)
        warn_of_weights([head], stacklevel=3)
        return head

    return reading
