"""Patterns of attention: to neighbours, to duplicate tokens, and to the tokens after them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gattn.heads.head import AttentionGraph

TEXTS = 4
"""How many texts' tokens are cached: all heads of a trace have the same."""


class Pattern(NamedTuple):
    """The edges of a pattern, and the queries that have such a key.

    Parameters
    ----------
    edges : array of bool (edges,)
        The edges that count.
    plain : array of bool (edges,)
        Those of them that also fit a plainer pattern: the query itself, the token before it, or
        position 0.
    rows : array of bool (queries,)
        The queries that have attention, kept or not, and such a key.
    query : array of int (edges,)
        The row of each edge.
    """

    edges: NDArray[np.bool_]
    plain: NDArray[np.bool_]
    rows: NDArray[np.bool_]
    query: NDArray[np.int64]

    def mean(self, weight: NDArray[np.float64]) -> float:
        """Take the mean over queries of these edges' weights; NaN without queries."""
        there = self.edges & self.rows[self.query]
        rows = int(self.rows.sum())
        return float(weight[there].sum()) / rows if rows else np.nan


def patterns(head: AttentionGraph) -> dict[str, Pattern]:
    """Find the edges and queries of the tokens beside, of duplicate tokens and of induction."""
    if head.graph.is_bipartite:
        return {}
    rows = np.arange(head.graph.num_queries) + head.graph.query_offset
    attends = (head.kept_mass > 0) | (head.total_mass > 0)
    positions = head.node_positions
    keys = positions[: head.graph.num_keys]
    step = positions[head.key] - positions[rows[head.query]]
    beside = {
        name: Pattern(
            step == one,
            np.zeros(len(step), dtype=bool),
            attends & np.isin(positions[rows] + one, keys),
            head.query,
        )
        for name, one in (("previous_token", -1), ("next_token", 1))
    }
    return beside | (_repeats(head, rows, attends) if head.tokens else {})


def _repeats(
    head: AttentionGraph, rows: NDArray[np.int64], attends: NDArray[np.bool_]
) -> dict[str, Pattern]:
    node, key, positions = rows[head.query], head.key, head.node_positions
    token, before = texts(head.tokens, positions)
    beside = positions[key] == positions[node] - 1
    earlier = (token[key] == token[node]) & (key < node)
    after = (before[key] == token[node]) & (key <= node)
    last = np.minimum(rows, head.graph.num_keys - 1)
    return {
        "duplicate_token": Pattern(
            earlier,
            earlier & (beside | (positions[key] == 0)),
            attends & (first_places(token)[token[rows]] < np.minimum(rows, last + 1)),
            head.query,
        ),
        "induction": Pattern(
            after,
            after & (beside | (key == node)),
            attends & (first_places(before)[token[rows]] <= last),
            head.query,
        ),
    }


def first_places(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the first place of each number from 0; beyond the end if it has none."""
    found = np.full(len(numbers), len(numbers))
    places = np.flatnonzero(numbers >= 0)[::-1]
    found[numbers[places]] = places
    return found


def texts(
    tokens: tuple[str, ...], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give each token the number of its text, and that of the token before it, or -1."""
    token = _numbered(tokens)
    follows_on = np.diff(positions, prepend=positions[:1]) == 1
    return token, np.where(follows_on, np.roll(token, 1), -1)


@lru_cache(TEXTS)
def _numbered(tokens: tuple[str, ...]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in tokens])
