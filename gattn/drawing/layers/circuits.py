"""Pictures of circuits: the edges on which alone a model keeps its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from math import isnan
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.analysis.circuits.found import Circuit, key_side
from gattn.analysis.circuits.measuring.measured import Measured, percent
from gattn.analysis.vectors.route_graphs import heads_of_edge
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.fitting import Fitting, pitch
from gattn.drawing.canvas.frame import describe
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import font_size
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.layers.band_names import set_up_bands, texts_between, with_room
from gattn.drawing.layers.bands import MOST_TOKENS, Band, bands_of, columns, name_of, place_of, top
from gattn.drawing.layers.layered import (
    MOST_HEADS,
    LayeredEdges,
    Line,
    draw_nodes,
    heads_named,
    key_of_kinds,
    lay,
    ranked,
)
from gattn.drawing.layers.numbered import layered_axes

_ROOM = 1.6
"""How far apart all tokens must be, in font sizes, to be shown."""
_NAMED = 24
MOST_EDGES = 2000
"""The most edges that a picture of a circuit shows."""
_LISTED = 12
"""How many heads without a name in the picture the caption lists."""
_NAMES = {"edges": "share lost\nwithout\nthe edge", "pairs": "share lost\nwithout\nthe pair"}


def draw_circuit(
    circuit: Circuit,
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw a circuit: tokens from left to right, layers upwards.

    Residual streams go straight up, in grey, where they join edges of the circuit. Attention is a
    curve from token to token, named by its heads, a token's attention to itself bends to the right.
    Widths and colours are what the circuit loses without an edge, or a pair, where these are its
    units, otherwise the attention. Heads with an edge between the same tokens share a curve, which
    shows the largest of their numbers, and names its head first; each head is named on one of its
    curves, or in the caption. In long texts, and of the nodes of a graph, only tokens of the
    circuit are shown. Layers lie above each other in the order in which they ran: stacks that ran
    one after another each with its own tokens below it, those whose layers took turns layer by
    layer. Where keys are other tokens than queries, they are on the left.

    Parameters
    ----------
    circuit : Circuit
        What to draw. `ax`, `cmap`, `labels` and `legend`: see `gattn.drawing`.
    """
    bands = bands_of(circuit, whole=True)
    whole = columns(bands) <= MOST_TOKENS and (
        ax is None or pitch(ax, columns(bands), "x") > _ROOM * font_size()
    )
    bands = bands_of(circuit, whole=whole)
    ax = ax if ax is not None else layered_axes(columns(bands), round(top(bands) + 0.4))
    bands = with_room(ax, partial(bands_of, circuit, whole), labels=labels)
    found = [facts for *_, facts in circuit.edges(data=True) if facts["kind"] != "residual"]
    sizes = drawn_sizes([numbers_of(facts) for facts in found])
    is_shared = circuit.graph["kind"] != "pairs" and any(len(heads_of_edge(x)) > 1 for x in found)
    pen = pen_of(circuit, sizes, columns(bands), cmap, "(largest head)" * is_shared)
    lines = LayeredEdges(ax, pen)
    for line in _lines(circuit, bands, sizes, pen.scale.top):
        lines.add(line)
    lines.draw()
    draw_nodes(ax, [(*place_of(bands, node), True) for node in circuit])
    set_up_bands(ax, bands, circuit.stacks, labels=labels)
    has_stream = any(facts["kind"] == "residual" for *_, facts in circuit.edges(data=True))
    if legend and len(sizes):
        add_line_key(ax, pen, *key_of_kinds(pen, *["stream"] * has_stream))
    notes = [f"the {MOST_EDGES} largest of {len(sizes):,}"] if len(sizes) > MOST_EDGES else []
    if labels:
        say = partial(_say, ax, circuit)
        lines.name_strongest(_NAMED, partial(texts_between, ax, bands), say)
    describe(ax, circuit.graph, title_of(circuit), [said_of(circuit), *notes])
    return ax


def pen_of(
    circuit: Circuit,
    sizes: np.ndarray[Any, Any],
    tokens: int,
    cmap: str | Colormap | None,
    shared: str,
) -> Pen:
    """Make the pen for the sizes of a circuit's edges; its key ends with what `shared` says."""
    high = max(1.0, float(np.abs(sizes).max(initial=0.0)))
    scale = Scale(high, bool((sizes < 0).any()), max(2.4, 6.0 / max(tokens, 5) ** 0.2))
    name = "\n".join(filter(None, [_NAMES.get(circuit.graph["kind"], "attention"), shared]))
    return Pen(scale, colour_map(cmap, is_signed=scale.is_signed), name)


def _lines(
    circuit: Circuit, bands: Mapping[str, Band], sizes: np.ndarray[Any, Any], high: float
) -> list[Line]:
    """Lay the streams, and the largest edges."""
    strongest = set(np.argsort(-np.abs(sizes), kind="stable")[:MOST_EDGES].tolist())
    number, found = -1, []
    for source, target, facts in circuit.edges(data=True):
        ends = (*place_of(bands, source), *place_of(bands, target))
        is_within = name_of(source) == name_of(target)
        rise = ends[3] - ends[1] - 1 if is_within else 0.0  # past layers of others
        if facts["kind"] == "residual":
            found.append(Line(0.25 * high, "stream", *lay("stream", *ends)))
            continue
        number += 1
        if number in strongest:
            numbers = _of_heads(facts)
            name = _stack_said(source, target) + heads_named(facts["layer"], numbers)
            heads = {head: _head_named(circuit, source, target, facts, head) for head in numbers}
            said = frozenset(heads[head] for head in ranked(numbers)[:MOST_HEADS])
            path = lay(facts["kind"], *ends, rise=rise)
            found.append(Line(sizes[number], facts["kind"], *path, name, said))
    return found


def _stack_said(source: Any, target: Any) -> str:
    """Name the stack of edges that join two others, which no axis names."""
    is_within = name_of(source) in (name_of(target), key_side(name_of(target)))
    return "" if is_within else "cross "


def _head_named(circuit: Circuit, source: Any, target: Any, facts: Any, head: int) -> str:
    """Name a head, after its stack if there are several."""
    stack = _stack_said(source, target)
    if not stack and len(circuit.stacks) > 1:
        stack = f"{name_of(target)} "
    return f"{stack}{facts['layer']}.{head}"


def _say(ax: Axes, circuit: Circuit, named: frozenset[str]) -> None:
    """Name those heads in the caption that have no room in the picture."""
    Fitting.of(ax).note("heads", _unnamed(circuit, named))


def _unnamed(circuit: Circuit, named: frozenset[str]) -> str:
    """List the heads that have no name in the picture."""
    every = {
        _head_named(circuit, source, target, facts, head): None
        for source, target, facts in circuit.edges(data=True)
        for head in heads_of_edge(facts)
    }
    left = [name for name in every if name not in named]
    more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
    return f"heads without a name here: {', '.join(left[:_LISTED])}{more}" if left else ""


def _of_heads(facts: dict[str, Any]) -> dict[int, float]:
    """Give the number of each head of an edge: the loss without it there, or its attention."""
    return {
        head: float(facts.get(f"loss_{head}", attention))
        for head, attention in heads_of_edge(facts).items()
    }


def numbers_of(facts: dict[str, Any]) -> list[float]:
    """List the numbers of an edge: what is lost without it, or its heads' attention."""
    return [float(facts["loss"])] if "loss" in facts else list(_of_heads(facts).values())


def drawn_sizes(edges: Iterable[Iterable[float]]) -> np.ndarray[Any, Any]:
    """Choose of each edge's numbers the one farthest from 0; 0 if none was measured."""
    known = ([x for x in numbers if not isnan(x)] for numbers in edges)
    return np.array([max(some, key=abs, default=0.0) for some in known], dtype=float)


def title_of(circuit: Circuit) -> str:
    """Say how small it is, and what it keeps."""
    if not circuit.graph["edges"]:
        return "circuit: no edge"
    return f"circuit: {circuit.counted} keep {percent(circuit.faithfulness, 1)}"


def said_of(circuit: Circuit) -> str:
    """Say what was measured without the circuit, and what else was."""
    if not circuit.graph["edges"]:
        return ""
    return "; ".join(filter(None, [left_without(circuit), beside(circuit)]))


def left_without(circuit: Measured) -> str:
    """Say what is left without the circuit, and of what, if that is no plain share of a metric."""
    whole = circuit.whole if circuit.whole != circuit.graph["metric"] else ""
    return "; ".join(filter(None, [circuit.left_without(whole), circuit.caveat]))


def beside(circuit: Circuit) -> str:
    """Say what was measured of sets like it, and how many losses were not."""
    said = []
    if circuit.random:
        kept = percent(float(np.mean(circuit.random)), 1)
        said.append(f"as many {circuit.graph['kind']} chosen at random keep {kept}")
    losses = circuit.units()["loss"]
    if circuit.graph["kind"] in _NAMES and (missing := int(losses.isna().sum())):
        said.append(f"{missing:,} of {len(losses):,} losses not measured (thinnest lines)")
    return "; ".join(said)
