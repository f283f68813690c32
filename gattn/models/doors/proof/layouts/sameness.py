"""Tells whether outputs, layouts and the numbers of tokens are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gattn.models.read.layouts import Layout

Place = tuple[str, int]


def are_same(one: Any, other: Any) -> bool:
    """Return whether two outputs hold the same numbers."""
    first, second = ([x for x in tree_leaves(y) if isinstance(x, Tensor)] for y in (one, other))
    return len(first) == len(second) and all(
        x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())
        for x, y in zip(first, second, strict=True)
    )


def is_given_twice(x: Tensor, other: Tensor, given: Sequence[Tensor]) -> bool:
    """Return whether two inputs of a module hold the same numbers, as if one were given twice.

    If all rows are alike, or inputs of the model are `given` twice, they may do so by chance.
    """
    has_tokens = x.dim() > 1 and bool((x != x[..., :1, :]).any())
    by_chance = any(one.dim() > 1 and _are_equal(one, two) for one, two in combinations(given, 2))
    return has_tokens and not by_chance and _are_equal(x, other)


def _are_equal(x: Tensor, y: Tensor) -> bool:
    are_alike = (x.dtype, x.device) == (y.dtype, y.device)
    return are_alike and torch.equal(x, y)


def is_same(one: Layout, other: Layout) -> bool:
    """Return whether two layouts say the same of a call."""
    first, second = one.tokens, other.tokens
    if (one.split, one.heads) != (other.split, other.heads) or first is None or second is None:
        return False
    told = ((x.queries, x.keys, x.fed) for x in (first, second))
    known = ((x.sequences, x.is_cross, x.joined) for x in (first, second))
    return len({*known}) == 1 and all(
        x is y or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(*told, strict=True)
    )


def is_part(layout: Layout) -> bool:
    """Return whether a call is a part of a layer of several calls."""
    return layout.tokens is not None and layout.tokens.joined is not None


def refuse_numbers(
    layouts: dict[Place, list[Any]], unsettled: set[Place], reasons: dict[Place, str]
) -> set[Place]:
    """Refuse calls whose tokens may be numbered in another order than those of other calls.

    Returns their places.
    """
    refused = set()
    settled = {
        layout.tokens.num_queries: place
        for place, some in layouts.items()
        for _, layout in some
        if place not in unsettled and not layout.tokens.has_own_rows
    }
    for place in unsettled:
        known = [layout.tokens for _, layout in layouts[place] if layout.tokens.is_told]
        other = next(
            (settled[one.num_queries] for one in known if one.num_queries in settled), None
        )
        if other is not None:
            reasons[place] = f"its tokens cannot be matched with those of {other[0]}"
            del layouts[place]
            refused.add(place)
    return refused
