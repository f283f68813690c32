"""The one door upward: modules below pictures, pages, files and analyses ask for them here.

They are loaded by name when first needed, so that no module imports one above it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from gattn.checks import check_options

if TYPE_CHECKING:
    from os import PathLike

    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gattn.analysis.heads.head_table import HeadTable
    from gattn.analysis.propagation.unrolled import Unrolled
    from gattn.heads.stack import Stack
    from gattn.heads.trace import AttentionTrace


GRAPHS = {
    "Circuit": "gattn.analysis.circuits.found",
    "PathCircuit": "gattn.analysis.circuits.paths.path_circuits",
    "Routes": "gattn.analysis.vectors.route_graphs",
    "Unrolled": "gattn.analysis.propagation.unrolled",
}
"""The graphs of analyses that files restore, and the modules that define them."""


def draw(shown: object, *arguments: Any, **options: Any) -> Axes:
    """Draw a result on Axes; see `gattn.drawing.pictures`."""
    axes: Axes = import_module("gattn.drawing.pictures").draw(shown, *arguments, **options)
    return axes


def draw_heads(shown: AttentionTrace | Stack, other: object = None, **options: Any) -> Figure:
    """Draw all heads of one run, or of two side by side; see `gattn.drawing.draw_heads`."""
    drawing = import_module("gattn.drawing")
    picture = drawing.draw_heads if other is None else drawing.draw_compare
    check_options(picture, options, f"{type(shown).__name__}.draw()")
    figure: Figure = picture(*(one for one in (shown, other) if one is not None), **options)
    return figure


def draw_text(shown: object, query: int | str | None, **options: Any) -> Axes:
    """Draw the text, shaded by attention; see `gattn.drawing.draw_text`."""
    draw_text = import_module("gattn.drawing").draw_text
    check_options(draw_text, options, "draw_text()")
    axes: Axes = draw_text(shown, query, **options)
    return axes


def draw_located(name: str, *arguments: Any, **options: Any) -> Axes:
    """Draw where tokens lie: `draw_image`, `draw_time` or `draw_graph` of `gattn.drawing`."""
    axes: Axes = getattr(import_module("gattn.drawing"), name)(*arguments, **options)
    return axes


def draw_images(trace: AttentionTrace, *arguments: Any, **options: Any) -> Figure:
    """Draw several heads over a picture; see `gattn.drawing.draw_images`."""
    figure: Figure = import_module("gattn.drawing").draw_images(trace, *arguments, **options)
    return figure


def to_html(shown: object, path: str | PathLike[str] | None = None, **options: Any) -> str | None:
    """Write an interactive page, one HTML file; see `gattn.drawing.page.to_html`."""
    made = import_module("gattn.drawing.page").to_html
    check_options(made, options, "to_html()")
    page: str | None = made(shown, path, **options)
    return page


class Shown:
    """What can be saved to a file, and shown as a page in a browser or notebook."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file in the format of its suffix; see `gattn.files.save`."""
        import_module("gattn.files").save(self, path)

    @overload
    def to_html(self, path: None = None, **options: Any) -> str: ...
    @overload
    def to_html(self, path: str | PathLike[str], **options: Any) -> None: ...
    def to_html(self, path: str | PathLike[str] | None = None, **options: Any) -> str | None:
        """Write an interactive page, one HTML file; see `gattn.drawing.page.to_html`."""
        return to_html(self, path, **options)

    def _repr_html_(self) -> str | None:
        page: str | None = import_module("gattn.drawing.page").notebook_html(self)
        return page


def head_table(trace: AttentionTrace) -> HeadTable:
    """Describe each head in a row; see `gattn.analysis.head_table`."""
    table: HeadTable = import_module("gattn.analysis").head_table(trace)
    return table


def unroll(stack: Stack, **options: Any) -> Unrolled:
    """Unroll a stack into one graph; see `gattn.heads.stack.Stack.unroll`."""
    module = import_module("gattn.analysis.propagation.unrolling")
    unrolled: Unrolled = module.unroll(stack, **options)
    return unrolled


def graph_of(kind: str, graph: nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """Restore one of `GRAPHS` from a directed graph that a file held."""
    for before, now in (("source", "key"), ("target", "query")):  # as older files name the ends
        for name in ("depth", "position"):
            if kind == "Unrolled" and f"{before}_{name}" in graph.graph:
                graph.graph[f"{now}_{name}"] = graph.graph.pop(f"{before}_{name}")
    made: nx.DiGraph[Any] = getattr(import_module(GRAPHS[kind]), kind)(graph)
    return made
