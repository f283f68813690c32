"""The edges of a token graph, listed if memory allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gattn.checks import allowed_memory, check_memory
from gattn.errors import GattnError, GraphError
from gattn.graph.counting import count_edges
from gattn.graph.rules.base import Rule
from gattn.graph.rules.combined import Combined
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.neighbourhoods import Neighbourhoods, pointer_of
from gattn.graph.walking import FEW_PAIRS

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


def check_edges(
    graph: TokenGraph,
    size: int,
    what: str,
    more: int = 0,
    instead: str = "",
    error: type[GattnError] = GraphError,
) -> None:
    """Refuse to make what takes too much memory per edge, without counting all edges first.

    Parameters
    ----------
    graph : TokenGraph
        The graph whose edges they are.
    size : int
        Bytes per edge.
    what : str
        What would be made of them, such as "The list".
    more : int
        Bytes for everything else.
    instead, error
        As in `gattn.checks.check_memory`.
    """
    most = max((allowed_memory() - more) // size, 0)
    count = count_edges(graph.rule, graph.query_offset, graph.num_queries, graph.num_keys, most)
    if count is None:
        count = _walked_edges(graph, most)
    whose = f"{what} of the first {count:,} edges" if count > most else what
    check_memory(size * count + more, f"{whose} of {graph}", instead, error)


def _walked_edges(graph: TokenGraph, most: int) -> int:
    """Count the edges pair by pair until there are more than `most`."""
    count = 0
    for _, _, allowed in graph.row_blocks():
        count += int(allowed.sum())
        if count > most:
            break
    return count


def list_edges(graph: TokenGraph) -> Neighbourhoods:
    """List the edges; see `TokenGraph.neighbourhoods`."""
    rule = graph.rule
    if graph.num_queries * graph.num_keys > FEW_PAIRS and not isinstance(rule, Edges):
        check_edges(graph, 16, "The list", instead="walk them with row_blocks()")
    edges = rule.listed()
    if edges is None and isinstance(rule, Combined) and rule.operation == "|":
        edges = _joined_edges(graph, rule.left, rule.right)
    if edges is not None:
        return edges.neighbourhoods.among(graph.num_keys)
    nothing = torch.zeros(0, dtype=torch.long, device=rule.device or "cpu")
    degrees, keys = [nothing], [nothing]
    for _, columns, allowed in graph.row_blocks():
        key = allowed.nonzero(as_tuple=True)[1]
        keys.append(key + columns.start if isinstance(columns, slice) else columns[key])
        degrees.append(allowed.sum(1))
    return Neighbourhoods(pointer_of(torch.cat(degrees)), torch.cat(keys), graph.num_keys)


def _joined_edges(graph: TokenGraph, left: Rule, right: Rule) -> Edges | None:
    """Join listed edges with those of a rule, which by itself may reach few keys."""
    if left.listed() is None and right.listed() is None:
        return None
    parts = [replace(graph, rule=rule).edge_index.to(graph.device) for rule in (left, right)]
    key, query = torch.cat(parts, dim=1)
    return Edges.from_pairs(query, key, graph.num_queries)
