"""Pictures of unrolled layers: their edges by weight, and what passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.text import Text
from numpy.typing import NDArray

from gattn.analysis.propagation.unrolled import Node, Unrolled
from gattn.analysis.vectors.route_graphs import heads_of_edge
from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.fitting import Fitting, pitch, points, rewritten
from gattn.drawing.canvas.frame import describe, token_said
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import font_size, in_digits, width_of
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.shown import share_of, strongest_of_each
from gattn.drawing.layers.layered import (
    LayeredEdges,
    Line,
    draw_nodes,
    heads_named,
    key_of_kinds,
    lay,
    write_over,
)
from gattn.drawing.layers.numbered import layered_axes, name_end, set_up
from gattn.drawing.layers.ribbons import draw_ribbons
from gattn.errors import SelectionError
from gattn.names.text import visible

_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
_FEW = 60
"""The least number of edges of attention per layer that may be shown."""
_MOST = 3000
"""The most edges of attention that a picture shows."""
_SIZES = {"weight": "attention", "passes": "what attention passes"}
_WHOLE = {"attention": "the attention"}
_NAMED = 16
_SHARES = 9
_BETWEEN = 0.15
"""The least distance between shares, in their font sizes."""
_RING = 9.5
"""How wide the ring around an end is, in points."""


def draw_unrolled(
    unrolled: Unrolled,
    layout: str = "layered",
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
) -> Axes:
    """Draw unrolled layers: tokens from left to right, layers upwards.

    Residual streams go straight up, in grey. Attention is a curve from token to token, a token's
    attention to itself bends to the right. Widths and colours are weights, or what passes after
    `Unrolled.rollout` or `Unrolled.flow`. If there are too many edges to see, the weakest are left
    out, and the caption says which.

    Parameters
    ----------
    unrolled : Unrolled
        What to draw.
    layout : "layered" or "ribbons"
        Lines, or bands whose widths add up to everything that reaches the query of a rollout.
    cmap : str or Colormap, optional
        The colours of attention; of ribbons, those of tokens.

    Raises
    ------
    SelectionError
        If there is no such layout, or it needs a rollout to a query.
    """
    if layout not in ("layered", "ribbons"):
        raise SelectionError(f"layout is 'layered' or 'ribbons', not {layout!r}.")
    draw = draw_ribbons if layout == "ribbons" else _draw_layered
    ax, notes = draw(unrolled, ax, cmap, labels=labels)
    describe(ax, unrolled.graph, _unrolled_title(unrolled), notes)
    return ax


def _draw_layered(
    unrolled: Unrolled, ax: Axes | None, cmap: str | Colormap | None, *, labels: bool
) -> tuple[Axes, list[str]]:
    tokens = dict(zip(unrolled.positions, unrolled.tokens, strict=True))
    place = {position: x for x, position in enumerate(tokens)}
    ax = ax if ax is not None else layered_axes(len(tokens), unrolled.depth)
    widest = max(1.2, 7.5 / (max(len(tokens), 5) / 5) ** 0.4)
    scale = Scale(_whole(unrolled), False, widest)
    name = "what passes" if _kind(unrolled) else "weight"
    lines = LayeredEdges(ax, Pen(scale, colour_map(cmap, is_signed=False), name))
    notes = _add_lines(lines, unrolled, place)
    lines.draw()
    draw_nodes(
        ax,
        [
            (place[at], depth, facts.get("passes", 1) > 0)
            for (depth, at), facts in unrolled.nodes(data=True)
        ],
    )
    first = unrolled.graph.get("first_layer", 0)
    set_up(ax, tokens, range(first, first + unrolled.depth), labels=labels)
    _mark_ends(ax, unrolled, place)
    if labels:
        lines.name_strongest(_NAMED)
        rewritten(ax, partial(_write_shares, ax, unrolled, place))
    ringed = 0.5 * _RING + 1.0 if unrolled.end("query") or unrolled.end("key") else 0.0
    add_line_key(ax, lines.pen, *key_of_kinds(lines.pen, "stream"), beyond=ringed)
    return ax, notes


def _whole(unrolled: Unrolled) -> float:
    """Return how much the widest line stands for: all that passes, or a weight of 1."""
    node = unrolled.end("query") or unrolled.end("key")
    return float(unrolled.nodes[node]["passes"] if node else 1.0) or 1.0


def _kind(unrolled: Unrolled) -> str:
    return str(unrolled.graph.get("passes", ""))


def _unrolled_title(unrolled: Unrolled) -> str:
    """Return what is drawn: "rollout to 5 “lamp”", "flow from 1 “The” to 5 “lamp”: 0.42"."""
    kind = _kind(unrolled)
    if not kind:
        return "unrolled"
    start, end = unrolled.end("key"), unrolled.end("query")
    title = kind
    if start:
        title += f" from {_node_name(unrolled, start, start[0] == 0)}"
    if end:
        title += f" to {_node_name(unrolled, end, end[0] == unrolled.depth)}"
    if start and end:
        title += f": {in_digits(unrolled.nodes[start]['passes'])}"
    return title


def _node_name(unrolled: Unrolled, node: Node, is_usual: bool) -> str:
    depth, position = node
    beside = sorted(place for level, place in unrolled if level == depth)
    tokens = [str(unrolled.nodes[depth, place]["token"]) for place in beside]
    name = token_said(position, tokens, beside.index(position))
    first = unrolled.graph.get("first_layer", 0)
    return name if is_usual else f"{name} before layer {first + depth}"


def _add_lines(lines: LayeredEdges, unrolled: Unrolled, place: dict[int, int]) -> list[str]:
    """Add the edges that can be seen, and say which they are."""
    # No tuple for each edge: as many make Python look for garbage again and again.
    starts = [start for start, edges in unrolled.adjacency() for _ in edges]
    ends = [end for _, edges in unrolled.adjacency() for end in edges]
    found = [facts for _, edges in unrolled.adjacency() for facts in edges.values()]
    shown = "passes" if _kind(unrolled) else "weight"
    whole, weight, residual = (
        np.array([facts[name] for facts in found], dtype=np.float64)
        for name in (shown, "weight", "residual")
    )
    stream = whole * np.divide(residual, weight, out=np.zeros_like(weight), where=weight > 0)
    for n in np.flatnonzero(stream):
        (depth, key), (_, query) = starts[n], ends[n]
        laid = lay("stream", place[key], depth, place[query], depth + 1)
        lines.add(Line(float(stream[n]), "stream", *laid))
    attention = np.flatnonzero(whole > stream)
    sizes = (whole - stream)[attention]
    limit = min(unrolled.depth * max(_FEW, 2 * len(place)), _MOST)
    readers = np.array([depth * len(place) + place[query] for depth, query in ends])[attention]
    chosen, notes = _visible_edges(sizes, _SIZES[shown], limit, readers)
    first = unrolled.graph.get("first_layer", 0)
    for n, size in zip(attention[chosen], sizes[chosen].tolist(), strict=True):
        (depth, key), (_, query) = starts[n], ends[n]
        kind = "self" if key == query else "attention"
        path, peak = lay(kind, place[key], depth, place[query], depth + 1)
        name = heads_named(first + depth, heads_of_edge(found[n]))
        lines.add(Line(size, kind, path, peak, name))
    if _kind(unrolled) == "flow":
        notes.append("one of several maximum flows: its size is certain, its paths usually not")
    return notes


def _visible_edges(
    sizes: NDArray[np.float64], name: str, limit: int, readers: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], list[str]]:
    """Choose the edges above a round threshold; if that hides most, some of each reader's rest.

    The weakest edges that hold 1 % together are always left out.
    """
    whole = sizes.sum()
    weak = [step for step in _STEPS if sizes[sizes < step].sum() <= 0.01 * whole]
    steps = _STEPS[len(weak) - 1 :] if weak else (0.0, *_STEPS)
    step = _first_step(sizes, steps, limit)
    hides_most = sizes[sizes >= step].sum() < whole / 2
    if hides_most:
        step = _first_step(sizes, steps, limit // 2)
    chosen = sizes >= step
    rules = [f"{name} ≥ {step:g}"] if np.isfinite(step) else []
    if hides_most:
        rest = np.where(chosen, 0.0, sizes)
        nodes = len(np.unique(readers[rest > 0]))
        each = max(1, (limit - int(chosen.sum())) // max(nodes, 1))
        more = strongest_of_each(rest, readers, each)
        room = limit - int(chosen.sum())
        few = str(each)
        if more.sum() > room:
            few, more = (
                "some",
                strongest_of_each(np.where(more, rest, 0.0), np.zeros(len(rest)), room),
            )
        chosen |= more
        rules.append(f"{few} of the strongest" + " other" * bool(rules) + " edges to each node")
    if chosen.all():
        return chosen, []
    share = share_of(float(sizes[chosen].sum()), float(whole), _WHOLE.get(name, name))
    return chosen, [f"{' and '.join(rules)}: {chosen.sum():,} of {len(sizes):,} edges{share}"]


def _first_step(sizes: NDArray[np.float64], steps: Sequence[float], limit: int) -> float:
    """Find the least round threshold that leaves few enough."""
    return next((step for step in steps if (sizes >= step).sum() <= limit), np.inf)


def _mark_ends(ax: Axes, unrolled: Unrolled, place: dict[int, int]) -> None:
    """Ring the nodes where what passes begins and ends, and name the query."""
    for name, node in (("key", unrolled.end("key")), ("query", unrolled.end("query"))):
        if node:
            depth, position = node
            ring: dict[str, Any] = {"s": _RING**2, "facecolors": "none", "edgecolors": "#d55e00"}
            ring["clip_on"] = False
            ax.scatter([place[position]], [depth], lw=1.6, zorder=5, gid=f"gattn-{name}", **ring)
    if node := unrolled.end("query"):
        text = visible(str(unrolled.nodes[node]["token"]), has_glyph=fonts.has_glyph)
        name_end(ax, (place[node[1]], node[0]), text, 8)


def _write_shares(ax: Axes, unrolled: Unrolled, place: dict[int, int]) -> list[Text]:
    """Write below the input tokens which share of what passes comes from them."""
    if not unrolled.end("query") or unrolled.end("key"):
        return []
    found = [
        (facts["passes"], place[position])
        for (depth, position), facts in unrolled.nodes(data=True)
        if depth == 0 and facts["passes"] >= 0.005
    ]
    drop = _drop(ax)
    ax.set_ylim(bottom=-1.7 * drop)
    room = 0.7 * (width_of("0.00") + _BETWEEN) * font_size() / pitch(ax, len(place), "x")
    taken: list[int] = []
    written = []
    for share, x in sorted(found, reverse=True):
        if len(taken) < _SHARES and all(abs(x - other) >= room for other in taken):
            taken.append(x)
            text = write_over(ax, x, -drop, f"{share:.2f}", gid="gattn-shares", va="center")
            written.append(text)
    said = f"shares of {len(written)} of {len(found)} tokens have room"
    Fitting.of(ax).note("shares", said * (len(written) < len(found)))
    return written


def _drop(ax: Axes) -> float:
    """Return how far below the input shares stand, in layers: clear of its nodes, however low."""
    clear, (_, tall), (_, top) = 0.95 * font_size(), points(ax), ax.get_ylim()
    return max(0.2, clear * top / max(tall - 1.7 * clear, clear))
