"""Pictures of attention as a matrix: rows are queries, columns keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from gattn.drawing.frame import Look, add_colour_bar
from gattn.drawing.shown import Shown
from gattn.head import AttentionGraph, Ints

_MOST_CELLS = 1024


@dataclass(frozen=True)
class Cells:
    """A matrix with room for a sink, NaN where there is no edge.

    Parameters
    ----------
    values : array (rows, columns)
        Where there is a sink, the last column, after an empty one.
    block : int
        How many tokens a row or column stands for; a cell is the largest of its block.
    """

    values: NDArray[np.float64]
    block: int


def cells(head: AttentionGraph, edges: Ints, values: NDArray[Any], most: int) -> Cells:
    """Lay edges out as a matrix of at most `most` rows and columns."""
    graph = head.graph
    block = max(1, -(-max(graph.num_queries, graph.num_keys) // most))
    rows, columns = -(-graph.num_queries // block), -(-graph.num_keys // block)
    matrix = np.full((rows, columns + 2 * (head.sink is not None)), np.nan)
    order = edges[np.argsort(np.abs(values[edges]), kind="stable")]
    matrix[head.query[order] // block, head.key[order] // block] = values[order]
    if head.sink is not None:
        rank = np.argsort(np.abs(head.sink), kind="stable")
        matrix[rank // block, -1] = head.sink[rank]
    return Cells(matrix, block)


def draw_cells(ax: Axes, found: Cells, **colours: Any) -> AxesImage:
    """Draw cells as one image, query 0 on top."""
    return ax.imshow(
        np.ma.masked_invalid(found.values),
        interpolation="nearest" if max(found.values.shape, default=0) <= 256 else "antialiased",
        aspect="equal" if abs(np.log2(np.divide(*found.values.shape))) < 2 else "auto",
        **colours,
    )


def draw_matrix(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw queries as rows and keys as columns, a sink as one more column apart."""
    values = head.attention if head.score is None or look.values != "score" else head.score
    found = cells(head, shown.edges, values, _MOST_CELLS)
    image = draw_cells(ax, found, cmap=look.cmap, norm=look.scale.norm)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set(xlabel="key", ylabel="query", xticks=[], yticks=[])
    if look.legend:
        add_colour_bar(image, look.scale.ticks, ax=ax, shrink=0.6, aspect=18, pad=0.02)
