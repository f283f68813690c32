"""A circuit on the layout that a graph brings with it."""

from __future__ import annotations

import json
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap
from numpy.typing import NDArray

from gattn.analysis.circuits.found import Circuit
from gattn.drawing.canvas.fitting import fitted
from gattn.drawing.canvas.frame import add_axes, describe, given_axes, make_room
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import larger
from gattn.drawing.canvas.layouts import Positions
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.layers.circuits import drawn_sizes, numbers_of, pen_of, said_of, title_of
from gattn.drawing.one_head.free import FreeGraph, with_numbers
from gattn.drawing.one_head.placed_edges import PlacedEdges
from gattn.drawing.styles.figures import new_figure, within_page
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Layout
from gattn.heads.geometry.written import from_text


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
    sizes = drawn_sizes(edges.values())
    ends = np.array(list(edges), dtype=int).reshape(-1, 2)
    ax = given_axes(ax, figsize)
    is_own = ax is None
    if ax is None:
        side = larger() * min(max(4.4, 2.6 + 0.45 * len(names) ** 0.6), 9.0)
        figure = new_figure(within_page(side + 0.6, side))
        ax = add_axes(figure, legend=legend)
    pen = pen_of(circuit, sizes, len(names), cmap, _shared(circuit, len(edges)))
    _draw_others(ax, circuit, where)
    order = np.argsort(np.abs(sizes), kind="stable")
    found = PlacedEdges(
        where[ends[:, 0]], where[ends[:, 1]], sizes, np.zeros(len(sizes), dtype=np.int64)
    )[order]
    every: Positions = {node: (float(x), float(y)) for node, (x, y) in enumerate(where)}
    picture = FreeGraph(ax, every, found, pen)
    used = sorted(set(ends.ravel().tolist()))
    _draw_nodes(ax, where, used, picture)
    if labels and used:
        picture.name(with_numbers({node: names[node] for node in used}))
    fitted(ax, picture.place)
    if legend and len(sizes):
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
    for known in json.loads(circuit.graph["geometry"]).values():
        read = from_text(known["text"], {n: np.array(x) for n, x in known["axes"].items()})
        if isinstance(read, Layout):
            return read
    raise ShapeError(
        "It is not known where the nodes of this graph lie: say so, as in "
        "found.draw_graph(data.pos) or found.draw_graph(networkx.spring_layout(graph))."
    )


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


def _draw_others(ax: Axes, circuit: Circuit, where: NDArray[np.float64]) -> None:
    """Draw all edges of the plain run as thin lines."""
    if circuit.trace is None:
        return
    pairs = {
        pair
        for head in circuit.trace.heads()
        for pair in zip(
            head.key.tolist(), (head.query + head.graph.query_offset).tolist(), strict=True
        )
    }
    ends = np.array(sorted(pairs), dtype=int).reshape(-1, 2)
    ink = mpl.rcParams["text.color"]
    lines = LineCollection(
        list(where[ends]), colors=ink, linewidths=0.4, alpha=0.18, clip_on=False, gid="gattn-faint"
    )
    ax.add_collection(lines, autolim=False)


def _draw_nodes(ax: Axes, where: NDArray[np.float64], used: list[int], picture: FreeGraph) -> None:
    """Draw the nodes of the circuit in full, the others as small dots."""
    ink = mpl.rcParams["text.color"]
    x, y = where.T
    is_used = np.isin(np.arange(len(where)), used)
    style: dict[str, Any] = {"color": ink, "lw": 0, "clip_on": False, "zorder": 2.5}
    others = ax.scatter(x[~is_used], y[~is_used], gid="gattn-others", alpha=0.35, **style)
    nodes = ax.scatter(x[is_used], y[is_used], gid="gattn-nodes", **style)
    picture.add_nodes(others, lambda radius: radius**2)
    picture.add_nodes(nodes, lambda radius: (2 * radius) ** 2)
