"""Pictures of circuits: the edges on which alone a model keeps its answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.analysis.circuits.found import Circuit, percent
from gattn.analysis.vectors.route_graphs import heads_of_edge
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import describe, pitch
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import font_size
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.layers.layered import (
    LayeredEdges,
    Line,
    draw_nodes,
    heads_named,
    key_of_kinds,
    lay,
    layered_axes,
    set_up,
)
from gattn.errors import SelectionError

_MOST_TOKENS = 40
_ROOM = 1.6
"""How far apart all tokens must be, in font sizes, to be shown."""
_NAMED = 24
_MOST_EDGES = 2000
_NAMES = {"edges": "lost without\nthe edge", "pairs": "lost without\nthe pair"}


def draw_circuit(
    circuit: Circuit,
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
) -> Axes:
    """Draw a circuit: tokens from left to right, layers upwards.

    Residual streams go straight up, in grey, where they join edges of the circuit. Attention is a
    curve from token to token, named by its heads, a token's attention to itself bends to the right.
    Widths and colours are what the circuit loses without an edge, or a pair, where these are its
    units, otherwise the attention. Heads with an edge between the same tokens share a curve, which
    shows the largest of their numbers, and names its head first. In long texts only tokens of the
    circuit are shown.

    Parameters
    ----------
    circuit : Circuit
        What to draw.

    Raises
    ------
    SelectionError
        If the model has several stacks, or a stack of cross-attention.
    """
    if any(len(node) != 2 for node in circuit):
        raise SelectionError(
            "A circuit of several stacks, or of cross-attention, has no layered picture: see its "
            "table(), or draw it by networkx."
        )
    ax = ax if ax is not None else layered_axes(len(_tokens_shown(circuit, None)), circuit.depth)
    tokens = _tokens_shown(circuit, ax)
    place = {position: x for x, position in enumerate(tokens)}
    by_head = circuit.graph["kind"] != "pairs"
    found = [facts for *_, facts in circuit.edges(data=True) if facts["kind"] != "residual"]
    sizes = np.array([_largest(facts) for facts in found], dtype=float)
    top = max(1.0, float(np.abs(sizes).max(initial=0.0)))
    scale = Scale(top, bool((sizes < 0).any()), max(2.4, 6.0 / max(len(tokens), 5) ** 0.2))
    is_shared = by_head and any(len(heads_of_edge(facts)) > 1 for facts in found)
    name = _NAMES.get(circuit.graph["kind"], "attention") + "\n(largest head)" * is_shared
    pen = Pen(scale, colour_map(cmap, is_signed=scale.is_signed), name)
    lines = LayeredEdges(ax, pen)
    strongest = set(np.argsort(-np.abs(sizes), kind="stable")[:_MOST_EDGES].tolist())
    number = -1
    for source, target, facts in circuit.edges(data=True):
        kind = {"residual": "stream"}.get(facts["kind"], facts["kind"])
        number += kind != "stream"
        if kind != "stream" and number not in strongest:
            continue
        size = 0.25 * top if kind == "stream" else _largest(facts)
        ends = place[source[1]], source[0], place[target[1]], target[0]
        heads = "" if kind == "stream" else heads_named(facts["layer"], _of_heads(facts))
        lines.add(Line(size, kind, *lay(kind, *ends), heads))
    lines.draw()
    draw_nodes(ax, [(place[position], depth, True) for depth, position in circuit])
    set_up(ax, tokens, range(circuit.depth), labels=labels)
    if labels:
        lines.name_strongest(_NAMED)
    has_stream = any(facts["kind"] == "residual" for *_, facts in circuit.edges(data=True))
    add_line_key(ax, pen, *key_of_kinds(pen, *["stream"] * has_stream))
    notes = [f"the {_MOST_EDGES} largest of {len(sizes):,}"] if len(sizes) > _MOST_EDGES else []
    describe(ax, circuit.graph, _title(circuit), [_said(circuit), *notes])
    return ax


def _of_heads(facts: dict[str, Any]) -> dict[int, float]:
    """Give the number of each head of an edge: the loss without it there, or its attention."""
    return {
        head: float(facts.get(f"loss_{head}", attention))
        for head, attention in heads_of_edge(facts).items()
    }


def _largest(facts: dict[str, Any]) -> float:
    return float(facts["loss"]) if "loss" in facts else max(_of_heads(facts).values(), key=abs)


def _tokens_shown(circuit: Circuit, ax: Axes | None) -> dict[int, str]:
    """Choose the tokens to show, by position: all if they have room, or those of the circuit."""
    every = dict(enumerate(circuit.tokens))
    is_wide = ax is None or pitch(ax, len(every), "x") > _ROOM * font_size()
    if len(every) <= _MOST_TOKENS and is_wide:
        return every
    some = sorted({position for _, position in circuit})
    return {at: every[at] if every[at] == str(at) else f"{every[at]} {at}" for at in some}


def _title(circuit: Circuit) -> str:
    count, whole = circuit.graph["edges"], circuit.graph["all_edges"]
    if not count:
        return "circuit: no edge"
    return f"circuit: {count:,} of {whole:,} edges keep {circuit.faithfulness:.0%}"


def _said(circuit: Circuit) -> str:
    """Say what was measured without the circuit, and without its units."""
    if not circuit.graph["edges"]:
        return ""
    left = f"without them {percent(1 - circuit.completeness, 0)} is left"
    if not circuit.random:
        return left
    return f"{left}; random sets like it keep {percent(float(np.mean(circuit.random)), 0)}"
