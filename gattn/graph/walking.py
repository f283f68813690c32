"""Walking a token graph a few queries at a time, on the keys that they reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from gattn.graph.rules.keys import Keys, count_keys

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph

FEW_PAIRS = 1 << 17
"""So few pairs are checked in no time."""

_FIRST_ROWS = 64


def reach(graph: TokenGraph, rows: slice) -> Keys:
    """Find the keys that the given rows reach together.

    Parameters
    ----------
    graph : TokenGraph
        Who may attend to whom.
    rows : slice
        Queries, counted from 0.

    Returns
    -------
    slice or Tensor
        These keys and possibly others: a slice if they fill a run (nearly), else int64, sorted,
        without duplicates, on the rule's device (the CPU for a rule without one).
    """
    if rows.start >= rows.stop or not graph.num_keys:
        return slice(0, 0)
    first, last = rows.start + graph.query_offset, rows.stop - 1 + graph.query_offset
    keys = graph.rule.reach(first, last, graph.num_keys)
    if isinstance(keys, Tensor):
        run = slice(int(keys[0]), int(keys[-1]) + 1)
        if 4 * len(keys) > 3 * count_keys(run):
            return run
    return keys


def blocks_of_rows(
    graph: TokenGraph, max_pairs: int, most_rows: int | None
) -> Iterator[tuple[slice, Keys]]:
    """Cut a graph into rows and the keys that they reach; see `TokenGraph.row_blocks`."""
    start = 0
    while start < graph.num_queries:
        most = graph.num_queries - start
        most = most if most_rows is None else min(most, most_rows)
        rows, columns = _block(graph, start, max_pairs, most)
        yield rows, columns
        start = rows.stop


def _block(graph: TokenGraph, start: int, max_pairs: int, most_rows: int) -> tuple[slice, Keys]:
    """Take rows from `start` on, more while they reach few more keys."""
    height = max(min(max_pairs // max(graph.num_keys, 1), _FIRST_ROWS, most_rows), 1)
    rows = slice(start, start + height)
    columns = reach(graph, rows)
    while height < most_rows:
        height = min(2 * height, most_rows)
        wider = slice(start, start + height)
        reached = reach(graph, wider)
        pairs = height * count_keys(reached)
        few_more = 4 * count_keys(reached) <= 5 * count_keys(columns)
        if pairs > max_pairs or (pairs > FEW_PAIRS and not few_more):
            break
        rows, columns = wider, reached
    return rows, columns
