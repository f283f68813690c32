"""Sums over the edges of one head, edge by edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gattn.analysis.heads.summed.nodes import Nodes, marks
from gattn.analysis.heads.summed.patterns import edges_of_patterns
from gattn.analysis.heads.summed.sums import ROUNDING, SHARE, Numbers, Sums
from gattn.errors import ShapeError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import Causal, Complete
from gattn.heads.head import AttentionGraph


def sums_of_edges(head: AttentionGraph) -> Sums:
    """Sum up the kept edges of a head.

    Raises
    ------
    ShapeError
        If attention is negative.
    """
    refuse_negative(head.attention.min(initial=0.0))
    graph, nodes = head.graph, Nodes.of(head)
    weight, mass, share = _shares(head)
    filled = mass > 0
    starts = graph.pointer.numpy()
    found = {
        "entropy": _entropy(share),
        "confidence": np.maximum.reduceat(weight, starts[:-1][filled]).sum(),
        "edges_for_90": _needed(share, head.query, starts, filled),
    }
    column = np.bincount(head.key, weight, graph.num_tokens)
    found |= {name: column[some].sum() for name, some in marks(nodes).items()}
    if not graph.is_bipartite:
        place = nodes.place
        step = place[head.key] - place[head.query + graph.query_offset]
        found["mean_distance"] = weight @ np.abs(step)
    patterns = edges_of_patterns(nodes, head.query, head.key)
    found |= {name: weight[some].sum() for name, some in patterns.items()}
    return Sums(
        nodes,
        graph if _knows_keys(head) else None,
        not graph.is_bipartite and bool((head.key <= head.query + graph.query_offset).all()),
        mass[None],
        (filled | (head.total_mass > 0))[None],
        head.total_edges,
        np.array([head.share_kept]),
        None if head.sink is None else head.sink.astype(np.float64)[None],
        {name: np.array([value], dtype=np.float64) for name, value in found.items()},
    )


def mean_entropy(head: AttentionGraph) -> float:
    """Compute the entropy of `gattn.analysis.head_table` alone."""
    _, mass, share = _shares(head)
    rows = int((mass > 0).sum())
    return _entropy(share) / rows + 0.0 if rows else np.nan


def refuse_negative(lowest: float) -> None:
    """Refuse negative attention, of which there are no shares."""
    if lowest < 0:
        raise ShapeError("Head scores need attention >= 0; this head has negative attention.")


def _knows_keys(head: AttentionGraph) -> bool:
    """Return whether a head's edges are its whole token graph, which has to be listed."""
    rule = head.graph.rule
    is_whole = not isinstance(rule, Edges) or bool(head.weight_function)
    return is_whole and not head.dropped_edges.any() and not isinstance(rule, (Causal, Complete))


def _shares(head: AttentionGraph) -> tuple[Numbers, Numbers, Numbers]:
    """Return each edge's attention, each query's mass, and each edge's share of it."""
    weight = head.attention.astype(np.float64)
    mass = np.bincount(head.query, weight, head.graph.num_queries).astype(np.float64)
    whole = mass[head.query]
    return weight, mass, np.divide(weight, whole, out=np.zeros_like(weight), where=whole > 0)


def _entropy(share: Numbers) -> float:
    surprise = np.log(share, out=np.zeros_like(share), where=share > 0)
    return -float(share @ surprise)


def _needed(
    share: Numbers,
    query: NDArray[np.int64],
    starts: NDArray[np.int64],
    filled: NDArray[np.bool_],
) -> int:
    """Count the edges, each query's strongest first, up to 90 % of its attention."""
    # One sort for all rows: a row's values lie between those of its neighbours.
    falling = 2 * (query - np.sort(query - share / 2))
    before = np.cumsum(falling) - falling
    before -= np.append(before, 0.0)[starts[:-1]][query]  # a last row may be empty
    return int(((before < SHARE - ROUNDING) & filled[query]).sum())
