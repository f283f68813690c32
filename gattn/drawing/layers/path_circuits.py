"""Pictures of circuits of paths: which heads hear which, by their queries, keys or values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from math import isnan
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path
from numpy.typing import NDArray

from gattn.analysis.circuits.measuring.measured import layers_run, percent
from gattn.analysis.circuits.paths.path_circuits import PathCircuit
from gattn.drawing.canvas.colours import KINDS, Scale, colour_map, ground
from gattn.drawing.canvas.fitting import fitted
from gattn.drawing.canvas.frame import describe, name_side, new_axes
from gattn.drawing.canvas.keys import add_key
from gattn.drawing.canvas.labels import small_size, text_style
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.layers.band_names import names_in
from gattn.drawing.layers.circuits import left_without
from gattn.drawing.layers.numbered import layers_apart
from gattn.models.edit.heard import SIDES

Place = tuple[float, float]
_BENDS = {"query": -0.22, "key": 0.0, "value": 0.22}
"""By which share of its length a path bends to the right of a straight line, by its side."""
_MOST_BENT = 3.0
"""From which length on, in layers, longer paths bend no farther."""
_MORE = 0.0, 0.12, -0.12, 0.24, -0.24
"""How much farther a path may bend where others run or heads lie."""
_FINE, _NEAR = 0.04, 0.2
"""How far apart paths are told apart, and how near its ends a path meets others in any case."""
_NAMED = {"head": "{layer}.{head}", "mlp": "mlp {layer}", "embedding": "embedding"}
"""How nodes are named; the axis names their stack."""
_NAMES = {"query": "its queries", "key": "its keys", "value": "its values"}


def draw_path_circuit(
    circuit: PathCircuit, *, ax: Axes | None = None, labels: bool = True, legend: bool = True
) -> Axes:
    """Draw a circuit of paths: heads from left to right, layers upwards in the order they ran.

    A path is a curve from what writes to the head that hears of it, in a colour for its queries,
    keys or values, dashed for values; the wider, the more the circuit loses without it. MLPs are on
    the right of their layer's heads, the embedding is below. Heads of no path are small dots.

    Parameters
    ----------
    circuit : PathCircuit
        What to draw. `ax`, `labels` and `legend`: see `gattn.drawing`.
    """
    places, rows = _places(circuit)
    across = max((x for x, _ in places.values()), default=0.0)
    high = max(len(rows) - 1, 0)
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
    order = np.argsort(np.abs(sizes), kind="stable")
    curves = _curves(places, [losses[n][:3] for n in order[::-1]])[::-1]
    kind = np.array([SIDES.index(side) for *_, side, _ in losses], dtype=np.int64)[order]
    style: dict[str, Any] = {"edgecolors": pen.colours(kind, kind)}
    style["linestyles"] = [pen.dashes[n] for n in kind]
    pen.draw(ax, curves, np.abs(sizes)[order], **style)
    _draw_nodes(ax, circuit, places, labels=labels)
    _set_up(ax, rows, across)
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


def _places(circuit: PathCircuit) -> tuple[dict[str, Place], list[tuple[str, str]]]:
    """Place all heads, and the other nodes; also name the stack and layer of each height."""
    places: dict[str, Place] = {}
    rows: list[tuple[str, str]] = []
    every = json.loads(circuit.graph["heads"])
    widest = max((count for counts in every.values() for count in counts), default=1)
    for stack, layer in layers_run(circuit, {name: len(some) for name, some in every.items()}):
        prefix = f"{stack} " * (len(every) > 1)
        if layer == 0 and f"{prefix}embedding" in circuit:
            places[f"{prefix}embedding"] = (0.5 * (widest - 1), float(len(rows)))
            rows.append((stack, "input"))
        y = float(len(rows))
        heads = range(every[stack][layer])
        places |= {f"{prefix}{layer}.{head}": (float(head), y) for head in heads}
        if f"{prefix}mlp {layer}" in circuit:
            places[f"{prefix}mlp {layer}"] = (float(widest), y)
        rows.append((stack, str(layer)))
    return places, rows


def _curves(places: dict[str, Place], paths: Iterable[tuple[str, str, str]]) -> list[Path]:
    """Lay paths, each so that it runs as little as can be along those before it, or over heads."""
    taken: set[tuple[int, int]] = set()
    for place in places.values():
        taken |= _around(np.array([place]), _NEAR)
    found = []
    for source, target, side in paths:
        ends = places[source], places[target]
        ways = [_curve(*ends, _BENDS[side] + more) for more in _MORE]
        met = [len(_cells(_between(way, *ends)) & taken) for way in ways]
        way = ways[int(np.argmin(met))]
        taken |= _around(_between(way, *ends))
        found.append(way)
    return found


def _between(curve: Path, *ends: Place) -> NDArray[np.float64]:
    """Return points of a curve as dense as paths are told apart, those near its ends left out."""
    start, middle, end = np.asarray(curve.vertices)
    length = np.hypot(*(middle - start)) + np.hypot(*(end - middle))
    at = np.linspace(0, 1, int(length / _FINE) + 2)[:, None]
    points = (1 - at) ** 2 * start + 2 * at * (1 - at) * middle + at**2 * end
    away = [np.hypot(*(points - place).T) > _NEAR for place in ends]
    found: NDArray[np.float64] = points[away[0] & away[1]]
    return found


def _cells(points: NDArray[np.float64]) -> set[tuple[int, int]]:
    return {(int(x), int(y)) for x, y in np.round(points / _FINE)}


def _around(points: NDArray[np.float64], reach: float = _FINE) -> set[tuple[int, int]]:
    far = round(reach / _FINE)
    steps = range(-far, far + 1)
    return {(x + i, y + j) for x, y in _cells(points) for i in steps for j in steps}


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
        text = _NAMED[circuit.nodes[one]["kind"]].format(**circuit.nodes[one])
        style = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": small_size()}
        style |= {"bbox": ground(ax, 0.1), "zorder": 3}
        ax.annotate(text, places[one], annotation_clip=False, **style)


def _set_up(ax: Axes, rows: Sequence[tuple[str, str]], across: float) -> None:
    """Name layers, and stacks if there are several; number heads."""
    ax.set_xlim(-0.5, across + 0.6)
    ax.set_ylim(-0.35, max(len(rows) - 1, 0) + 0.5)
    ax.set_xticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    fitted(ax, partial(_name_rows, ax, rows))
    name_side(ax, "y", "layer")


def _name_rows(ax: Axes, rows: Sequence[tuple[str, str]]) -> None:
    """Write as many layers as have room, after the name of a stack that is not that below."""
    stacks = list(dict.fromkeys(stack for stack, _ in rows))
    short = names_in(ax, stacks)
    shown = range(0, len(rows), layers_apart(ax))
    before = stacks[0] if len(stacks) == 1 else ""
    texts = []
    for stack, layer in (rows[n] for n in shown):
        texts.append(layer if stack == before else f"{short[stack]} · {layer}")
        before = stack
    ax.set_yticks(list(shown), texts, **text_style(texts))
