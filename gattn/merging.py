"""Fewer nodes: some of an attention graph's tokens, or spans of tokens merged into one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.errors import SelectionError
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph, Floats, Ints
from gattn.rules import Edges


def subgraph(head: AttentionGraph, nodes: Iterable[int | str]) -> AttentionGraph:
    """Keep some tokens; see `AttentionGraph.subgraph`."""
    wanted = set(nodes)
    head = with_all_rows(head)
    columns, found = _find(wanted, head.node_positions.tolist(), head.labels())
    rows = columns
    if head.graph.is_bipartite:
        rows, more = _find(wanted, range(head.graph.num_queries), head.query_labels())
        found |= more
    if missing := sorted(map(repr, wanted - found)):
        raise SelectionError(
            f"No token {missing[0]}; the tokens are {head.labels()} at positions "
            f"{head.node_positions.tolist()}."
        )
    return _selected(head, rows, columns)


def _find(
    wanted: set[int | str], positions: Iterable[int], labels: Sequence[str]
) -> tuple[Ints, set[int | str]]:
    """Give the indices of the nodes wanted, and which wishes they fulfil."""
    named = [
        wanted & {position, label, label.strip()}
        for position, label in zip(positions, labels, strict=True)
    ]
    found = {name for names in named for name in names}
    return np.flatnonzero([bool(names) for names in named]), found


def _selected(head: AttentionGraph, rows: Ints, columns: Ints) -> AttentionGraph:
    mask = np.isin(head.query, rows) & np.isin(head.key, columns)
    row = torch.from_numpy(np.searchsorted(rows, head.query[mask]))
    key = torch.from_numpy(np.searchsorted(columns, head.key[mask]))
    rule = Edges.from_pairs(row, key, len(rows))
    bipartite = head.graph.is_bipartite
    return replace(
        head,
        graph=TokenGraph(rule, len(rows), len(columns), is_bipartite=bipartite),
        attention=head.attention[mask],
        score=None if head.score is None else head.score[mask],
        total_mass=head.total_mass[rows],
        total_edges=head.total_edges[rows],
        sink=None if head.sink is None else head.sink[rows],
        tokens=tuple(head.tokens[i] for i in columns) if head.tokens else (),
        query_tokens=tuple(head.query_tokens[i] for i in rows) if head.query_tokens else (),
        words=tuple(head.words[i] for i in columns) if head.words else (),
        positions=head.node_positions[columns],
    )


def with_all_rows(head: AttentionGraph) -> AttentionGraph:
    """Give every token a row: an empty neighbourhood where there was none."""
    size, offset = head.graph.num_tokens, head.graph.query_offset
    if head.graph.is_bipartite or (head.graph.num_queries, head.graph.num_keys) == (size, size):
        return head

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        return np.pad(values, (offset, size - offset - len(values)))

    row, key = torch.from_numpy(head.query + offset), torch.from_numpy(head.key)
    return replace(
        head,
        graph=TokenGraph(Edges.from_pairs(row, key, size), size, size),
        total_mass=spread(head.total_mass),
        total_edges=spread(head.total_edges),
        sink=None if head.sink is None else spread(head.sink),
    )


def merge(head: AttentionGraph, spans: Iterable[tuple[int, int]]) -> AttentionGraph:
    """Merge spans of tokens; see `AttentionGraph.merge`."""
    if head.graph.is_bipartite:
        raise SelectionError("Tokens of a bipartite graph cannot be merged: merge each side.")
    head = with_all_rows(head)
    starts = _span_starts(spans, head.graph.num_tokens)
    first = np.flatnonzero(starts)
    count = len(first)
    group = np.cumsum(starts) - 1
    members = np.bincount(group, minlength=count)
    codes = group[head.query] * count + group[head.key]
    edges, place = np.unique(codes, return_inverse=True)
    row, key = np.divmod(edges, max(count, 1))
    kind = head.attention.dtype

    def mean(values: Floats) -> Floats:
        return (np.bincount(group, values, count) / members).astype(kind)

    dropped = np.bincount(group, head.dropped_edges, count).astype(np.int64)
    rule = Edges.from_pairs(torch.from_numpy(row), torch.from_numpy(key), count)
    ends = pairwise([*first.tolist(), len(group)])
    return replace(
        head,
        graph=TokenGraph(rule, count, count),
        attention=(np.bincount(place, head.attention, len(edges)) / members[row]).astype(kind),
        score=None,
        total_mass=mean(head.total_mass),
        total_edges=np.bincount(row, minlength=count) + dropped,
        sink=None if head.sink is None else mean(head.sink),
        tokens=tuple("".join(head.tokens[a:b]) for a, b in ends) if head.tokens else (),
        words=tuple(head.words[i] for i in first) if head.words else (),
        positions=None,
    )


def _span_starts(spans: Iterable[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    """Say of each token whether a merged node starts there."""
    starts = np.ones(size, dtype=bool)
    previous = 0
    for start, stop in sorted(spans):
        if not previous <= start < stop <= size:
            raise SelectionError(
                f"The span ({start}, {stop}) must be half-open, not overlap another one, and lie "
                f"within the {size} tokens."
            )
        starts[start + 1 : stop] = False
        previous = stop
    return starts


def merge_words(head: AttentionGraph) -> AttentionGraph:
    """Merge the tokens of each word; see `AttentionGraph.merge_words`."""
    words = head.words
    if not words:
        raise SelectionError(
            "This graph does not know which tokens make a word (its tokenizer does not say); "
            "use merge([(start, stop), ...])."
        )
    starts = [i for i, word in enumerate(words) if i == 0 or word is None or word != words[i - 1]]
    return merge(head, pairwise([*starts, len(words)]))
