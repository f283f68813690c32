"""Pictures of token graphs: who may attend to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap

from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import write_texts
from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.shown import Shown, even_stride, every
from gattn.drawing.one_head.draw_head import Layout, drawing, fitting_axes, fitting_size
from gattn.drawing.one_head.look import Look
from gattn.drawing.one_head.matrix import (
    MOST_CELLS,
    Cells,
    draw_cells,
    label_cells,
    most_cells,
    name_sides,
)
from gattn.engines.tiling import tile_pairs
from gattn.errors import SelectionError, ShapeError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

_MOST_PAIRS, _MOST_COUNTS = 1 << 31, 1 << 28
_MOST_TOKENS, _MOST_EDGES = 1 << 17, 1 << 22
_AT_ONCE = 1 << 20
_FEW = 400
_TILE = 64


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
        "matrix": rows are queries, columns keys, with a cell per edge. If there are more tokens
        than pixels, a cell is a block of pairs, shaded by the share of them that are edges. Or
        "arcs", "columns", "circle", and positions, as for `draw_head`: all of up to some hundred
        edges, beyond that evenly one in k.
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
        figure = plt.figure(figsize=fitting_size(head, layout), layout="none")
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
    if tokens <= _MOST_COUNTS:
        block = max(1, -(-tokens // MOST_CELLS))
        if _is_counted(graph, block):
            is_quick = graph.num_queries * _columns(graph, block) <= _MOST_COUNTS
        else:
            is_quick = tile_pairs(graph, _TILE) <= _MOST_PAIRS
        if is_quick:
            return
    raise SelectionError(
        f"This graph has {graph.num_queries:,} queries and {graph.num_keys:,} keys, too many pairs "
        "to look at; draw one of fewer tokens and the same rule."
    )


def _draw_pattern(ax: Axes, head: AttentionGraph, graph: TokenGraph, look: Look) -> str:
    """Draw the pattern; give its caption."""
    block = max(1, -(-max(graph.num_queries, graph.num_keys) // most_cells(ax)))
    edges, pairs = _counts(graph, block)
    shares = np.divide(edges, pairs, out=np.full_like(edges, np.nan), where=edges > 0)
    found = Cells(shares, block)
    image = draw_cells(ax, found, look.pen.cmap, look.pen.norm)
    name_sides(ax)
    if block > 1:
        name = "share of the pairs that are edges"
        add_colour_bar(image, name, ax, ticks=look.pen.scale.ticks)
    if look.labels:
        label_cells(ax, head, found)
    blocks = f"; a cell is {block} × {block} pairs" if block > 1 else ""
    return _edges_said(int(edges.sum()), graph) + blocks


def _counts(graph: TokenGraph, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the edges and the pairs of each block of pairs."""
    rows, columns = (max(1, -(-size // block)) for size in (graph.num_queries, graph.num_keys))
    edges = torch.zeros(rows, columns, dtype=torch.float64)
    counted = _counted if _is_counted(graph, block) else _walked
    for part, across in counted(graph, block):
        edges.index_add_(0, torch.arange(part.start, part.stop) // block, across)
    high, wide = (
        np.minimum(block, size - block * np.arange(count))
        for size, count in ((graph.num_queries, rows), (graph.num_keys, columns))
    )
    return edges.numpy(), np.outer(high, wide)


def _walked(graph: TokenGraph, block: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Look at all pairs, some rows at a time: these, and their edges in each block of columns."""
    for part, keys, allowed in graph.row_blocks():
        across = torch.zeros(len(allowed), _columns(graph, block), dtype=torch.float64)
        yield part, across.index_add_(1, list_keys(keys, None) // block, allowed.double())


def _counted(graph: TokenGraph, block: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Ask the rule for the same numbers."""
    low = torch.arange(0, graph.num_keys, block)
    high = (low + block).clamp_max(graph.num_keys)
    for rows in torch.arange(graph.num_queries).split(max(_AT_ONCE // len(low), 1)):
        query = rows + graph.query_offset
        asked = torch.broadcast_tensors(query[:, None], low, high)
        count = graph.rule.count(*(one.contiguous() for one in asked))
        assert count is not None
        yield slice(int(rows[0]), int(rows[-1]) + 1), count.double()


def _is_counted(graph: TokenGraph, block: int) -> bool:
    """Return whether the rule knows the numbers, and counting is quicker than looking."""
    if block == 1 or graph.num_queries * _columns(graph, block) > tile_pairs(graph, _TILE):
        return False
    few = torch.arange(graph.query_offset, graph.query_offset + 1)
    return graph.rule.count(few, torch.zeros(1, dtype=torch.long), few + 1) is not None


def _columns(graph: TokenGraph, block: int) -> int:
    return max(1, -(-graph.num_keys // block))


def _some_edges(graph: TokenGraph) -> tuple[torch.Tensor, str]:
    """Choose as many edges as lines can bear; say which."""
    stride = even_stride(graph.num_edges, max(_FEW, 2 * graph.num_tokens), graph.num_keys)
    chosen = graph.edge_index[:, ::stride]
    said = _edges_said(graph.num_edges, graph)
    if stride > 1:
        said += f"; {every(stride)} is drawn"
    return chosen, said


def _edges_said(edges: int, graph: TokenGraph) -> str:
    pairs = graph.num_queries * graph.num_keys
    return f"{'all' if edges == pairs else f'{edges:,} of'} {pairs:,} pairs are edges"


def _head(graph: TokenGraph, edges: torch.Tensor | None, tokens: Sequence[str]) -> AttentionGraph:
    """Build a head of some edges, of one weight."""
    key, row = torch.zeros(2, 0, dtype=torch.long) if edges is None else edges
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
