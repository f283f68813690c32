"""Which edges of a head a picture shows, and the line that says so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.frame import shown_text
from gattn.head import AttentionGraph, Ints

_STEPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Shown:
    """The edges that a picture shows.

    Parameters
    ----------
    edges : array of int
        Which edges, in the graph's edge order.
    sinks : array of int
        The rows of queries whose edge from the sink is shown.
    caption : str
        The threshold, how many edges of how many are shown, and how much of the mass.
    """

    edges: Ints
    sinks: Ints
    caption: str


def readable_edges(head: AttentionGraph) -> Shown:
    """Choose as many edges as a picture of nodes can bear: strong ones, and at least one a query.

    The threshold is the smallest round number that leaves 40 edges and two more a token. A query
    without an edge that reaches it shows its strongest, all of them where several are equal, so
    that uniform attention does not vanish. Where these are too many, one in k is shown.
    """
    limit = 40 + 2 * head.graph.num_tokens
    size = np.abs(head.attention)
    threshold = next((t for t in _STEPS if int((size >= t).sum()) <= limit), _STEPS[-1])
    chosen, rule = size >= threshold, _at_least(head, threshold)
    strongest = _strongest_of_the_rest(head, chosen)
    if strongest.any():
        stride = -(-int(strongest.sum()) // limit)
        chosen[np.flatnonzero(strongest)[::stride]] = True
        some = f" (one in {stride} of them)" if stride > 1 else ""
        rule = " or ".join(filter(None, [rule, f"a query's strongest{some}"]))
    return _shown(head, chosen, threshold, rule)


def all_edges(head: AttentionGraph) -> Shown:
    """Choose every edge that the head kept."""
    return edges_from(head, 0.0)


def edges_from(head: AttentionGraph, threshold: float) -> Shown:
    """Choose the edges with attention of at least `threshold` (signed attention: its size)."""
    return _shown(head, np.abs(head.attention) >= threshold, threshold, _at_least(head, threshold))


def _at_least(head: AttentionGraph, threshold: float) -> str:
    name = "|attention|" if bool((head.attention < 0).any()) else "attention"
    return f"{name} ≥ {threshold:g}" if threshold else ""


def _strongest_of_the_rest(head: AttentionGraph, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    size = np.abs(head.attention)
    rows = head.graph.num_queries
    strongest = np.zeros(rows, size.dtype)
    np.maximum.at(strongest, head.query, size)
    has_edge = np.bincount(head.query[chosen], minlength=rows) > 0
    equal = size >= strongest[head.query] * (1 - 1e-6)
    rest: NDArray[np.bool_] = equal & ~has_edge[head.query] & (size > 0)
    return rest


def _shown(head: AttentionGraph, chosen: NDArray[np.bool_], threshold: float, rule: str) -> Shown:
    edges = np.flatnonzero(chosen)
    total = int(head.total_edges.sum())
    mass, whole = float(np.abs(head.attention[edges]).sum()), float(head.total_mass.sum())
    caption = all_of(total)
    if len(edges) < total:
        caption = f"{len(edges):,} of {total:,} edges{share_of(mass, whole)}"
        kept_by = shown_text(head.kept_by, limit=200)
        rules = [kept_by if kept_by != "All()" else "", rule]
        caption = ": ".join(filter(None, [", ".join(filter(None, rules)), caption]))
    sinks = np.zeros(0, dtype=np.int64)
    if head.sink is not None:
        sinks = np.flatnonzero((np.abs(head.sink) >= threshold) & (head.sink != 0))
        caption += f"; {len(sinks):,} of {len(head.sink):,} from the sink"
    return Shown(edges, sinks, caption)


def all_of(total: int) -> str:
    """Write that all edges are shown."""
    return {0: "no edges", 1: "1 edge"}.get(total, f"all {total:,} edges")


def share_of(mass: float, whole: float) -> str:
    """Write what share of the whole mass is shown, where there is any."""
    if not whole:
        return ""
    percent = 100 * mass / whole
    digits = 1 if 99.5 <= percent < 99.95 else 0
    return f", {percent:.{digits}f} % of the mass"


def largest_of(block: int) -> str:
    """Write how many edges share a cell, where they do."""
    return f"; a cell is the largest of {block} × {block}" if block > 1 else ""
