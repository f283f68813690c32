"""Thumbnails of all heads on a page: the strongest edge of each block of queries and keys.

A cell is one byte: for a head, 255 times the root of the largest |A|; for the change between two
heads, 128 + 127 times the signed root of the largest change. Sizes above 1 count as 1.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

Shades: TypeAlias = NDArray[np.uint8]

SIZE = 32
"""The most rows and columns of a thumbnail."""


def thumbnail(head: AttentionGraph) -> Shades:
    """Make the thumbnail of a head, with at most `SIZE` rows (queries) and columns (keys)."""
    largest = _largest(head.graph, head.query, head.key, np.abs(head.attention))
    return np.rint(255 * _root(largest)).astype(np.uint8)


def thumbnail_of_change(before: AttentionGraph, after: AttentionGraph) -> Shades:
    """Make the thumbnail of a change: the largest change of each block.

    Edges that a head dropped are not compared; edges that a head does not have count as 0.
    """
    places, changes = _changes(before, after)
    query, key = np.divmod(places, max(before.graph.num_tokens, 1))
    rise, fall = (
        _largest(before.graph, query, key, np.maximum(sign * changes, 0)) for sign in (1, -1)
    )
    signed = np.where(rise >= fall, _root(rise), -_root(fall))
    shades: Shades = np.rint(128 + 127 * signed).astype(np.uint8)
    return shades


def _changes(
    before: AttentionGraph, after: AttentionGraph
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the change of each edge whose attention both know, and query and key as one number."""
    heads = before, after
    nodes = max(before.graph.num_tokens, 1)
    places = [head.query * nodes + head.key for head in heads]
    if np.array_equal(places[0], places[1]):
        return places[0], after.attention.astype(np.float64) - before.attention
    union = np.union1d(*places)
    values = [_on(union, at, head) for at, head in zip(places, heads, strict=True)]
    changes = values[1] - values[0]
    known = ~np.isnan(changes)
    return union[known], changes[known]


def _on(union: NDArray[Any], places: NDArray[Any], head: AttentionGraph) -> NDArray[np.float64]:
    is_whole = head.graph.num_edges == head.total_edges.sum()
    values = np.full(len(union), 0.0 if is_whole else np.nan)
    values[np.searchsorted(union, places)] = head.attention
    return values


def _largest(
    graph: TokenGraph, query: NDArray[Any], key: NDArray[Any], sizes: NDArray[Any]
) -> NDArray[np.float64]:
    rows, columns = (min(SIZE, count) for count in (graph.num_queries, graph.num_tokens))
    largest = np.zeros(rows * columns)
    cell = query * rows // graph.num_queries * columns + key * columns // graph.num_tokens
    np.maximum.at(largest, cell, sizes.astype(np.float64, copy=False))
    return largest.reshape(rows, columns)


def _root(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(np.minimum(sizes, 1))
