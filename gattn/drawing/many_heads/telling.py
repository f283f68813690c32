"""The head that tells most of a text, as a graph beside the matrices of all heads."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure

from gattn.analysis.reading.heads import Place
from gattn.drawing.canvas.labels import larger
from gattn.drawing.one_head.draw_head import draw_head
from gattn.drawing.styles.figures import new_figure, within_page
from gattn.heads.head import AttentionGraph

_MOST_TOKENS = 24
"""The longest text with a graph beside it."""
_WIDE, _HIGH, _MOST = 4.2, 2.8, 14.0
"""Inches of the graph, its least height, and the width of the whole at most."""


def telling_head(graphs: Mapping[Place, AttentionGraph]) -> Place | None:
    """Choose the head whose queries each read most from one token farther away than the next.

    There is none of long texts, of attention without tokens' texts, and if no head reads others.
    """
    found = {place: _strongest_reads(head) for place, head in graphs.items() if _is_text(head)}
    best = max(found, key=found.__getitem__, default=None)
    return best if best is not None and found[best] > 0 else None


def _is_text(head: AttentionGraph) -> bool:
    size = head.graph.num_tokens
    has_text = bool(head.tokens) and not head.graph.is_bipartite
    return has_text and 2 < size <= _MOST_TOKENS and bool((head.attention >= 0).all())


def _strongest_reads(head: AttentionGraph) -> float:
    """Average what queries give to one token, not the first, that is no neighbour of theirs."""
    query = head.query + head.graph.query_offset
    is_other = (np.abs(head.key - query) > 1) & (head.key > 0)
    most = np.zeros(head.graph.num_queries)
    np.maximum.at(most, head.query[is_other], head.attention[is_other].astype(np.float64))
    return float(most.mean()) if len(most) else 0.0


def two_sides(size: tuple[float, float]) -> Figure | SubFigure:
    """Make a figure with room for a graph; give its left side, of a size in inches.

    If there is no room for a graph, it is a figure of this size.
    """
    (wide, tall), own = size, _WIDE * larger()
    if wide + own > min(_MOST * larger(), within_page(inf, inf)[0]):
        return new_figure(size)
    figure = new_figure((wide + own, max(tall, _HIGH * larger())))
    figure.subfigures(1, 2, width_ratios=[wide, own])
    return figure.subfigs[0]


def draw_beside(figure: Figure, head: AttentionGraph, **options: Any) -> None:
    """Draw a head as a graph on the right side of a figure, if it has one."""
    if figure.subfigs:
        ax = figure.subfigs[1].add_axes((0.05, 0.05, 0.9, 0.9))
        draw_head(head, "columns", ax=ax, **options)
