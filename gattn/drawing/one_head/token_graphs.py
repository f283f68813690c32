"""Pictures of token graphs: who may attend to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap

from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.fitting import points
from gattn.drawing.canvas.frame import write_texts
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.chosen.shown import Shown, strongest_of_each
from gattn.drawing.matrices.cells import pooling_said
from gattn.drawing.matrices.heatmaps import aspect_of, fill_axes
from gattn.drawing.matrices.patterns import PatternCells
from gattn.drawing.one_head.draw_head import Layout, drawing, fitting_axes, fitting_size
from gattn.drawing.one_head.look import Look
from gattn.drawing.one_head.matrix import label_cells, name_sides
from gattn.drawing.styles.figures import new_figure
from gattn.errors import SelectionError, ShapeError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

_MOST_TOKENS, _MOST_EDGES = 1 << 17, 1 << 22
_FEW = 400


@checks_given
def draw_token_graph(
    graph: TokenGraph,
    layout: Layout = "matrix",
    *,
    tokens: Sequence[str] = (),
    ax: Axes | None = None,
    labels: bool = True,
) -> Axes:
    """Draw who may attend to whom. `ax` and `labels`: see `gattn.drawing`.

    Parameters
    ----------
    graph : TokenGraph
        The token graph.
    layout : str, mapping or callable
        "matrix": rows are queries, columns keys, with a cell per edge. Where pixels are fewer than
        pairs, each is shaded by the share of its pairs that are edges. Or "arcs", "columns",
        "circle", and positions, as for `draw_head`: all of up to some hundred
        edges, beyond that a few of each query, chosen by chance.
    tokens : sequence of str
        The tokens' texts (those of keys in a bipartite graph); positions by default.

    Raises
    ------
    SelectionError
        If there is no such layout, or too many pairs to look at.
    ShapeError
        If there are not as many `tokens` as in the graph.
    """
    if tokens and len(tokens) != graph.num_tokens:
        raise ShapeError(f"tokens must be {graph.num_tokens} texts, not {len(tokens)}.")
    graph = graph.to("cpu")
    _check_size(graph, layout)
    chosen, caption = (None, "") if layout == "matrix" else _some_edges(graph)
    head = _head(graph, chosen, tokens)
    draw = drawing(head, layout)
    if ax is None:
        figure = new_figure(fitting_size(head, layout))
        ax = fitting_axes(figure, layout, legend=False)
    look = Look(Pen(_scale(graph), _pattern_colours()), labels, legend=False)
    if layout == "matrix":
        caption = _draw_pattern(ax, head, graph, look)
    else:
        everything = np.arange(head.graph.num_edges)
        draw(ax, head, Shown(everything, everything[:0], caption), look)
    write_texts(ax, "", caption)
    return ax


def _check_size(graph: TokenGraph, layout: Layout) -> None:
    """Refuse what would take more than about ten seconds."""
    tokens = max(graph.num_queries, graph.num_keys)
    if layout != "matrix":
        for count, most, name in ((tokens, _MOST_TOKENS, "tokens"), (None, _MOST_EDGES, "edges")):
            if (number := graph.num_edges if count is None else count) > most:
                raise SelectionError(
                    f"{number:,} {name} are too many for lines; draw them with layout='matrix'."
                )
        return
    if PatternCells(graph).is_quick:
        return
    raise SelectionError(
        f"This graph has {graph.num_queries:,} queries and {graph.num_keys:,} keys, too many pairs "
        "to look at; draw one of fewer tokens and the same rule."
    )


def _draw_pattern(ax: Axes, head: AttentionGraph, graph: TokenGraph, look: Look) -> str:
    """Draw the pattern; give its caption."""
    shape, pen = (max(graph.num_queries, 1), max(graph.num_keys, 1)), look.pen
    style: Any = {"cmap": pen.cmap, "norm": pen.norm, "aspect": aspect_of(shape)}
    image = fill_axes(ax, PatternCells(graph), shape=shape, **style)
    name_sides(ax)
    across, down = (size / POINTS_PER_INCH for size in points(ax))
    if pooling_said(shape, (down, across), "mean"):
        name = "share of the pairs that are edges"
        add_colour_bar(image, name, ax, ticks=pen.scale.ticks)
    if look.labels:
        label_cells(ax, head, shape)
    return _edges_said(graph.num_edges, graph)


def _some_edges(graph: TokenGraph) -> tuple[torch.Tensor, str]:
    """Choose as many edges as lines can bear; say which."""
    said, most = _edges_said(graph.num_edges, graph), max(_FEW, 2 * graph.num_tokens)
    if graph.num_edges <= most:
        return graph.edge_index, said
    each, row = max(1, most // graph.num_queries), graph.edge_index[1].numpy()
    chosen = strongest_of_each(np.ones(len(row)), row, each)
    drawn = f"{each} edges of each query are drawn" if each > 1 else "1 edge of each query is drawn"
    return graph.edge_index[:, torch.from_numpy(chosen)], f"{said}; {drawn}, chosen by chance"


def _edges_said(edges: int, graph: TokenGraph) -> str:
    pairs = graph.num_queries * graph.num_keys
    return f"{'all' if edges == pairs else f'{edges:,} of'} {pairs:,} pairs are edges"


def _head(graph: TokenGraph, edges: torch.Tensor | None, tokens: Sequence[str]) -> AttentionGraph:
    """Build a head of some edges, of one weight."""
    key, row = torch.zeros(2, 0, dtype=torch.long, device="cpu") if edges is None else edges
    rule = Edges.from_pairs(row, key, graph.num_queries, graph.query_offset)
    listed = TokenGraph(
        rule, graph.num_queries, graph.num_keys, graph.query_offset, graph.is_bipartite
    )
    degree = listed.in_degree.numpy()
    return AttentionGraph(
        listed, np.ones(listed.num_edges), degree.astype(float), degree, tokens=tuple(tokens)
    )


def _scale(graph: TokenGraph) -> Scale:
    return Scale(1.0, False, widest=3.0 / max(graph.num_tokens, 5) ** 0.35)


def _pattern_colours() -> Colormap:
    """Take colours whose strong end is no darker than a filled area should be."""
    colours = colour_map(None, is_signed=False, is_area=True)
    return LinearSegmentedColormap.from_list("edges", colours(np.linspace(0.1, 0.65, 256)))
