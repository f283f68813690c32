"""How the picture of one head is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.drawing.canvas.pen import Pen
from gattn.drawing.matrices.cells import Pool
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph

STORED_BY = {
    "attention": "",
    "score": "scores=True",
    "contribution": "contributions=True",
    "value_norm": "contributions='value'",
}
"""What areas can show, and what asks for it as a graph is computed."""


@dataclass(frozen=True)
class Wording:
    """What a picture of edges calls them.

    Parameters
    ----------
    rightward, leftward : str
        What lies on the left and what on the right of an edge, and the way it runs.
    weight : str
        What its width and colour mean.
    title : str
        What stands above; by default the head's name.
    notes : sequence of str
        What stands below, after what is shown.
    """

    rightward: str = "key → query"
    leftward: str = "query ← key"
    weight: str = "attention"
    title: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Look:
    """How a head is drawn.

    Parameters
    ----------
    pen : Pen
        The colours and widths.
    labels, legend : bool
        Whether to draw the tokens' labels, and the key of colours.
    values : str
        Which of a head's `edge_values`.
    vmax : float, optional
        The end of the scale of other values than attention.
    pool : {"mean", "max"}
        What a pixel shows that holds several cells of a matrix.
    wording : Wording
        What edges are called.
    """

    pen: Pen
    labels: bool
    legend: bool
    values: str = "attention"
    vmax: float | None = None
    pool: Pool = "mean"
    wording: Wording = field(default_factory=Wording)


@dataclass(frozen=True)
class Options:
    """What a user chose for the picture of a head; `draw_head` explains each."""

    query: Any = None
    key: Any = None
    hide: Any = None
    self_loops: bool = True
    threshold: float | None = None
    values: str = "attention"
    vmax: float | None = None
    pool: Pool = "mean"
    linewidth: float | None = None
    title: str | None = None
    caption: str | None = None
    figsize: tuple[float, float] | None = None
    ax: Axes | None = None
    cmap: str | Colormap | None = None
    labels: bool = True
    legend: bool = True


def check_values(head: AttentionGraph, values: str) -> None:
    """Refuse values that are not known, or that a head lacks."""
    if values not in STORED_BY:
        known = ", ".join(map(repr, STORED_BY))
        raise SelectionError(f"values is one of {known}, not {values!r}.")
    if lacks := lacking(head, values):
        raise SelectionError(lacks.strip())


def lacking(head: AttentionGraph, values: str) -> str:
    """Return a sentence that says how to compute values, if a head lacks them; else nothing."""
    if values in head.edge_values:
        return ""
    return (
        f" This head has no {values}; compute its graph with {STORED_BY[values]}, as in "
        f"gattn.capture(text, model, {STORED_BY[values]})."
    )
