"""Tells whether outputs, layouts and the numbers of tokens are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gattn.models.doors.proof.probing.codes import words
from gattn.models.doors.proof.probing.one_run.walking import Given
from gattn.models.doors.proof.probing.taints import changed, replaced
from gattn.models.read.layouts import Layout

Place = tuple[str, int]


def are_same(one: Any, other: Any) -> bool:
    """Return whether two outputs hold the same numbers."""
    first, second = ([x for x in tree_leaves(y) if isinstance(x, Tensor)] for y in (one, other))
    return len(first) == len(second) and all(
        x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())
        for x, y in zip(first, second, strict=True)
    )


def is_given_twice(x: Tensor, other: Tensor) -> bool:
    """Return whether two inputs hold the same numbers, which are not those of one token alone."""
    if x.dim() < 2 or (x.dtype, x.device) != (other.dtype, other.device):
        return False
    rows = x.flatten(0, -2)
    return bool((rows != rows[:1]).any()) and torch.equal(x, other)


def redrawn(given: Given, own: Sequence[Tensor]) -> Iterator[Given]:
    """Give inputs other numbers, so that any two differ at least once, though they be equal.

    Numbers are random. Of integers, which may be ids, each is exchanged in runs of its own.
    """
    numbers, ids = ([x for x in own if x.is_floating_point() is is_one] for is_one in (True, False))
    random = torch.Generator().manual_seed(0)
    for row in words(max(sum(x.numel() for x in ids), 1)):
        now = given
        for x in numbers:
            noise = torch.randn(x.shape, generator=random, dtype=torch.double, device="cpu")
            now = replaced(now, x, x.detach() + noise.to(x.device, x.dtype))
        for x, marks in zip(ids, row.split([x.numel() for x in ids]) if ids else (), strict=True):
            now = replaced(now, x, changed(x, marks.view(x.shape)))
        yield now


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
