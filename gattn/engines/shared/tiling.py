"""What engines ask about a token graph: how well it fills tiles, and where these need a mask."""

from __future__ import annotations

import torch

from gattn.caching import cached_function
from gattn.graph.rules.keys import Keys, count_keys
from gattn.graph.token_graph import TokenGraph
from gattn.graph.walking import reach


@cached_function
def every_row_has_edges(graph: TokenGraph) -> bool:
    """Return whether each query may attend to at least one key."""
    return bool((graph.on_host.in_degree > 0).all())


@cached_function
def tile_pairs(graph: TokenGraph, height: int) -> int:
    """Count the pairs in the tiles of `height` rows each and the keys that these reach."""
    graph = graph.on_host
    start = torch.arange(0, graph.num_queries, height, device="cpu")
    stop = (start + height).clamp_max(graph.num_queries)
    first_keys = graph.rule.interval(start + graph.query_offset)
    last_keys = graph.rule.interval(stop - 1 + graph.query_offset)
    if first_keys is None or last_keys is None:
        tiles = (slice(*ends) for ends in zip(start.tolist(), stop.tolist(), strict=True))
        return sum((rows.stop - rows.start) * count_keys(reach(graph, rows)) for rows in tiles)
    low, high = first_keys[0].clamp_min(0), last_keys[1].clamp_max(graph.num_keys)
    return int(((stop - start) * (high - low).clamp_min(0)).sum())


def partial_columns(graph: TokenGraph, rows: slice, columns: Keys) -> slice:
    """Find the part of the columns outside which every pair is an edge.

    Returns
    -------
    slice
        Positions in `columns`; only these need a mask. All of them if nothing is known.
    """
    size = count_keys(columns)
    keys = graph.rule.interval(
        torch.tensor([rows.start, rows.stop - 1], device="cpu") + graph.query_offset
    )
    if keys is None:
        return slice(0, size)
    shared = torch.stack([keys[0][1], keys[1][0]])
    if isinstance(columns, slice):
        low, high = (shared - columns.start).clamp(0, size).tolist()
    else:
        low, high = torch.searchsorted(columns, shared.to(columns.device)).tolist()
    if low == 0 < high:
        return slice(high, size)
    return slice(0, low) if high == size else slice(0, size)
