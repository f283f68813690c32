"""Tells apart the graphs of one call of a model, as of two molecules that it compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

Edges: TypeAlias = tuple[Tensor, Tensor]
"""The keys and the queries of edges."""


def graphs_apart(
    places: Sequence[tuple[str, int]],
    given: Sequence[set[Tensor]],
    edges: Sequence[Edges | None],
) -> dict[tuple[str, int], int]:
    """Give numbers to the graphs that calls attend over, if several are known.

    Calls have the same nodes if these come from the same tensor that the model is `given`, or if
    they have the same edges. Those of which neither is known have no number.
    """
    found: list[tuple[set[Tensor], list[Edges]]] = []
    numbers: dict[tuple[str, int], int] = {}
    for place, own, some in zip(places, given, edges, strict=True):
        if not own or some is None:
            continue
        same = [n for n, (known, lists) in enumerate(found) if own & known or _has(lists, some)]
        if len(same) > 1:
            return {}
        numbers[place] = same[0] if same else len(found)
        if not same:
            found.append((set(), []))
        found[numbers[place]][0].update(own)
        found[numbers[place]][1].append(some)
    return numbers if len(found) > 1 else {}


def _has(known: Sequence[Edges], edges: Edges) -> bool:
    return any(all(map(are_same, one, edges)) for one in known)


def are_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two indices are the same."""
    return one is other or (one.shape == other.shape and bool((one == other).all()))
