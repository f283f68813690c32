"""Patterns of attention: to neighbours, to duplicate tokens, and to the tokens after them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.heads.summed.nodes import TEXTS, Nodes, first_places, texts

NEAR = 2
"""The distance in tokens up to which a key is near."""

PLAIN = {"duplicate_token": "plain_duplicate_token", "induction": "plain_induction"}
"""Patterns, and the name of those of their edges that also fit a plainer pattern."""

MEANS = ("previous_token", "next_token", *PLAIN)
"""The patterns whose score is a mean over the queries that have such a key."""

PATTERNS = (
    *("previous_token", "next_token", "locality"),
    *("same_token", *PLAIN, *PLAIN.values()),
)
"""All patterns of pairs, in the order in which `edges_of_patterns` gives them."""


def edges_of_patterns(
    nodes: Nodes, row: NDArray[np.int64], key: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    """Mark the pairs of each pattern, by score; there are none in a bipartite graph.

    Parameters
    ----------
    nodes : Nodes
        The queries and keys.
    row, key : array of int
        Pairs: rows of queries, and nodes of keys, which broadcast.

    Returns
    -------
    dict of str to array of bool
        Whether a pair is an edge of the pattern, if it is an edge at all. Those of the plain
        patterns are also edges to the query itself, to the token before it, or to position 0.
    """
    if nodes.is_bipartite:
        return {}
    node, place = row + nodes.query_offset, nodes.place
    step = place[key] - place[node]
    found = {"previous_token": step == -1, "next_token": step == 1, "locality": abs(step) <= NEAR}
    if not nodes.tokens:
        return found
    token, before = texts(nodes)
    same = token[key] == token[node]
    earlier = same & (key < node)
    after = (before[key] == token[node]) & (key <= node)
    return found | {
        "same_token": same,
        "duplicate_token": earlier,
        "induction": after,
        PLAIN["duplicate_token"]: earlier & (found["previous_token"] | (place[key] == 0)),
        PLAIN["induction"]: after & (found["previous_token"] | (key == node)),
    }


@lru_cache(TEXTS)
def queries_with(nodes: Nodes) -> dict[str, NDArray[np.bool_]]:
    """Mark the queries that have a key of each pattern of `MEANS`."""
    if nodes.is_bipartite:
        return {}
    rows, place = nodes.rows, nodes.place
    keys = place[: nodes.num_keys]
    found = {
        name: np.isin(place[rows] + step, keys)
        for name, step in (("previous_token", -1), ("next_token", 1))
    }
    if nodes.tokens:
        token, before = texts(nodes)
        last = np.minimum(rows, nodes.num_keys - 1)
        found["duplicate_token"] = first_places(token)[token[rows]] < np.minimum(rows, last + 1)
        found["induction"] = first_places(before)[token[rows]] <= last
    return found
