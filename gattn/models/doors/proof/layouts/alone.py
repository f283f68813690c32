"""Says of which layouts heads and tokens, or one text and several, cannot be told apart."""

from __future__ import annotations

from collections.abc import Collection

from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.read.layouts import Layout


def attends_to_itself(site: Site, layout: Layout) -> bool:
    """Return whether each of several tokens of a text attends to itself alone."""
    return site.queries == site.keys == 1 < num_keys(layout)


def num_keys(layout: Layout) -> int:
    """Return how many keys a text has, 1 if the layout tells none apart."""
    return 1 if layout.tokens is None else layout.tokens.num_keys


def is_of_one(layout: Layout, sizes: Collection[int]) -> bool:
    """Return whether all heads attend over the same tokens, and not over those of several texts.

    There may be a few more tokens than the sequences have, as of a virtual node; of two texts,
    there would be twice as many.
    """
    tokens = layout.tokens
    if tokens is None or len(tokens.sequences) > 1:
        return False
    counts = [tokens.num_keys] if tokens.has_own_rows else [tokens.num_keys, tokens.num_queries]
    return all(count in sizes or count < 2 * min(sizes) for count in counts)


def are_along_others(site: Site, layout: Layout) -> bool:
    """Return whether tokens lie along other dimensions than the first, if that has one element.

    A single query may be along that one, unless it is learned.
    """
    is_learned = layout.tokens is not None and layout.tokens.has_own_rows
    return site.queries > 1 or (site.keys > 1 and is_learned)
