"""Says of which layouts heads of a single token cannot be told from tokens that attend alone."""

from __future__ import annotations

from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.read.layouts import Layout


def attends_to_itself(site: Site, layout: Layout) -> bool:
    """Return whether each of several tokens of a text attends to itself alone."""
    return site.queries == site.keys == 1 < num_keys(layout)


def num_keys(layout: Layout) -> int:
    """Return how many keys a text has, 1 if the layout tells none apart."""
    return 1 if layout.tokens is None else layout.tokens.num_keys
