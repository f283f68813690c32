"""The one door upward: what lies below pictures, pages, files and analyses asks for them here.

Modules are loaded by name when first asked for, so that none imports what lies above it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gattn.analysis.heads.head_table import HeadTable
    from gattn.analysis.propagation.unrolled import Unrolled
    from gattn.graph.token_graph import TokenGraph
    from gattn.heads.head import AttentionGraph
    from gattn.heads.trace import AttentionTrace, Stack


GRAPHS = {
    "Routes": "gattn.analysis.vectors.route_graphs",
    "Unrolled": "gattn.analysis.propagation.unrolled",
}
"""The graphs of analyses that a file gives back as what they were, and where they are defined."""


def draw(shown: object, *arguments: Any, **options: Any) -> Axes:
    """Draw anything that one picture shows; see `gattn.drawing.pictures`."""
    axes: Axes = import_module("gattn.drawing.pictures").draw(shown, *arguments, **options)
    return axes


def draw_heads(shown: AttentionTrace | Stack, other: object = None, **options: Any) -> Figure:
    """Draw all heads, or those of two runs side by side; see `gattn.drawing.draw_heads`."""
    drawing = import_module("gattn.drawing")
    figure: Figure = (
        drawing.draw_heads(shown, **options)
        if other is None
        else drawing.draw_compare(shown, other, **options)
    )
    return figure


def draw_text(shown: object, query: int | str | None, **options: Any) -> Axes:
    """Write the text, shaded by attention; see `gattn.drawing.draw_text`."""
    axes: Axes = import_module("gattn.drawing").draw_text(shown, query, **options)
    return axes


def to_html(
    shown: AttentionGraph | AttentionTrace, path: str | PathLike[str] | None, **options: Any
) -> str | None:
    """Write a page; see `gattn.drawing.page.to_html`."""
    page: str | None = import_module("gattn.drawing.page").to_html(shown, path, **options)
    return page


def notebook_html(shown: AttentionGraph | AttentionTrace) -> str | None:
    """Write what a notebook shows; see `gattn.drawing.page.notebook_html`."""
    page: str | None = import_module("gattn.drawing.page").notebook_html(shown)
    return page


def save(saved: TokenGraph | AttentionGraph | AttentionTrace, path: str | PathLike[str]) -> None:
    """Write a file of the kind its suffix says; see `gattn.files.save`."""
    import_module("gattn.files").save(saved, path)


def head_table(trace: AttentionTrace) -> HeadTable:
    """Describe every head in one row; see `gattn.analysis.head_table`."""
    table: HeadTable = import_module("gattn.analysis").head_table(trace)
    return table


def unroll(stack: Stack, **options: Any) -> Unrolled:
    """Unroll a stack into one graph; see `gattn.heads.trace.Stack.unroll`."""
    module = import_module("gattn.analysis.propagation.unrolling")
    unrolled: Unrolled = module.unroll(stack, **options)
    return unrolled


def graph_of(kind: str, graph: nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """Make one of `GRAPHS` again of a directed graph that a file held."""
    for before, now in (("source", "key"), ("target", "query")):  # as files named the ends once
        for name in ("depth", "position"):
            if kind == "Unrolled" and f"{before}_{name}" in graph.graph:
                graph.graph[f"{now}_{name}"] = graph.graph.pop(f"{before}_{name}")
    made: nx.DiGraph[Any] = getattr(import_module(GRAPHS[kind]), kind)(graph)
    return made
