"""Pictures of attention as a matrix: rows are queries, columns keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap, Normalize
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.frame import points
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.labels import Labels, fit, text_style
from gattn.drawing.canvas.shown import Shown
from gattn.drawing.one_head.look import Look
from gattn.drawing.one_head.marks import mark_cells
from gattn.heads.head import AttentionGraph, Ints

FEWEST_CELLS, MOST_CELLS = 64, 1024


@dataclass(frozen=True)
class Cells:
    """A matrix with room for a sink; NaN means no edge.

    Parameters
    ----------
    values : array (rows, columns)
        Where there is a sink, the last column, after an empty one.
    block : int
        How many tokens a row or column stands for; a cell is the largest of its block.
    """

    values: NDArray[np.float64]
    block: int


def most_cells(ax: Axes) -> int:
    """Return how many rows and columns axes can show without skipping one: a pixel each."""
    shown = min(int(0.8 * ax.bbox.width), int(0.8 * ax.bbox.height), MOST_CELLS)
    return max(FEWEST_CELLS, shown)


def block_size(head: AttentionGraph, most: int) -> int:
    """Count the tokens that share a row if there are at most `most` rows and columns."""
    return max(1, -(-max(head.graph.num_queries, head.graph.num_keys) // most))


def cells(head: AttentionGraph, edges: Ints, values: NDArray[Any], most: int) -> Cells:
    """Lay edges out as a matrix of at most `most` rows and columns, and a sink's."""
    graph, block = head.graph, block_size(head, most)
    rows, columns = (max(1, -(-size // block)) for size in (graph.num_queries, graph.num_keys))
    columns += 2 * (head.sink is not None)
    matrix = np.full(rows * columns, np.nan)
    where = head.query[edges] // block * columns + head.key[edges] // block
    values = values[edges]
    np.fmax.at(matrix, where, values)
    if len(values) and values.min() < 0:
        least = np.full_like(matrix, np.nan)
        np.fmin.at(least, where, values)
        matrix = np.where(-least > matrix, least, matrix)
    return Cells(matrix.reshape(rows, columns), block)


def add_sink(found: Cells, head: AttentionGraph, rows: Ints) -> Cells:
    """Fill the sink's column for some rows of queries."""
    if head.sink is not None:
        order = rows[np.argsort(np.abs(head.sink[rows]), kind="stable")]
        found.values[order // found.block, -1] = head.sink[order]
    return found


def draw_cells(ax: Axes, found: Cells, cmap: Colormap, norm: Normalize) -> AxesImage:
    """Draw cells as one image, query 0 on top."""
    rows, columns = found.values.shape
    is_square = 1 / 3 < rows / columns < 3
    return ax.imshow(
        np.ma.masked_invalid(found.values),
        cmap=cmap,
        norm=norm,
        interpolation="nearest",
        aspect="equal" if is_square else "auto",
    )


def draw_matrix(ax: Axes, head: AttentionGraph, shown: Shown, look: Look) -> None:
    """Draw queries as rows and keys as columns, a sink as one more column apart."""
    values = head.edge_values[look.values]
    is_attention = look.values == "attention"
    found = cells(head, shown.edges, values, most_cells(ax))
    if is_attention:
        found = add_sink(found, head, shown.sinks)
    norm = look.pen.norm if is_attention else norm_of(values[shown.edges], look.values)
    image = draw_cells(ax, found, look.pen.cmap, norm)
    name_sides(ax)
    if look.legend:
        ticks = look.pen.scale.ticks if is_attention else None
        add_colour_bar(image, look.values, ax, ticks=ticks)
    if look.labels:
        label_cells(ax, head, found)
    mark_cells(ax, head, found.block)


def norm_of(values: NDArray[Any], name: str) -> Normalize:
    """Scale scores from the least to the most, lengths from 0."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Normalize(0, 1)
    return Normalize(finite.min() if name == "score" else 0, finite.max())


def name_sides(ax: Axes) -> None:
    """Say which side of a matrix is which, and nothing else."""
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel("key", usetex=False)
    ax.set_ylabel("query", usetex=False)


def label_cells(ax: Axes, head: AttentionGraph, found: Cells) -> None:
    """Write tokens beside the rows and below the columns."""
    keys, queries = layouts.ends(head)
    rows, columns = found.values.shape
    width, height = points(ax)
    across = fit(
        dict(zip(keys, head.labels(), strict=False)),
        width / columns / found.block,
        rotations=(0, 45, 90),
    )
    down = fit(
        dict(zip(queries, head.query_labels(), strict=True)),
        height / rows / found.block,
        rotations=(90,),
    )
    _set_ticks(ax.xaxis, across, across.rotation, found.block, ["<sink>"] * (head.sink is not None))
    _set_ticks(ax.yaxis, down, 0, found.block)


def _set_ticks(
    axis: Axis, labels: Labels, rotation: int, block: int, extra: Sequence[str] = ()
) -> None:
    named = [(index / block, text) for index, text in enumerate(labels.texts) if text]
    after = -(-len(labels.texts) // block) + 1
    named += [(after, text) for text in extra]
    if not named:
        return
    places, texts = zip(*named, strict=True)
    slanted = {"ha": "right", "rotation_mode": "anchor"} if rotation == 45 else {}
    style = text_style(texts) | slanted
    axis.set_ticks(places, texts, size=labels.size, rotation=rotation, gid="gattn-label", **style)
    axis.set_tick_params(length=0, pad=3)
