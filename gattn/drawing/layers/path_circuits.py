"""Pictures of circuits of paths: which heads hear which, by their queries, keys or values."""

from __future__ import annotations

import json
from math import isnan
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path

from gattn.analysis.circuits.measuring.measured import percent
from gattn.analysis.circuits.paths.path_circuits import PathCircuit
from gattn.drawing.canvas.colours import KINDS, Scale, colour_map, is_dark
from gattn.drawing.canvas.frame import describe, name_side, new_axes
from gattn.drawing.canvas.keys import add_key
from gattn.drawing.canvas.labels import small_size
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.layers.circuits import left_without
from gattn.models.edit.heard import SIDES

Place = tuple[float, float]
_BENDS = {"query": -0.22, "key": 0.0, "value": 0.22}
"""By which share of its length a path bends to the right of a straight line, by its side."""
_MOST_BENT = 3.0
"""From which length on, in layers, longer paths bend no farther."""
_NAMES = {"query": "its queries", "key": "its keys", "value": "its values"}


def draw_path_circuit(
    circuit: PathCircuit, *, ax: Axes | None = None, labels: bool = True, legend: bool = True
) -> Axes:
    """Draw a circuit of paths: heads from left to right, layers upwards.

    A path is a curve from what writes to the head that hears of it, in a colour for its queries,
    keys or values, dashed for values; the wider, the more the circuit loses without it. MLPs are on
    the right of their layer's heads, the embedding is below. Heads of no path are small dots.
    Stacks lie above each other.

    Parameters
    ----------
    circuit : PathCircuit
        What to draw. `ax`, `labels` and `legend`: see `gattn.drawing`.
    """
    places, rows = _places(circuit)
    across = max((x for x, _ in places.values()), default=0.0)
    high = max(rows, default=0.0)
    if ax is None:
        ax = new_axes(min(2.6 + 0.55 * across, 12.0), min(1.8 + 0.62 * high, 10.0))
    losses = [
        (source, target, side, float(facts[f"loss_{side}"]))
        for source, target, facts in circuit.edges(data=True)
        for side in SIDES
        if f"loss_{side}" in facts
    ]
    sizes = np.array([0.0 if isnan(loss) else loss for *_, loss in losses])
    scale = Scale(max(1.0, float(np.abs(sizes).max(initial=0.0))), False, 4.5)
    kinds = {_NAMES[side]: colour for side, colour in zip(SIDES, KINDS, strict=False)}
    pen = Pen(scale, colour_map(None, is_signed=False), "", kinds)
    curves = [_curve(places[a], places[b], _BENDS[side]) for a, b, side, _ in losses]
    order = np.argsort(np.abs(sizes), kind="stable")
    kind = np.array([SIDES.index(side) for *_, side, _ in losses], dtype=np.int64)[order]
    style: dict[str, Any] = {"edgecolors": pen.colours(kind, kind)}
    style["linestyles"] = [pen.dashes[n] for n in kind]
    pen.draw(ax, [curves[n] for n in order], np.abs(sizes)[order], **style)
    _draw_nodes(ax, circuit, places, labels=labels)
    _set_up(ax, rows, across, high)
    if legend and losses:
        entries = [
            (Line2D([], [], color=colour, linewidth=2.0, linestyle=dash), name)
            for n, ((name, colour), dash) in enumerate(zip(kinds.items(), pen.dashes, strict=True))
            if n in kind
        ]
        add_key(ax, entries, "heard by")
    count = circuit.graph["edges"]
    kept = f"{circuit.counted} keep {percent(circuit.faithfulness, 1)}"
    said = [left_without(circuit)] if count else []
    describe(ax, circuit.graph, f"circuit: {kept}" if count else "circuit: no path", said)
    return ax


def _places(circuit: PathCircuit) -> tuple[dict[str, Place], dict[float, str]]:
    """Place all heads, and the other nodes; also name the heights of layers."""
    places: dict[str, Place] = {}
    rows: dict[float, str] = {}
    y = 0.0
    every = json.loads(circuit.graph["heads"])
    widest = max((count for counts in every.values() for count in counts), default=1)
    for stack, counts in every.items():
        prefix = f"{stack} " * (len(every) > 1)
        if f"{prefix}embedding" in circuit:
            places[f"{prefix}embedding"] = (0.5 * (widest - 1), y)
            rows[y] = f"{prefix}input"
            y += 1
        for layer, count in enumerate(counts):
            rows[y] = f"{prefix}{layer}"
            places |= {f"{prefix}{layer}.{head}": (float(head), y) for head in range(count)}
            places |= {f"{prefix}mlp {layer}": (float(widest), y)}
            y += 1
    used = {name: at for name, at in places.items() if "mlp" not in name or name in circuit}
    return used, rows


def _curve(start: Place, end: Place, bend: float) -> Path:
    """Lay a curve that bends to the right of its way, if it leads upwards."""
    (x, y), (right, top) = start, end
    across, up = right - x, top - y
    share = bend * min(1.0, _MOST_BENT / max(float(np.hypot(across, up)), 1e-9))
    middle = 0.5 * (x + right) + share * up, 0.5 * (y + top) - share * across
    return Path([start, middle, end], [Path.MOVETO, Path.CURVE3, Path.CURVE3])


def _draw_nodes(ax: Axes, circuit: PathCircuit, places: dict[str, Place], *, labels: bool) -> None:
    """Draw heads, and name those of the circuit."""
    ink = mpl.rcParams["text.color"]
    used = [name for name in places if name in circuit]
    for some, size, alpha, name in (
        ([one for one in places if one not in circuit], 4, 0.3, "gattn-others"),
        (used, 22, 1.0, "gattn-nodes"),
    ):
        at = np.array([places[one] for one in some]).reshape(-1, 2)
        style: dict[str, Any] = {"color": ink, "lw": 0, "zorder": 2.5, "clip_on": False}
        ax.scatter(at[:, 0], at[:, 1], s=size, alpha=alpha, gid=name, **style)
    if not labels:
        return
    for one in used:
        text = one.rpartition(" ")[2] if circuit.nodes[one]["kind"] == "head" else one
        box = {"boxstyle": "round,pad=0.1", "fc": "black" if is_dark() else "white", "ec": "none"}
        style = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": small_size()}
        style |= {"bbox": box, "zorder": 3}
        ax.annotate(text, places[one], annotation_clip=False, **style)


def _set_up(ax: Axes, rows: dict[float, str], across: float, high: float) -> None:
    """Name layers, and number heads."""
    ax.set_xlim(-0.5, across + 0.6)
    ax.set_ylim(-0.35, high + 0.5)
    ax.set_yticks(list(rows), list(rows.values()))
    ax.set_xticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    name_side(ax, "y", "layer")
