"""Pictures of words: their best edges, trees of them, and how heads match dependency trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.ticker import PercentFormatter

from gattn.drawing.canvas.colours import Scale
from gattn.drawing.canvas.frame import (
    describe,
    new_axes,
    shown_text,
)
from gattn.drawing.canvas.keys import Entry, add_key
from gattn.drawing.canvas.labels import font_size, text_style
from gattn.drawing.canvas.sides import label_rows, label_tokens
from gattn.drawing.matrices.cells import Pool
from gattn.drawing.matrices.heatmaps import draw_heatmap, write_cells
from gattn.drawing.one_head.draw_head import Layout, draw_with
from gattn.drawing.one_head.look import Options, Wording
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph

if TYPE_CHECKING:
    from gattn.analysis.syntax.dependency_alignment import Alignment
    from gattn.analysis.syntax.trees import BestEdges, Tree

_MOST_ROWS = 25
_READ = {
    "dependent_to_head": "attention\nto its head",
    "head_to_dependent": "attention\nof its head",
}
_COLUMNS = {"dependent_to_head": "reads its head", "head_to_dependent": "its head reads it"}


def draw_alignment(table: Alignment, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw the best head for each of the most frequent relations, and the best fixed offset.

    Parameters
    ----------
    table : Alignment
        What `gattn.analysis.dependency_alignment` returns, or its `best`.

    Raises
    ------
    SelectionError
        If there are no relations, or columns are missing.
    """
    best = table if "accuracy" in table.columns else table.best() if len(table) else table
    if not len(best):
        raise SelectionError("There is nothing to draw: the table has no relations.")
    best = best.iloc[:_MOST_ROWS]
    ax = ax if ax is not None else new_axes(6.4, 1.6 + 0.3 * len(best))
    rows = range(len(best))
    style: dict[str, Any] = {"color": "#56b4e9", "height": 0.7} | options
    bars = ax.barh(rows, best["accuracy"], **style)
    offsets = best["offset_accuracy"]
    (offset,) = ax.plot(offsets, rows, "|", color="#d55e00", ms=14, mew=2.5)
    small = 0.8 * font_size()
    for n, (_, row) in enumerate(best.iterrows()):
        found = f"{row['layer']}.{row['head']}: {_COLUMNS[row['direction']]}"
        away = f"{row['offset']:+d}".replace("-", "−")
        text = f"{found if row['accuracy'] else 'no head'} · offset {away}"
        ax.text(1.02, n, text, va="center", size=small, transform=ax.get_yaxis_transform())
    names = [shown_text(str(name), limit=20) for name in best.index]
    labels = [f"{name} ({number})" for name, number in zip(names, best["number"], strict=True)]
    ax.set_yticks(rows, labels, **text_style(labels))
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel("share of the dependencies found")
    ax.spines[["top", "right"]].set_visible(False)
    entries: list[Entry] = [(bars, "best head"), (offset, "best fixed offset")]
    add_key(ax, entries, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.3))
    describe(ax, table.attrs)
    return ax


def draw_best_edges(
    table: BestEdges, side: str = "key", *, ax: Axes | None = None, **options: Any
) -> Axes:
    """Draw which word each word reads most, and how much: one row per head.

    Parameters
    ----------
    table : BestEdges
        What `gattn.analysis.best_edges` returns, or some of its rows.
    side : "key" or "query"
        The word that each word reads most, or the word that reads it most.

    Raises
    ------
    SelectionError
        If there are no rows, or `side` is neither.
    """
    if side not in ("key", "query"):
        raise SelectionError(f"side is 'key' or 'query', not {side!r}.")
    if not len(table):
        raise SelectionError("There is nothing to draw: the table has no rows.")
    values = table[f"{side}_attention"].astype(float).unstack("word")
    others = table[side].astype(float).unstack("word")
    tokens = table["token"].groupby("word").first()
    if ax is None:
        size = 2.6 + 0.34 * len(tokens), 1.8 + 0.24 * len(values)
        ax = new_axes(min(12.0, max(5.0, size[0])), min(12.0, size[1]))
    scale = Scale(max(1.0, values.max().max()), is_signed=False, widest=1)
    draw_heatmap(ax, values.to_numpy(), "attention", norm=scale.norm, **options)
    painted = ax.images[-1].to_rgba(np.ma.masked_invalid(values.to_numpy()))
    said = "reads most" if side == "key" else "is read by most"
    write_cells(ax, others.to_numpy(), painted, said=f"in the cells: which word it {said}")
    label_tokens(ax, list(tokens.index), [str(token) for token in tokens], "x")
    label_rows(ax, [f"{layer}.{head}" for layer, head in values.index])
    ax.set(xlabel="word", ylabel="head")
    describe(ax, table.attrs)
    return ax


def draw_tree(
    tree: Tree,
    layout: Layout = "arcs",
    *,
    query: Any = None,
    key: Any = None,
    hide: Any = None,
    self_loops: bool = True,
    threshold: float | None = None,
    values: str = "attention",
    vmax: float | None = None,
    pool: Pool = "mean",
    linewidth: float | None = None,
    title: str | None = None,
    caption: str | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw a tree of words as arcs from head to dependent.

    Parameters
    ----------
    tree : Tree
        What `gattn.analysis.arborescence` returns.
    layout, query, key, hide, self_loops, threshold, values, vmax, pool, linewidth
        As in `AttentionGraph.draw`.
    title, caption, figsize, ax, cmap, labels, legend
        As in `AttentionGraph.draw`.
    """
    options = Options(
        query, key, hide, self_loops, threshold, values, vmax, pool, linewidth, title, caption,
        figsize, ax, cmap, labels, legend,
    )  # fmt: skip
    wording = Wording(
        "head → dependent",
        "dependent ← head",
        _READ.get(tree.graph.get("direction", ""), "attention"),
        title="maximum spanning arborescence",
        notes=[tree.computed_from, *tree.notes],
    )
    return draw_with(AttentionGraph.from_networkx(tree), layout, options, wording)
