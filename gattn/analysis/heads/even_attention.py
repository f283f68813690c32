"""What even attention would give each pattern, so that labels tell a head from its token graph."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.heads.head_scores import (
    NEAR,
    ROUNDING,
    SHARE,
    Numbers,
    pattern_sums,
    punctuation,
    special_tokens,
)
from gattn.analysis.heads.patterns import TEXTS, Pattern, patterns, texts
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import Causal, Complete
from gattn.heads.head import AttentionGraph

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


def even_scores(head: AttentionGraph) -> dict[str, float]:
    """Score a head that gives each query's attention to all its keys alike.

    Its keys are those of the token graph. If that is not known, as of an array, or of a graph that
    lost edges, they are all keys, or if no edge leads ahead, all up to the query. The head's own
    attention to duplicate tokens, and to the tokens after them, counts if these are the query, the
    token before it, or position 0, which plainer patterns describe already.

    Returns
    -------
    dict of str to float
        The scores that labels read, named as in `gattn.analysis.head_table`.
    """
    graph, means = head.graph, patterns(head)
    mass = np.bincount(head.query, head.attention, graph.num_queries).astype(np.float64)
    if not mass.any():
        return {}
    if _knows_keys(head):
        counts = _counts_of_edges(head, means)
        sums = pattern_sums(head, (mass / counts["size"].clip(1))[head.query])
    else:
        counts = _counts(_Nodes.of(head))
        sums = {name: float(mass @ (n / counts["size"].clip(1))) for name, n in counts.items()}
    size, filled = counts["size"], mass > 0
    found = {
        name: sums[name] / float(mass.sum())
        for name in EVEN_SCORES
        if name in sums.keys() - means.keys()
    }
    found["edges_for_90"] = float(np.ceil(SHARE * size[filled] - ROUNDING).mean())
    if graph.is_bipartite:
        return found
    outside = np.zeros(len(mass)) if head.sink is None else head.sink.astype(np.float64)
    each = (mass + outside) / (size + (head.sink is not None)).clip(1)
    for name, one in means.items():
        if one.rows.any():
            plain = one._replace(edges=one.plain).mean(head.attention.astype(np.float64))
            found[name] = plain + float((each * counts[name])[one.rows].mean())
    found["first_token"] = float((each * counts["first_token"])[filled].mean())
    if head.sink is not None:
        found["outside_sink"] = float(each[filled].mean())
    return found


def _knows_keys(head: AttentionGraph) -> bool:
    """Return whether a head's edges are its whole token graph, which has to be listed."""
    rule = head.graph.rule
    is_whole = not isinstance(rule, Edges) or bool(head.weight_function)
    return is_whole and not head.dropped_edges.any() and not isinstance(rule, (Causal, Complete))


def _counts_of_edges(head: AttentionGraph, means: dict[str, Pattern]) -> dict[str, Numbers]:
    """Count each query's edges, and those of each pattern."""
    chosen = {name: one.edges & ~one.plain for name, one in means.items()}
    if not head.graph.is_bipartite:
        chosen["first_token"] = head.node_positions[head.key] == 0
    chosen["size"] = np.ones(len(head.key), dtype=bool)
    queries = head.graph.num_queries
    counts = {name: np.bincount(head.query, some, queries) for name, some in chosen.items()}
    return {name: count.astype(np.float64) for name, count in counts.items()}


class _Nodes(NamedTuple):
    """All that even attention depends on, the same for most heads of a trace."""

    tokens: tuple[str, ...]
    words: tuple[int | None, ...]
    positions: tuple[int, ...] | None
    num_queries: int
    num_keys: int
    query_offset: int
    is_bipartite: bool
    is_causal: bool

    @classmethod
    def of(cls, head: AttentionGraph) -> _Nodes:
        graph = head.graph
        return cls(
            head.tokens,
            head.words,
            None if head.positions is None else tuple(head.positions.tolist()),
            graph.num_queries,
            graph.num_keys,
            graph.query_offset,
            graph.is_bipartite,
            not graph.is_bipartite and bool((head.key <= head.query + graph.query_offset).all()),
        )


@lru_cache(TEXTS)
def _counts(nodes: _Nodes) -> dict[str, Numbers]:
    """Count each query's keys, and those of each pattern, without listing edges."""
    keys = nodes.num_keys
    node = np.arange(nodes.num_queries) + nodes.query_offset
    last = np.minimum(node, keys - 1) if nodes.is_causal else np.full(len(node), keys - 1)

    def marked(marks: NDArray[np.bool_]) -> Numbers:
        return np.cumsum(marks[:keys])[last].astype(np.float64)

    counts: dict[str, Any] = {"size": last + 1.0}
    if nodes.tokens:
        counts["punctuation"] = marked(punctuation(nodes.tokens))
    if nodes.words:
        counts["special_tokens"] = marked(special_tokens(nodes.words))
    if nodes.is_bipartite:
        return counts
    known = nodes.positions
    positions = np.arange(max(keys, node[-1] + 1)) if known is None else np.array(known)
    counts["first_token"] = marked(positions == 0)
    steps = range(-NEAR, 1 if nodes.is_causal else NEAR + 1)
    beside = {step: np.isin(positions[node] + step, positions[:keys]) * 1.0 for step in steps}
    counts["locality"] = np.sum(list(beside.values()), axis=0)
    counts["previous_token"] = beside[-1]
    counts["next_token"] = beside.get(1, np.zeros(len(node)))
    if nodes.tokens:
        token, before = texts(nodes.tokens, positions)
        counts["same_token"] = _equal(token[:keys], token[node], last)
        counts |= _counts_of_repeats(token, before, positions, node, keys)
    return counts


def _counts_of_repeats(
    token: NDArray[np.int64],
    before: NDArray[np.int64],
    positions: NDArray[np.int64],
    node: NDArray[np.int64],
    keys: int,
) -> dict[str, Numbers]:
    """Count the edges of duplicate tokens and of induction that no plainer pattern has."""
    own, here = token[node], np.minimum(node, keys - 1)
    previous = node - 1
    beside = (node > 0) & (previous < keys) & (positions[node] - 1 == positions[previous])
    repeated = beside & (token[previous] == own)
    at_start = (node > 0) & (positions[0] == 0) & (token[0] == own) & ~(repeated & (previous == 0))
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
