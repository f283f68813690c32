"""A circuit on the layout that a graph brings with it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.analysis.circuits.found import Circuit, geometry_of
from gattn.drawing.canvas.frame import describe, make_room
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.layers.circuits import drawn_sizes, numbers_of, pen_of, said_of, title_of
from gattn.drawing.located.on_layout import NOT_KNOWN, axes_with, draw_on_layout
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Layout


@checks_given
def draw_circuit_graph(
    circuit: Circuit,
    places: Any = None,
    *,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw a circuit on the layout of a graph: all nodes where they lie, its edges over the others.

    Edges run from key to query. Where heads or layers have the same edge, it shows the largest of
    their numbers: what the circuit loses without it, if its units are edges or pairs, otherwise the
    attention. Other edges are faint, if the circuit has its trace; only nodes of the circuit are
    named. `figsize`, `ax`, `cmap`, `labels` and `legend`: see `gattn.drawing`.

    Parameters
    ----------
    circuit : Circuit
        What to draw.
    places : array (nodes, 2) or mapping of node to (x, y), optional
        Where the nodes lie, as ``data.pos`` or ``networkx.spring_layout(graph)``; by default where
        the model's input had them.

    Raises
    ------
    SelectionError
        If its stacks have different tokens, or it is no circuit of edges.
    ShapeError
        If it is not known where the nodes lie, or some have no place.
    """
    if not isinstance(circuit, Circuit):
        raise SelectionError(
            f"A {type(circuit).__name__} has no tokens to place: expected a circuit of edges, from "
            "gattn.circuit; found.draw() draws others."
        )
    names = _names(circuit)
    where = _layout(circuit, places, names).places
    edges = _edges(circuit)
    sizes = dict(zip(edges, drawn_sizes(edges.values()).tolist(), strict=True))
    ax, is_own = axes_with(len(names), ax, figsize, legend=legend)
    values = np.array(list(sizes.values()))
    pen = pen_of(circuit, values, len(names), cmap, _shared(circuit, len(edges)))
    draw_on_layout(ax, names, where, sizes, _others(circuit), pen, labels=labels)
    if legend and sizes:
        add_line_key(ax, pen)
    describe(ax, circuit.graph, title_of(circuit), [said_of(circuit)])
    if is_own:
        make_room(ax)
    return ax


def _names(circuit: Circuit) -> list[str]:
    """Return the names of the nodes, which all stacks must have in common."""
    sides = [side for pair in json.loads(circuit.graph["names"]).values() for side in pair]
    if any(side != sides[0] for side in sides):
        stacks = ", ".join(circuit.stacks)
        raise SelectionError(
            f"The queries and keys of its stacks ({stacks}) are different tokens, so they are not "
            "the nodes of one graph: found.draw() shows them side by side."
        )
    return list(sides[0])


def _layout(circuit: Circuit, places: Any, names: list[str]) -> Layout:
    """Read where the nodes lie."""
    if places is not None:
        return Layout.named(places, range(len(names)), names)
    for stack in circuit.stacks:
        read = geometry_of(circuit, stack)
        if isinstance(read, Layout):
            return read
    raise ShapeError(NOT_KNOWN)


def _edges(circuit: Circuit) -> dict[tuple[int, int], list[float]]:
    """List the numbers of each edge, by key and query."""
    found: dict[tuple[int, int], list[float]] = {}
    for source, target, facts in circuit.edges(data=True):
        if facts["kind"] != "residual":
            found.setdefault((int(source[-1]), int(target[-1])), []).extend(numbers_of(facts))
    return found


def _shared(circuit: Circuit, count: int) -> str:
    """Say of what a number is the largest, if an edge has several."""
    rows = json.loads(circuit.graph["rows"])
    if circuit.graph["kind"] == "pairs" or len(rows) == count:
        return ""
    return "(largest of\nheads, layers)"


def _others(circuit: Circuit) -> set[tuple[int, int]]:
    """List the edges of the plain run, by key and query."""
    heads = circuit.trace.heads() if circuit.trace is not None else ()
    return {
        pair
        for head in heads
        for pair in zip(
            head.key.tolist(), (head.query + head.graph.query_offset).tolist(), strict=True
        )
    }
