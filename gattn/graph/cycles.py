"""Whether a token graph has self-loops, or longer cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gattn.graph.rules.base import BLOCK_PAIRS

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


def has_self_loops(graph: TokenGraph) -> bool:
    """Return whether some token may attend to itself."""
    if graph.is_bipartite:
        return False
    last = min(graph.query_offset + graph.num_queries, graph.num_keys)
    first = min(graph.query_offset, last)
    for start in range(first, last, BLOCK_PAIRS):
        tokens = torch.arange(start, min(start + BLOCK_PAIRS, last), device=graph.device)
        if bool(graph.rule.allowed(tokens, tokens).any()):
            return True
    return False


def is_dag(graph: TokenGraph) -> bool:
    """Return whether the graph has no cycle; a self-loop is one."""
    if graph.is_bipartite:
        return True
    if has_self_loops(graph):
        return False
    key, query = graph.edge_index
    query = query + graph.query_offset
    if bool((key < query).all()):
        return True
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = graph.num_tokens
    ends = query.cpu().numpy(), key.cpu().numpy()
    matrix = coo_array((torch.ones(len(key), device="cpu").numpy(), ends), shape=(size, size))
    components, _ = connected_components(matrix.tocsr(), connection="strong")
    return bool(components == size)
