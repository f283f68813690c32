"""What even attention would give each pattern, so that labels tell a head from its token graph."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.heads.summed.nodes import TEXTS, Nodes, marks, texts
from gattn.analysis.heads.summed.patterns import (
    NEAR,
    PLAIN,
    edges_of_patterns,
    queries_with,
)
from gattn.analysis.heads.summed.sums import ROUNDING, SHARE, Numbers, Sums, ratio
from gattn.caching import cached_function
from gattn.graph.token_graph import TokenGraph

EVEN_SCORES = (
    "previous_token",
    "next_token",
    "first_token",
    "outside_sink",
    "same_token",
    "duplicate_token",
    "induction",
    "special_tokens",
    "punctuation",
    "locality",
    "edges_for_90",
)
"""The scores that labels compare with those of even attention."""
EVEN_COLUMNS = {f"even_{name}": name for name in EVEN_SCORES}
"""The columns for scores of even attention, and the score of each."""

_SHARES = ("same_token", "special_tokens", "punctuation", "locality")
"""Those that are shares of the attention."""


def even_scores(sums: Sums) -> dict[str, Numbers]:
    """Score heads that give each query's attention to all its keys alike.

    Its keys are those of the token graph. If that is not known, as of an array, or of a graph that
    lost edges, they are all keys, or if no edge leads ahead, all up to the query. The head's own
    attention to duplicate tokens, and to the tokens after them, counts if these are the query, the
    token before it, or position 0, which plainer patterns describe already.

    Returns
    -------
    dict of str to array (heads,)
        The scores that labels read, named as in `gattn.analysis.head_table`; NaN, or none of them,
        without attention.
    """
    nodes, mass = sums.nodes, sums.mass
    filled = mass > 0
    rows = filled.sum(1)
    if not rows.any():
        return {}
    counts = _counts(nodes, sums.is_causal) if sums.graph is None else _listed(sums.graph, nodes)
    size = counts["size"]
    found = {
        name: ratio(mass @ (counts[name] / size.clip(1)), mass.sum(1))
        for name in _SHARES
        if name in counts
    }
    needed = np.ceil(SHARE * size - ROUNDING)
    found["edges_for_90"] = ratio((filled * needed).sum(1), rows)
    if nodes.is_bipartite:
        return found
    outside = 0.0 if sums.sink is None else sums.sink
    each = (mass + outside) / (size + (sums.sink is not None)).clip(1)
    for name, having in queries_with(nodes).items():
        own = sums.attends & having
        plain = sums.over_rows.get(PLAIN.get(name, ""), 0.0)
        given = plain + (own * each * counts[name]).sum(1)
        found[name] = ratio(given, own.sum(1) * (rows > 0))
    found["first_token"] = ratio((filled * each * counts["first_token"]).sum(1), rows)
    if sums.sink is not None:
        found["outside_sink"] = ratio((filled * each).sum(1), rows)
    return found


@cached_function
def _listed(graph: TokenGraph, nodes: Nodes) -> dict[str, Numbers]:
    """Count each query's edges, and those of each pattern."""
    key, query = graph.edge_index.numpy()
    chosen = edges_of_patterns(nodes, query, key)
    chosen = {name: some for name, some in chosen.items() if name not in PLAIN.values()} | {
        name: some & ~chosen[PLAIN[name]] for name, some in chosen.items() if name in PLAIN
    }
    chosen |= {name: some[key] for name, some in marks(nodes).items()}
    chosen["size"] = np.ones(len(key), dtype=bool)
    counts = {name: np.bincount(query, some, nodes.num_queries) for name, some in chosen.items()}
    return {name: count.astype(np.float64) for name, count in counts.items()}


@lru_cache(TEXTS)
def _counts(nodes: Nodes, is_causal: bool) -> dict[str, Numbers]:
    """Count each query's keys, and those of each pattern, without listing edges."""
    keys, node, place = nodes.num_keys, nodes.rows, nodes.place
    last = np.minimum(node, keys - 1) if is_causal else np.full(len(node), keys - 1)
    counts: dict[str, Any] = {"size": last + 1.0}
    for name, some in marks(nodes).items():
        counts[name] = np.cumsum(some[:keys])[last].astype(np.float64)
    if nodes.is_bipartite:
        return counts
    steps = range(-NEAR, 1 if is_causal else NEAR + 1)
    beside = {step: np.isin(place[node] + step, place[:keys]) * 1.0 for step in steps}
    counts["locality"] = np.sum(list(beside.values()), axis=0)
    counts["previous_token"] = beside[-1]
    counts["next_token"] = beside.get(1, np.zeros(len(node)))
    if nodes.tokens:
        token, before = texts(nodes)
        counts["same_token"] = _equal(token[:keys], token[node], last)
        counts |= _counts_of_repeats(token, before, place, node, keys)
    return counts


def _counts_of_repeats(
    token: NDArray[np.int64],
    before: NDArray[np.int64],
    place: NDArray[np.int64],
    node: NDArray[np.int64],
    keys: int,
) -> dict[str, Numbers]:
    """Count the edges of duplicate tokens and of induction that no plainer pattern has."""
    own, here = token[node], np.minimum(node, keys - 1)
    previous = node - 1
    beside = (node > 0) & (previous < keys) & (place[node] - 1 == place[previous])
    repeated = beside & (token[previous] == own)
    at_start = (node > 0) & (place[0] == 0) & (token[0] == own) & ~(repeated & (previous == 0))
    earlier = _equal(token[:keys], own, np.minimum(node - 1, keys - 1))
    after = _equal(before[:keys], own, here)
    return {
        "duplicate_token": earlier - repeated - at_start,
        "induction": after
        - (beside & (before[previous] == own))
        - ((before[node] == own) & (node < keys)),
    }


def _equal(
    values: NDArray[np.int64], wanted: NDArray[np.int64], last: NDArray[np.int64]
) -> Numbers:
    """Count for each query the keys up to its last one that have the value it wants."""
    codes = np.sort(values * len(values) + np.arange(len(values)))
    start = wanted * len(values)
    found = np.searchsorted(codes, start + last, "right") - np.searchsorted(codes, start, "left")
    return np.asarray(found, dtype=np.float64)
