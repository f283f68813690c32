"""Scores of one head, each a number."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.heads.patterns import TEXTS, patterns, texts
from gattn.errors import ShapeError
from gattn.heads.head import AttentionGraph

Numbers: TypeAlias = NDArray[np.float64]

NEAR = 2
"""The distance in tokens up to which a key is near."""

SHARE, ROUNDING = 0.9, 1e-9

DEFINITIONS = 2
"""The version of the scores' definitions, which a survey notes."""

REDEFINED = {2: ("induction", "duplicate_token", "previous_token", "next_token")}
"""The scores whose definition changed with a version."""


def describe(head: AttentionGraph) -> dict[str, float]:
    """Describe one head in numbers; see `gattn.analysis.head_table`."""
    refuse_negative(head)
    graph, query = head.graph, head.query
    weight, mass, share = _shares(head)
    filled = mass > 0
    rows = int(filled.sum())
    scores = dict.fromkeys(SCORES, np.nan) | {"kept": head.share_kept}
    if not rows:
        return scores
    total = float(mass.sum())
    starts = graph.pointer.numpy()
    scores |= {
        "entropy": _entropy(share) / rows + 0.0,  # never -0.0
        "confidence": float(np.maximum.reduceat(weight, starts[:-1][filled]).sum()) / rows,
        "edges": float(head.total_edges[filled].mean()),
        "edges_for_90": _needed(share, query, starts, filled) / rows,
    }
    sums = pattern_sums(head, weight)
    scores |= {name: value / total for name, value in sums.items()}
    scores |= {name: one.mean(weight) for name, one in patterns(head).items()}
    if graph.is_bipartite:
        return scores
    sink = None if head.sink is None else float(head.sink[filled].sum(dtype=np.float64)) / rows
    first = float(weight[head.node_positions[head.key] == 0].sum()) / rows
    scores |= {"first_token": first, "sink_mass": first + (sink or 0.0)}
    if sink is not None:
        scores["outside_sink"] = sink
    return scores


SCORES = (
    "entropy",
    "mean_distance",
    "previous_token",
    "next_token",
    "first_token",
    "same_token",
    "duplicate_token",
    "induction",
    "sink_mass",
    "outside_sink",
    "confidence",
    "edges",
    "edges_for_90",
    "locality",
    "punctuation",
    "special_tokens",
    "kept",
)


def mean_entropy(head: AttentionGraph) -> float:
    """Compute the entropy of `gattn.analysis.head_table` alone."""
    _, mass, share = _shares(head)
    rows = int((mass > 0).sum())
    return _entropy(share) / rows + 0.0 if rows else np.nan


def refuse_negative(head: AttentionGraph) -> None:
    """Refuse negative attention, of which there are no shares."""
    if bool((head.attention < 0).any()):
        raise ShapeError("Head scores need attention >= 0; this head has negative attention.")


def is_punctuation(token: str) -> bool:
    """Return whether a token is nothing but punctuation and symbols."""
    letters = token.strip()
    return bool(letters) and all(unicodedata.category(letter)[0] in "PS" for letter in letters)


@lru_cache(TEXTS)
def punctuation(tokens: tuple[str, ...]) -> NDArray[np.bool_]:
    """Mark the tokens that are nothing but punctuation and symbols."""
    return np.array(list(map(is_punctuation, tokens)))


def special_tokens(words: tuple[int | None, ...]) -> NDArray[np.bool_]:
    """Mark the nodes that are special tokens: those that are no part of a word."""
    return np.array([word is None for word in words])


def _shares(head: AttentionGraph) -> tuple[Numbers, Numbers, Numbers]:
    """Return each edge's attention, each query's mass, and each edge's share of it."""
    weight = head.attention.astype(np.float64)
    mass = np.bincount(head.query, weight, head.graph.num_queries).astype(np.float64)
    whole = mass[head.query]
    return weight, mass, np.divide(weight, whole, out=np.zeros_like(weight), where=whole > 0)


def _entropy(share: NDArray[np.float64]) -> float:
    surprise = np.log(share, out=np.zeros_like(share), where=share > 0)
    return -float(share @ surprise)


def _needed(
    share: NDArray[np.float64],
    query: NDArray[np.int64],
    starts: NDArray[np.int64],
    filled: NDArray[np.bool_],
) -> int:
    """Count the edges, each query's strongest first, up to 90 % of its attention."""
    # One sort for all rows: a row's values lie between those of its neighbours.
    falling = 2 * (query - np.sort(query - share / 2))
    before = np.cumsum(falling) - falling
    before -= before[np.minimum(starts[:-1], max(len(before) - 1, 0))][query]
    return int(((before < SHARE - ROUNDING) & filled[query]).sum())


def pattern_sums(head: AttentionGraph, weight: NDArray[np.float64]) -> dict[str, float]:
    """Add up the weights of the edges of each pattern."""
    sums = {}
    column = np.bincount(head.key, weight, head.graph.num_tokens)
    if head.tokens:
        sums["punctuation"] = column[punctuation(head.tokens)].sum()
    if head.words:
        sums["special_tokens"] = column[special_tokens(head.words)].sum()
    if not head.graph.is_bipartite:
        sums |= _sums_of_pairs(head, weight)
    return {name: float(value) for name, value in sums.items()}


def _sums_of_pairs(head: AttentionGraph, weight: NDArray[np.float64]) -> dict[str, float]:
    node, key = head.query + head.graph.query_offset, head.key
    positions = head.node_positions
    distance = np.abs(positions[key] - positions[node])
    sums = {
        "mean_distance": weight @ distance,
        "locality": weight[distance <= NEAR].sum(),
    }
    if not head.tokens:
        return sums
    token, _ = texts(head.tokens, positions)
    return sums | {"same_token": weight[token[key] == token[node]].sum()}
