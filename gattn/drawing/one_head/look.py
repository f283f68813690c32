"""How the picture of one head is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gattn.drawing.canvas.pen import Pen
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph

OPTIONS = {
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
    wording : Wording
        What edges are called.
    """

    pen: Pen
    labels: bool
    legend: bool
    values: str = "attention"
    wording: Wording = field(default_factory=Wording)


def check_values(head: AttentionGraph, values: str) -> None:
    """Refuse values that are not known, or that a head lacks."""
    if values not in OPTIONS:
        known = ", ".join(map(repr, OPTIONS))
        raise SelectionError(f"values is one of {known}, not {values!r}.")
    if values not in head.edge_values:
        raise SelectionError(
            f"This head has no {values}; compute its graph with {OPTIONS[values]}."
        )
