"""Which edges of a head a picture shows, and the caption that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.canvas.labels import in_percent
from gattn.drawing.canvas.layouts import Node, ends
from gattn.errors import SelectionError
from gattn.heads.given.weights import what_of
from gattn.heads.head import AttentionGraph, Ints
from gattn.heads.steps import ALL, to_text

_STEPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FEW = 150
_WHOLE = 1.01
"""All of a query's attention, in half precision at most."""


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
    parts : tuple of (AttentionGraph, Shown)
        Where a picture shows several heads, each with its own edges.
    rows, columns : sequence of int
        The rows of queries and columns of keys that were asked about, if not all were.
    rule : str
        Which of the kept edges are shown; "" for all of them.
    """

    edges: Ints
    sinks: Ints
    caption: str
    parts: tuple[tuple[AttentionGraph, Shown], ...] = ()
    rows: Sequence[int] = ()
    columns: Sequence[int] = ()
    rule: str = ""

    def asked(self, head: AttentionGraph, *, split: bool = False) -> list[Node]:
        """List the nodes that were asked about; with `split` a token is two."""
        keys, queries = ends(head, split=split)
        return [*(keys[j] for j in self.columns), *(queries[i] for i in self.rows)]


def readable_edges(head: AttentionGraph) -> Shown:
    """Choose as many edges as stay readable in a picture of nodes, at least one per query.

    The threshold is the smallest round number that leaves at most 40 edges plus two per query, or
    150. If these hold less than half of the attention, it falls, for up to four times as many
    edges. Any query that shows none shows its strongest edge, and one with nearly uniform attention
    below the threshold some of its strongest.
    """
    usual = 40 + 2 * head.graph.num_queries
    limit = max(usual, _FEW)
    size = np.abs(head.attention)
    threshold = _threshold(size, limit, _STEPS if len(size) <= usual else _STEPS[1:])
    chosen, rule = size >= threshold, _at_least(head, threshold)
    rules = [rule] if chosen.any() else []
    flat, few = _flat(head, chosen), ""
    if flat.any():
        half = int(flat[head.query].sum()) / 2
        each = math.ceil((half if half <= 4 * limit else limit) / flat.sum())
        chosen &= ~flat[head.query]
        rules = rules if chosen.any() else []
        chosen |= strongest_of_each(size * flat[head.query], head.query, each)
        few = f"{each} of the strongest edges of each query"
        if rules:
            few = f"where a query reads evenly, {each} of its strongest edges"
    strongest = _strongest_of_the_rest(head, chosen)
    if len(strongest):
        chosen[strongest] = True
        rules.append("the strongest edge of each query")
    rule = "; ".join(filter(None, [" or ".join(filter(None, rules)), few]))
    return _shown(head, chosen, threshold, rule)


def strongest_of_each(size: NDArray[Any], group: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Choose the strongest edges of each group, such as a query; of nearly equal ones any.

    Chance decides between sizes within 1 % of the group's largest, the same way each time: any
    rule, such as the first or every k-th, would draw a pattern that is not there.
    """
    _, group = np.unique(group, return_inverse=True)
    most = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(most, group, size.astype(np.float64))
    level = np.round(100 * size / np.where(most > 0, most, 1.0)[group])
    chance = np.random.default_rng(0).permutation(len(size))
    order = np.lexsort((chance, -level, group))
    starts = np.searchsorted(group[order], np.arange(len(most)))
    chosen = np.zeros(len(size), dtype=bool)
    chosen[order] = np.arange(len(size)) - starts[group[order]] < count
    return chosen & (size > 0)


def _threshold(size: NDArray[Any], limit: int, steps: tuple[float, ...]) -> float:
    counts = [int((size >= step).sum()) for step in _STEPS]
    place = next((i for i, t in enumerate(_STEPS) if t in steps and counts[i] <= limit), -1)
    place %= len(_STEPS)
    half = float(size.sum()) / 2
    while place and counts[place - 1] <= 4 * limit and size[size >= _STEPS[place]].sum() < half:
        place -= 1
    return _STEPS[place]


def _flat(head: AttentionGraph, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the queries with nearly uniform attention, if some of them would show less than half."""
    size = np.abs(head.attention).astype(np.float64)
    rows = head.graph.num_queries
    mass, squares, visible = (
        np.bincount(head.query, weights=weights, minlength=rows)
        for weights in (size, size**2, size * chosen)
    )
    top = _strongest(head)
    flat: NDArray[np.bool_] = (top * mass <= 1.5 * squares) & (mass >= 5 * top) & (mass > 0)
    return flat & bool((flat & (visible < mass / 2)).any())


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


def check_reached(threshold: float | None, heads: Sequence[AttentionGraph]) -> None:
    """Refuse a threshold above all that attention can be, where no query's attention exceeds 1."""
    if not isinstance(threshold, Real) or not threshold > _WHOLE:
        return
    every = [mass for head in heads for mass in (head.total_mass, head.sink) if mass is not None]
    if all(bool((np.abs(mass) <= _WHOLE).all()) for mass in every):
        raise SelectionError(
            f"threshold={threshold:g} shows nothing: no edge has more attention than 1; give one "
            "between 0 and 1, such as 0.1."
        )


def edges_between(
    head: AttentionGraph,
    rows: Sequence[int] | None,
    columns: Sequence[int] | None,
    threshold: float | None,
    asked_for: str,
) -> Shown:
    """Choose the edges of some queries, of some keys, or of both, and say how many of how many.

    Parameters
    ----------
    head : AttentionGraph
        The head.
    rows, columns : sequence of int, optional
        Rows of queries and columns of keys; by default all.
    threshold : float, optional
        The least attention; by default any.
    asked_for : str
        What these edges are, for the caption: "what query 3 reads".
    """
    every = edges_from(head, threshold or 0.0)
    asked = np.ones(head.graph.num_edges, dtype=bool)
    for side, places in ((head.query, rows), (head.key, columns)):
        asked &= True if places is None else np.isin(side, places)
    edges, sinks = every.edges[asked[every.edges]], every.sinks[:0]
    if columns is None:
        assert rows is not None
        sinks = every.sinks[np.isin(every.sinks, rows)]
        total, mass = int(head.total_edges[rows].sum()), float(head.total_mass[rows].sum())
        held = float(np.abs(head.attention[edges]).sum())
        caption = all_of(total)
        if len(edges) < total or not is_all(held, mass):
            caption = f"{len(edges):,} of {total:,} edges{share_of(held, mass, what_of([head]))}"
    else:  # Which edges to a key were dropped is not known.
        caption = f"{len(edges):,} edge{'s' * (len(edges) != 1)}"
    rules = filter(None, [asked_for, kept_by([head]), _at_least(head, threshold or 0.0)])
    said = f"{', '.join(rules)}: {caption}"
    return Shown(edges, sinks, said, rows=rows or (), columns=columns or ())


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
    if len(edges) < total or not is_all(mass, whole):
        caption = f"{len(edges):,} of {total:,} edges{share_of(mass, whole, what_of([head]))}"
        rules = [kept_by([head]), rule]
        caption = ": ".join(filter(None, [", ".join(filter(None, rules)), caption]))
    sinks = np.zeros(0, dtype=np.int64)
    if head.sink is not None:
        sinks = np.flatnonzero((np.abs(head.sink) >= threshold) & (head.sink != 0))
        caption += f"; {len(sinks):,} of {len(head.sink):,} from the sink"
    return Shown(edges, sinks, caption, rule=rule)


def said_together(heads: Sequence[AttentionGraph], parts: Sequence[Shown]) -> str:
    """Say how many edges of several heads are shown, and how much of their attention."""
    edges = sum(len(part.edges) for part in parts)
    total = sum(int(head.total_edges.sum()) for head in heads)
    mass = sum(
        float(np.abs(head.attention[part.edges]).sum())
        for head, part in zip(heads, parts, strict=True)
    )
    whole = sum(float(head.total_mass.sum()) for head in heads)
    if edges == total and is_all(mass, whole):
        return all_of(total)
    said = f"{edges:,} of {total:,} edges{share_of(mass, whole, what_of(heads))}"
    return ": ".join(filter(None, [kept_by(heads), said]))


def kept_by(heads: Iterable[AttentionGraph]) -> str:
    """Name the rules by which heads kept edges; "" if they kept all."""
    rules = dict.fromkeys(to_text(head.kept_by) for head in heads if head.kept_by != ALL)
    return shown_text(", ".join(rules), limit=200)


def all_of(total: int) -> str:
    """Write that all edges are shown."""
    return {0: "no edges", 1: "1 edge"}.get(total, f"all {total:,} edges")


def is_all(shown: float, whole: float) -> bool:
    """Return whether all of the attention is shown, as far as a caption says its share.

    Of a mean, each edge may be shown but not all that the heads give it.
    """
    return shown >= 0.9995 * whole


def share_of(shown: float, whole: float, what: str = "the attention") -> str:
    """Return what share of the attention, or of something else, is shown; "" if there is none."""
    if not whole:
        return ""
    return f", {in_percent(shown / whole)} of {what}"
