"""Pictures of routes to a prediction."""

from __future__ import annotations

import itertools
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.analysis.vectors.route_graphs import Node, Routes, heads_of_edge
from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import describe
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.layers.layered import (
    MIDDLE,
    LayeredEdges,
    Line,
    draw_nodes,
    heads_named,
    key_of_kinds,
    lay,
)
from gattn.drawing.layers.numbered import layered_axes, name_end, set_up
from gattn.errors import SelectionError
from gattn.names.text import placed, quoted, visible
from gattn.names.tokens import grid_of

_MOST_TOKENS = 64
_NAMED = 12


def draw_routes(
    routes: Routes,
    *,
    ax: Axes | None = None,
    by: str = "strength",
    paths: int = 0,
    cmap: str | Colormap | None = None,
    labels: bool = True,
) -> Axes:
    """Draw routes: tokens from left to right, layers upwards, the prediction on top.

    Residual streams go straight up, in grey. Attention is a curve from token to token; a token's
    attention to itself bends to the right of its stream, its MLP, in orange, to the left. The
    strongest curves are named by their heads. In long texts only tokens on a route are shown.

    Parameters
    ----------
    routes : Routes
        What to draw.
    by : "strength" or "importance"
        What widths and colours show: the strength of all paths over an edge, or its share in the
        stream that it leads to.
    paths : int
        How many of the strongest paths from the embeddings to the prediction to highlight.

    Raises
    ------
    SelectionError
        If `by` is neither, or the graph does not have the form of routes.
    """
    routes.check()
    if by not in ("strength", "importance"):
        raise SelectionError(f"by is 'strength' or 'importance', not {by!r}.")
    layers = routes.end[0]
    tokens = _tokens_shown(routes)
    place = {position: x for x, position in enumerate(tokens)}
    ax = ax if ax is not None else layered_axes(len(tokens), layers)
    scale = Scale(1.0, False, widest=max(3.0, 7.5 / max(len(tokens), 5) ** 0.2))
    pen = Pen(scale, colour_map(cmap, is_signed=False), f"{by}\nof attention")
    lines = LayeredEdges(ax, pen)
    bright = _edges_of_paths(routes, paths)
    for source, target, facts in routes.edges(data=True):
        if facts["kind"] == "output":  # Part of the edge into attention or MLP.
            continue
        size = float(facts["importance"])
        if by == "strength":
            size = routes.nodes[target]["strength"] * facts["weight"]
        line = _line(routes, source, target, facts, place, size)
        lines.add(line)
        if (source, target) in bright:
            lines.highlight(line)
    lines.draw()
    where = [
        (place[position], _height((layer, position, kind)), kind == "residual")
        for layer, position, kind in routes
        if kind in ("residual", "middle")
    ]
    draw_nodes(ax, where)
    set_up(ax, tokens, range(layers), labels=labels)
    if labels:
        lines.name_strongest(_NAMED)
        _name_prediction(ax, routes, place)
    kinds = "stream", "mlp", *["path"] * bool(bright)
    add_line_key(ax, pen, *key_of_kinds(pen, *kinds))
    describe(ax, routes.graph, f"routes to {_end_said(routes)}")
    return ax


def _end_said(routes: Routes) -> str:
    """Name what the routes lead to: the prediction, or the token that the answer is read from."""
    if predicted := str(routes.graph.get("predicted", "")):
        return quoted(predicted, has_glyph=fonts.has_glyph, is_entry=True)
    position = routes.end[1]
    if not routes.tokens:
        return f"position {position}"
    token = routes.tokens[position]
    if grid_of(routes.tokens):
        return f"patch {token}" if grid_of([token]) else quoted(token)
    return f"position {placed(position, routes.tokens, position, has_glyph=fonts.has_glyph)}"


def _tokens_shown(routes: Routes) -> dict[int, str]:
    """Choose the tokens to show, by position."""
    known = {
        position: str(routes.nodes[layer, position, kind]["token"])
        for layer, position, kind in routes
    }
    every = [str(token) for token in routes.tokens]
    if len(every) <= _MOST_TOKENS:
        return dict(enumerate(every))
    return dict(sorted(known.items()))


def _edges_of_paths(routes: Routes, count: int) -> set[tuple[Node, Node]]:
    """List the edges of the strongest paths, whose ways through MLPs belong to them."""
    if not count:
        return set()
    steps = {step for nodes in routes.paths(count)["nodes"] for step in itertools.pairwise(nodes)}
    through = {
        edge
        for begin, end in steps
        for node in routes.successors(begin)
        if node[2] == "mlp" and routes.has_edge(node, end)
        for edge in ((begin, node), (node, end))
    }
    return {step for step in steps if routes.has_edge(*step)} | through


def _line(
    routes: Routes,
    source: Node,
    target: Node,
    facts: dict[str, Any],
    place: dict[int, int],
    size: float,
) -> Line:
    """Lay an edge; edges out of attention and MLPs are part of those into them."""
    end = target
    if target[2] in ("attention", "mlp"):  # Of a subgraph the stream may not be there.
        end = next(iter(routes.successors(target)), (target[0], target[1], "middle"))
    kind = {"residual": "stream"}.get(facts["kind"], facts["kind"])
    path, peak = lay(kind, place[source[1]], _height(source), place[end[1]], _height(end))
    is_attention = kind in ("attention", "self")
    name = heads_named(source[0], heads_of_edge(facts)) if is_attention else ""
    return Line(size, kind, path, peak, name)


def _height(node: Node) -> float:
    return node[0] + (MIDDLE if node[2] == "middle" else 0.0)


def _name_prediction(ax: Axes, routes: Routes, place: dict[int, int]) -> None:
    layer, position, _ = routes.end
    predicted = str(routes.graph.get("predicted", ""))
    if predicted and position in place:
        text = f"→ {visible(predicted, has_glyph=fonts.has_glyph)}"
        name_end(ax, (place[position], layer), text, 7)
