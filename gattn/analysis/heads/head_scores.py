"""Scores of one head, each a number."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gattn.errors import ShapeError
from gattn.heads.head import AttentionGraph

NEAR = 2
"""The distance in tokens up to which a key is near."""

SHARE, ROUNDING = 0.9, 1e-9

DEFINITIONS = 2
"""The version of the scores' definitions, which a survey notes."""

REDEFINED = {2: ("induction", "duplicate_token", "previous_token", "next_token")}
"""The scores whose definition changed with a version."""

TEXTS = 4
"""How many texts' tokens are cached: all heads of a trace have the same."""


def describe(head: AttentionGraph) -> dict[str, float]:
    """Describe one head in numbers; see `gattn.analysis.head_table`."""
    refuse_negative(head)
    graph, query = head.graph, head.query
    weight = head.attention.astype(np.float64)
    mass = np.bincount(query, weight, graph.num_queries)
    filled = mass > 0
    rows = int(filled.sum())
    scores = dict.fromkeys(SCORES, np.nan) | {"kept": head.share_kept}
    if not rows:
        return scores
    total = float(mass.sum())
    share = np.divide(weight, mass[query], out=np.zeros_like(weight), where=filled[query])
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
    weight = head.attention.astype(np.float64)
    mass = np.bincount(head.query, weight, head.graph.num_queries)
    rows = int((mass > 0).sum())
    whole = mass[head.query]
    share = np.divide(weight, whole, out=np.zeros_like(weight), where=whole > 0)
    return _entropy(share) / rows + 0.0 if rows else np.nan


def refuse_negative(head: AttentionGraph) -> None:
    """Refuse negative attention, of which there are no shares."""
    if bool((head.attention < 0).any()):
        raise ShapeError("Head scores need attention >= 0; this head has negative attention.")


def is_punctuation(token: str) -> bool:
    """Say whether a token is nothing but punctuation and symbols."""
    letters = token.strip()
    return bool(letters) and all(unicodedata.category(letter)[0] in "PS" for letter in letters)


@lru_cache(TEXTS)
def punctuation(tokens: tuple[str, ...]) -> NDArray[np.bool_]:
    """Mark the tokens that are nothing but punctuation and symbols."""
    return np.array(list(map(is_punctuation, tokens)))


def special_tokens(words: tuple[int | None, ...]) -> NDArray[np.bool_]:
    """Mark the nodes that are special tokens: those that are no part of a word."""
    return np.array([word is None for word in words])


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
