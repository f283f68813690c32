"""Attention graphs with fewer nodes: of some tokens, or with spans of tokens merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.errors import SelectionError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads import steps
from gattn.heads.geometry import Grid
from gattn.names.pieces import joined
from gattn.names.tokens import find_tokens, places_of, unclear_pair

if TYPE_CHECKING:
    from gattn.heads.head import AttentionGraph, Floats, Ints


def subgraph(head: AttentionGraph, nodes: Iterable[int | str]) -> AttentionGraph:
    """Keep some tokens: by position, negative from the end, or by text (all of that text).

    Nodes keep their positions; edges to other tokens count as dropped. In a bipartite graph, both
    queries and keys are chosen.
    """
    if isinstance(head.geometry, Grid) and (said := unclear_pair("nodes", nodes)):
        raise SelectionError(said)
    try:
        wanted: list[int | str] = [nodes] if isinstance(nodes, str) else list(nodes)
    except TypeError as error:
        raise SelectionError(
            f"nodes must be positions and texts, as in [0, 'dog'], not {nodes!r}."
        ) from error
    head = with_all_rows(head)
    keys, queries = head.node_positions.tolist(), head.node_ids()[1]
    labels, query_labels = head.labels(), head.query_labels()
    columns, rows = set[int](), set[int]()
    for one in wanted:
        found = places_of(one, keys, labels)
        more = places_of(one, queries, query_labels) if head.graph.is_bipartite else found
        if not found and not more:
            find_tokens(one, keys, labels)  # raises the error
        columns |= set(found)
        rows |= set(more)
    return selected(head, _sorted(rows), _sorted(columns))


def _sorted(places: set[int]) -> Ints:
    return np.array(sorted(places), dtype=np.int64)


def selected(head: AttentionGraph, rows: Ints, columns: Ints) -> AttentionGraph:
    """Keep some rows and columns: the same ones if queries and keys are the same tokens."""
    mask = np.isin(head.query, rows) & np.isin(head.key, columns)
    row = torch.from_numpy(np.searchsorted(rows, head.query[mask]))
    key = torch.from_numpy(np.searchsorted(columns, head.key[mask]))
    rule = Edges.from_pairs(row, key, len(rows))
    kept: dict[str, Any] = {name: values[mask] for name, values in head.edge_values.items()}
    bipartite = head.graph.is_bipartite
    _, queries = head.node_ids()
    nodes, size = (rows, head.graph.num_queries) if bipartite else (columns, head.graph.num_tokens)
    return replace(
        head,
        graph=TokenGraph(rule, len(rows), len(columns), is_bipartite=bipartite),
        total_mass=head.total_mass[rows],
        total_edges=head.total_edges[rows],
        sink=None if head.sink is None else head.sink[rows],
        tokens=tuple(head.tokens[i] for i in columns) if head.tokens else (),
        query_tokens=tuple(head.query_tokens[i] for i in rows) if head.query_tokens else (),
        words=tuple(head.words[i] for i in columns) if head.words else (),
        segments=tuple(head.segments[i] for i in columns) if head.segments else (),
        generated=int((nodes >= size - head.generated).sum()),
        positions=unless_counted(head.node_positions[columns]),
        query_positions=unless_counted(np.array(queries)[rows]) if bipartite else None,
        geometry=None if head.geometry is None else head.geometry[columns],
        query_geometry=None if head.query_geometry is None else head.query_geometry[rows],
        **kept,
    )


def unless_counted(positions: Ints) -> Ints | None:
    """Return positions, or None if they are 0, 1, 2 ..."""
    return None if np.array_equal(positions, np.arange(len(positions))) else positions


def with_all_rows(head: AttentionGraph) -> AttentionGraph:
    """Give every token a row; new rows are empty neighbourhoods."""
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


def merge(
    head: AttentionGraph,
    spans: Iterable[tuple[int, int]],
    query_spans: Iterable[tuple[int, int]] = (),
) -> AttentionGraph:
    """Merge spans of neighbouring tokens into one node each: sum over keys, mean over queries.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    spans : iterable of (start, stop)
        Half-open, not overlapping; a token outside every span stands alone. In a bipartite graph,
        spans of keys.
    query_spans : iterable of (start, stop)
        Spans of queries, in a bipartite graph.

    Notes
    -----
    Rows that summed to 1 still do. Merged nodes are numbered from 0. Scores and lengths are not
    carried over: a merged edge has no defined score, and the length of a sum is not the sum of the
    lengths. A side with merged tokens no longer knows where they lie.
    """
    head = with_all_rows(head)
    spans, query_spans = as_spans(spans), as_spans(query_spans)
    bipartite = head.graph.is_bipartite
    if query_spans and not bipartite:
        raise SelectionError(
            "query_spans are for bipartite graphs; here `spans` merges keys and queries alike."
        )
    column_starts = row_starts = _span_starts(spans, head.graph.num_tokens)
    if bipartite:
        row_starts = _span_starts(query_spans, head.graph.num_queries)
    column, row = np.cumsum(column_starts) - 1, np.cumsum(row_starts) - 1
    columns, rows = int(column_starts.sum()), int(row_starts.sum())
    members = np.bincount(row, minlength=rows)
    starts = row_starts if bipartite else column_starts
    codes = row[head.query] * columns + column[head.key]
    edges, place = np.unique(codes, return_inverse=True)
    query, key = np.divmod(edges, max(columns, 1))
    kind = head.attention.dtype

    def mean(values: Floats) -> Floats:
        return (np.bincount(row, values, rows) / members).astype(kind)

    dropped = np.bincount(row, head.dropped_edges, rows).astype(np.int64)
    rule = Edges.from_pairs(torch.from_numpy(query), torch.from_numpy(key), rows)
    return replace(
        head,
        graph=TokenGraph(rule, rows, columns, is_bipartite=bipartite),
        attention=(np.bincount(place, head.attention, len(edges)) / members[query]).astype(kind),
        score=None,
        contribution=None,
        value_norm=None,
        total_mass=mean(head.total_mass),
        total_edges=np.bincount(query, minlength=rows) + dropped,
        sink=None if head.sink is None else mean(head.sink),
        tokens=_joined(head.tokens, head.words, column_starts),
        query_tokens=_joined(head.query_tokens, (), row_starts),
        words=tuple(head.words[i] for i in np.flatnonzero(column_starts)) if head.words else (),
        segments=_merged_segments(head.segments, column_starts),
        generated=int(starts[len(starts) - head.generated :].sum()),
        positions=None,
        query_positions=None,
        geometry=head.geometry if column_starts.all() else None,
        query_geometry=head.query_geometry if row_starts.all() else None,
        kept_by=head.kept_by if head.kept_by == steps.ALL else (*head.kept_by, steps.Merged()),
    )


def _merged_segments(segments: Sequence[int], starts: NDArray[np.bool_]) -> tuple[int, ...]:
    """Give nodes the segment of their tokens; none are known if one has tokens of several."""
    of_node = [one for one, is_first in zip(segments, starts, strict=False) if is_first]
    again = [of_node[node] for node in np.cumsum(starts) - 1] if segments else []
    return tuple(of_node) if again == list(segments) else ()


def between(
    head: AttentionGraph, queries: tuple[int, int], keys: tuple[int, int]
) -> AttentionGraph:
    """Keep the edges by which one span of tokens reads another; the others count as dropped.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    queries, keys : (start, stop)
        Which tokens read, and which are read: half-open, as in `merge`, and `spans` lists those
        of a pair of sentences. ``kept_mass`` is then what each query gives to these keys.

    Raises
    ------
    SelectionError
        If a span is none, or is not within the tokens.

    Examples
    --------
    >>> first, second = head.spans
    >>> head.between(first, second).draw()  # what the first sentence reads of the second
    """
    (first, last), (start, stop) = (as_spans([span])[0] for span in (queries, keys))
    graph = head.graph
    offset = 0 if graph.is_bipartite else graph.query_offset
    sizes = graph.num_queries if graph.is_bipartite else graph.num_tokens, graph.num_tokens
    _span_starts([(first, last)], sizes[0])
    _span_starts([(start, stop)], sizes[1])
    query = head.query + offset
    chosen = (query >= first) & (query < last) & (head.key >= start) & (head.key < stop)
    return head._with_edges(chosen, steps.Between((first, last), (start, stop)))


def _joined(
    tokens: Sequence[str], words: Sequence[int | None], starts: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Join the texts of tokens that become one node."""
    ends = pairwise([*np.flatnonzero(starts).tolist(), len(starts)])
    return tuple(joined(tokens[a:b], words[a:b]) for a, b in ends) if tokens else ()


_MERGED = "merge([(1, 3)]), which merges the tokens 1 and 2"


def as_spans(spans: Iterable[tuple[int, int]], example: str = _MERGED) -> list[tuple[int, int]]:
    """Check that spans are pairs of whole numbers; an error gives an example."""
    one: Any = spans
    try:
        found = []
        for one in spans:
            if isinstance(one, str) or any(isinstance(end, (bool, np.bool_)) for end in one):
                raise TypeError
            start, stop = one
            found.append((index(start), index(stop)))
        return found
    except (TypeError, ValueError) as error:
        raise SelectionError(
            f"Spans are pairs (start, stop) of positions, as in {example}, not {one!r:.80}."
        ) from error


def _span_starts(spans: Iterable[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    """Mark the tokens at which a node starts."""
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
    """Merge the tokens of each word into one node (of the keys, if bipartite)."""
    words = head.words
    if not words:
        raise SelectionError(
            "This graph does not know which tokens form a word: their tokenizer does not say, or "
            "they came from ids that no text encodes to; use merge([(start, stop), ...])."
        )
    starts = [i for i, word in enumerate(words) if i == 0 or word is None or word != words[i - 1]]
    return merge(head, pairwise([*starts, len(words)]))
