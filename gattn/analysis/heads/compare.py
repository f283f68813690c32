"""Compares two runs on the same tokens, such as before and after an edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gattn.analysis.heads.divergences import Joined, distance_notes, dropped_distance
from gattn.analysis.heads.summed.of_edges import mean_entropy
from gattn.analysis.reading.attention import Heads, named
from gattn.analysis.reading.heads import Place, by_place, source_of
from gattn.analysis.reading.results import Table, column
from gattn.analysis.reading.sources import Source
from gattn.edit_records import between
from gattn.errors import SelectionError
from gattn.graph.rules.edges import Edges
from gattn.heads.head import AttentionGraph
from gattn.progress import walk


def compare(
    before: Heads, after: Heads, *, tokens: Sequence[str] = (), progress: bool = True
) -> Table:
    r"""Compare two runs on the same tokens, head by head.

    Such as runs before and after an edit, of two checkpoints, or of two weight functions on the
    same queries and keys. To match heads of different models, see `gattn.analysis.head_distances`.

    The Jensen-Shannon distance of two distributions p and q is

    .. math::

        d(p, q) = \sqrt{\tfrac12 D(p \| m) + \tfrac12 D(q \| m)}, \quad m = \tfrac12 (p + q), \quad
        D(p \| m) = \sum_j p_j \ln \frac{p_j}{m_j},

    from 0, if they are equal, to :math:`\sqrt{\ln 2} \approx 0.833`, if they have nothing in
    common. A query's distribution is its attention to the keys, and, as one more outcome, what it
    lacks of 1 (by more than rounding): attention to a sink, to edges that were not kept, or to
    nothing. Attention that sums to more than 1 is divided by its sum.

    Parameters
    ----------
    before, after : Heads
        Two traces with the same tokens, stacks and heads; or stacks, heads, arrays or lists of
        graphs, as in `gattn.analysis.head_table`.
    tokens : sequence of str
        The texts of the tokens of two arrays.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Table
        One row per head, by ``stack``, ``layer`` and ``head``, with

        - ``distance``: the Jensen-Shannon distance of the two, mean over queries;
        - ``entropy_before``, ``entropy_after``: as `gattn.analysis.head_table` has it;
        - ``edge_change``: the largest change of an edge's attention, after - before;
        - ``query``, ``key``, ``query_token``, ``key_token``: that edge; missing if nothing changed.

    Raises
    ------
    SelectionError
        If the traces have other stacks, heads or tokens.
    ShapeError
        If attention is negative.

    References
    ----------
    Lin (1991), Divergence measures based on the Shannon entropy. Clark et al. (2019), What does
    BERT look at?, compares heads by it.
    """
    before, after = named(before, tokens), named(after, tokens)
    found = list(pairs(before, after))
    index = ["stack", "layer", "head"]
    rows = [
        dict(zip(index, place, strict=True)) | compare_head(one, other)
        for place, one, other in walk(found, "comparing", "head", progress=progress)
    ]
    sides = (source_of(side) for side in ([one for _, one, _ in found], [x for *_, x in found]))
    compared = Table.of(
        columns_of(rows) if rows else dict.fromkeys(index, ()),
        name="comparison",
        computed_from=_compared(*sides),
        notes=_notes(found),
        index=index,
        num_heads=len(rows),
        drawn=["distance", "entropy_before", "entropy_after", "edge_change"],
    )
    return compared.astype({"query": "Int64", "key": "Int64"} if rows else {})


def _compared(before: Source, after: Source) -> str:
    """Say what was compared, once where only edits differ."""
    if replace(before, edits=()) == (same := replace(after, edits=())):
        return ", ".join(filter(None, [str(same), between(before.edits, after.edits)]))
    return " and ".join(dict.fromkeys((str(before), str(after))))


def _notes(found: Sequence[tuple[Place, AttentionGraph, AttentionGraph]]) -> list[str]:
    return distance_notes(
        max((dropped_distance(one) + dropped_distance(other) for _, one, other in found), default=0)
    )


def compare_head(before: AttentionGraph, after: AttentionGraph) -> dict[str, Any]:
    """Compare two graphs of one head; see `compare`."""
    joined = Joined.of(before, after)
    row: dict[str, Any] = {
        "distance": joined.mean_distance,
        "entropy_before": mean_entropy(before),
        "entropy_after": mean_entropy(after),
        "edge_change": 0.0,
        **dict.fromkeys(("query", "key", "query_token", "key_token")),
    }
    if not joined.change.any():
        return row
    edge = int(np.abs(joined.change).argmax())
    query, key = int(joined.query[edge]), int(joined.key[edge])
    keys, queries = before.node_ids()
    return row | {
        "edge_change": float(joined.change[edge]),
        "query": queries[query],
        "key": keys[key],
        "query_token": before.query_labels()[query],
        "key_token": before.labels()[key],
    }


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write rows of `compare_head` as columns."""
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    return columns | {name: column(columns[name]) for name in ("query_token", "key_token")}


def mean_distance(before: AttentionGraph, after: AttentionGraph) -> float:
    """Compute the distance of two graphs of one head alone; see `compare`."""
    return Joined.of(before, after).mean_distance


def difference(before: AttentionGraph, after: AttentionGraph) -> AttentionGraph:
    """Subtract one head's attention from another's: a graph with signed attention.

    It has the edges of either graph; its attention and its sink are after - before.

    Raises
    ------
    SelectionError
        If their tokens differ.
    ShapeError
        If attention is negative.
    """
    joined = Joined.of(before, after)
    queries = joined.num_queries
    degrees = np.bincount(joined.query, minlength=queries)
    graph = before.graph
    if len(joined.query) > graph.num_edges:
        pointer = torch.from_numpy(np.concatenate([[0], degrees.cumsum()]))
        edges = Edges(pointer, torch.from_numpy(joined.key), graph.query_offset)
        graph = replace(graph, rule=edges)
    sink = None
    if before.sink is not None or after.sink is not None:
        one, other = (0.0 if head.sink is None else head.sink for head in (before, after))
        sink = np.asarray(other - one)
    return replace(
        before,
        graph=graph,
        attention=joined.change,
        total_mass=np.bincount(joined.query, np.abs(joined.change), queries).astype(np.float64),
        total_edges=degrees,
        score=None,
        contribution=None,
        value_norm=None,
        sink=sink,
        weight_function="",
        normalizer="",
    )


def pairs(before: Heads, after: Heads) -> Iterator[tuple[Place, AttentionGraph, AttentionGraph]]:
    """Walk the heads of two runs together, by stack, layer and head."""
    one, other = by_place(before), by_place(after)
    names = [{stack for stack, *_ in some} for some in (one, other)]
    if names[0] != names[1] and {""} in names and len(names[0] | names[1]) == 2:
        one, other = _without_stack(one), _without_stack(other)
    if lone := sorted(one.keys() ^ other.keys()):
        stack, layer, head = lone[0]
        side = "before" if lone[0] in one else "after"
        raise SelectionError(
            f"Only the trace {side} has head {head} of layer {layer}"
            f"{f' in its {stack} stack' if stack else ''}: capture both with the same layers= and "
            "heads=, or match heads by head_distances(before, after)."
        )
    for place in one:
        yield place, one[place], other[place]


def _without_stack(heads: dict[Place, AttentionGraph]) -> dict[Place, AttentionGraph]:
    """Drop the name of the only stack; single heads and arrays have none."""
    return {("", layer, head): one for (_, layer, head), one in heads.items()}
