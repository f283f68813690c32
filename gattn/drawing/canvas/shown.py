"""Which edges of a head a picture shows, and the caption that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.frame import shown_text
from gattn.errors import SelectionError
from gattn.heads.given.weights import what_of
from gattn.heads.head import AttentionGraph, Ints
from gattn.heads.steps import ALL, to_text

_STEPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FEW = 150


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
        The threshold, how many edges of how many are shown, and how much of the attention.
    """

    edges: Ints
    sinks: Ints
    caption: str


def readable_edges(head: AttentionGraph) -> Shown:
    """Choose as many edges as stay readable in a picture of nodes, at least one per query.

    The threshold is the smallest round number that leaves at most 40 edges plus two per token, or
    150. If these hold less than half of the attention, it falls, for up to four times as many
    edges. A query with nearly uniform attention below it shows one edge in k, any other query its
    strongest edge.
    """
    usual = 40 + 2 * head.graph.num_tokens
    limit = max(usual, _FEW)
    size = np.abs(head.attention)
    threshold = _threshold(size, limit, _STEPS if len(size) <= usual else _STEPS[1:])
    chosen, rule = size >= threshold, _at_least(head, threshold)
    rules = [rule] if chosen.any() else []
    flat, is_whole = _flat(head, chosen)
    if flat.any():
        if is_whole:
            chosen, rules = np.zeros_like(chosen), []
        stride = even_stride(int(flat.sum()), limit, head.graph.num_keys)
        chosen[np.flatnonzero(flat & ~chosen)[::stride]] = True
        some = every(stride)
        rules.append(some if is_whole else f"{some} of queries with nearly uniform attention")
    strongest = _strongest_of_the_rest(head, chosen)
    if len(strongest):
        chosen[strongest] = True
        rules.append("the strongest edge of each query")
    return _shown(head, chosen, threshold, " or ".join(filter(None, rules)))


def _threshold(size: NDArray[Any], limit: int, steps: tuple[float, ...]) -> float:
    counts = [int((size >= step).sum()) for step in _STEPS]
    place = next((i for i, t in enumerate(_STEPS) if t in steps and counts[i] <= limit), -1)
    place %= len(_STEPS)
    half = float(size.sum()) / 2
    while place and counts[place - 1] <= 4 * limit and size[size >= _STEPS[place]].sum() < half:
        place -= 1
    return _STEPS[place]


def _flat(head: AttentionGraph, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], bool]:
    """Find the edges of nearly uniform queries that show less than half, and if all are such."""
    size = np.abs(head.attention).astype(np.float64)
    rows = head.graph.num_queries
    mass, squares, visible = (
        np.bincount(head.query, weights=weights, minlength=rows)
        for weights in (size, size**2, size * chosen)
    )
    top = _strongest(head)
    is_even = top * mass <= 1.5 * squares
    flat = is_even & (mass >= 5 * top) & (visible < mass / 2)
    found: NDArray[np.bool_] = flat[head.query] & (size >= top[head.query] / 4)
    return found, bool((flat | (mass == 0)).all() and flat.any())


def even_stride(edges: int, limit: int, num_keys: int) -> int:
    """Choose k so that one edge in k makes about `limit` edges, spread over the keys."""
    stride = max(-(-edges // limit), 1)
    while stride > 1 and math.gcd(stride, num_keys) > 1:
        stride += 1  # A divisor would meet the same few keys in each row.
    return stride


def every(stride: int) -> str:
    """Write "every 7th edge"."""
    if stride == 1:
        return "every edge"
    last = {1: "st", 2: "nd", 3: "rd"}.get(stride % 10, "th")
    return f"every {stride}{'th' if stride % 100 in (11, 12, 13) else last} edge"


def all_edges(head: AttentionGraph) -> Shown:
    """Choose every edge that the head kept."""
    return edges_from(head, 0.0)


def edges_from(head: AttentionGraph, threshold: float) -> Shown:
    """Choose the edges with attention of at least `threshold` (signed attention: its size)."""
    if not isinstance(threshold, Real) or math.isnan(threshold):
        raise SelectionError(
            f"threshold is a number that attention is compared to, such as 0.1, not {threshold!r}."
        )
    return _shown(head, np.abs(head.attention) >= threshold, threshold, _at_least(head, threshold))


def _at_least(head: AttentionGraph, threshold: float) -> str:
    name = "|attention|" if bool((head.attention < 0).any()) else "attention"
    return f"{name} ≥ {threshold:g}" if threshold else ""


def _strongest(head: AttentionGraph) -> NDArray[np.float64]:
    strongest = np.zeros(head.graph.num_queries)
    np.maximum.at(strongest, head.query, np.abs(head.attention).astype(np.float64))
    return strongest


def _strongest_of_the_rest(head: AttentionGraph, chosen: NDArray[np.bool_]) -> Ints:
    """Find the strongest edge of each query that shows none."""
    size = np.abs(head.attention)
    has_edge = np.bincount(head.query[chosen], minlength=head.graph.num_queries) > 0
    is_top = (size >= _strongest(head)[head.query]) & (size > 0) & ~has_edge[head.query]
    edges = np.flatnonzero(is_top)
    first: Ints = edges[np.unique(head.query[edges], return_index=True)[1]]
    return first


def _shown(head: AttentionGraph, chosen: NDArray[np.bool_], threshold: float, rule: str) -> Shown:
    edges = np.flatnonzero(chosen)
    total = int(head.total_edges.sum())
    mass, whole = float(np.abs(head.attention[edges]).sum()), float(head.total_mass.sum())
    caption = all_of(total)
    if len(edges) < total:
        caption = f"{len(edges):,} of {total:,} edges{share_of(mass, whole, what_of([head]))}"
        rules = [kept_by([head]), rule]
        caption = ": ".join(filter(None, [", ".join(filter(None, rules)), caption]))
    sinks = np.zeros(0, dtype=np.int64)
    if head.sink is not None:
        sinks = np.flatnonzero((np.abs(head.sink) >= threshold) & (head.sink != 0))
        caption += f"; {len(sinks):,} of {len(head.sink):,} from the sink"
    return Shown(edges, sinks, caption)


def kept_by(heads: Iterable[AttentionGraph]) -> str:
    """Name the rules by which heads kept edges; "" if they kept all."""
    rules = dict.fromkeys(to_text(head.kept_by) for head in heads if head.kept_by != ALL)
    return shown_text(", ".join(rules), limit=200)


def all_of(total: int) -> str:
    """Write that all edges are shown."""
    return {0: "no edges", 1: "1 edge"}.get(total, f"all {total:,} edges")


def share_of(shown: float, whole: float, what: str = "the attention") -> str:
    """Return what share of the attention, or of something else, is shown; "" if there is none."""
    if not whole:
        return ""
    percent = 100 * shown / whole
    digits = 1 if 99.5 <= percent < 99.95 else 0
    return f", {percent:.{digits}f} % of {what}"


def largest_of(block: int) -> str:
    """Return how many edges share a cell, if any do."""
    return f"; a cell is the largest of {block} × {block}" if block > 1 else ""
