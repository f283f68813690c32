"""What a notebook shows of an attention graph or a trace."""

from __future__ import annotations

import io

import matplotlib as mpl
from matplotlib.figure import Figure

from gattn.drawing.many_heads.draw_heads import draw_heads
from gattn.drawing.one_head.draw_head import draw_head, fitting_axes, fitting_size
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace

_MOST_NODES = 60


def notebook_svg(graphs: AttentionGraph | AttentionTrace) -> str:
    """Draw a head or a trace as SVG, without pyplot and the same each time.

    A head of up to 60 tokens is drawn as arcs, cross-attention as columns, a longer text as a
    matrix; a trace as the matrices of all its heads. An empty trace is an empty picture.
    """
    buffer = io.StringIO()
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "gattn",
            "figure.autolayout": False,
            "figure.constrained_layout.use": False,
        }
    ):
        figure = _fitting_figure(graphs)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _fitting_figure(graphs: AttentionGraph | AttentionTrace) -> Figure:
    if isinstance(graphs, AttentionTrace):
        return draw_heads(graphs) if any(True for _ in graphs.heads()) else Figure((1.0, 1.0))
    layout = "columns" if graphs.graph.is_bipartite else "arcs"
    if max(graphs.graph.num_tokens, graphs.graph.num_queries) > _MOST_NODES:
        layout = "matrix"
    figure = Figure(fitting_size(graphs, layout))
    draw_head(graphs, layout, ax=fitting_axes(figure, layout))
    return figure
