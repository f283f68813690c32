"""Tells weights of one's own from attention, which is never negative and sums to at most 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

from gattn.checks import warn

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


def warn_of_weights(heads: Iterable[AttentionGraph], *, of_sums: bool = False) -> None:
    """Warn of the first head with negative weights, or with weights that sum to more than 1.

    Without `of_sums`, the latter are taken for what they are.
    """
    for head in heads:
        if is_attention(head) or _is_transposed(head):
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
        warn(f"{place} {said}. {_ADVICE}.")
        return


def _is_transposed(head: AttentionGraph) -> bool:
    """Return whether the weights of each key sum to 1, as those of a query should, but do not."""
    if is_attention(head) or (head.attention < 0).any():
        return False
    columns = np.bincount(head.key, head.attention, head.graph.num_keys)
    columns = columns[columns > 0]
    return len(columns) > 1 and bool((np.abs(columns - 1) <= _ROUNDING).all())


def warn_of_forms(heads: Iterable[AttentionGraph], *, has_graph: bool) -> None:
    """Warn of the first head that seems to be transposed, or a part of a square one.

    Where there are fewer queries than keys, they are other tokens, if no graph says otherwise. But
    a matrix of which each query reads exactly the keys up to its own, counted from the first key or
    to the last, is a part of a square one.
    """
    for head in heads:
        if _is_transposed(head):
            of = f" of {', '.join(head.place())}" if head.place() else ""
            warn(
                f"The columns of the attention{of} sum to 1, but its rows, which are queries, do "
                "not, as if it were transposed: if so, swap queries and keys, as "
                "attention.swapaxes(-1, -2) does."
            )
            return
        queries, keys = head.graph.num_queries, head.graph.num_keys
        if has_graph or not head.graph.is_bipartite:
            continue
        if head.query_tokens or not 1 < queries < keys:
            continue
        is_read = head.attention != 0
        query, key = head.query[is_read], head.key[is_read]
        for offset in (0, keys - queries):
            ahead = key > query + offset
            if not ahead.any() and len(key) == sum(range(offset + 1, offset + queries + 1)):
                starts = f", query_offset={offset}" * bool(offset)
                warn(
                    f"Attention ({queries}, {keys}) is read as that of {queries} tokens to {keys} "
                    f"others, but looks like rows {offset} .. {offset + queries - 1} of a causal "
                    f"text of {keys}: if so, read them by AttentionGraph.from_dense or "
                    f"AttentionTrace.from_arrays with graph=TokenGraph.causal({queries}, "
                    f"num_keys={keys}{starts}); if not, pass query_tokens=."
                )
                return


def warned(read: Callable[_P, AttentionGraph]) -> Callable[_P, AttentionGraph]:
    """Let a function that reads edges warn of weights that are no attention."""

    @wraps(read)
    def reading(*args: _P.args, **kwargs: _P.kwargs) -> AttentionGraph:
        head = read(*args, **kwargs)
        warn_of_weights([head])
        return head

    return reading


def warned_of_form(read: Callable[_P, AttentionGraph]) -> Callable[_P, AttentionGraph]:
    """Let a function that reads a matrix warn of its form; edges are told by their ends."""
    known = signature(read)

    @wraps(read)
    def reading(*args: _P.args, **kwargs: _P.kwargs) -> AttentionGraph:
        head = read(*args, **kwargs)
        graph = known.bind(*args, **kwargs).arguments.get("graph")
        warn_of_forms([head], has_graph=graph is not None)
        return head

    return reading
