"""Pictures of barcodes: one bar per component or loop, from its birth to its death."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gattn.drawing.canvas.fitting import pitch
from gattn.drawing.canvas.frame import describe, new_axes
from gattn.drawing.canvas.keys import Entry, add_key
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from gattn.analysis.shape.barcode import Barcode

_NAMES = {0: "components", 1: "loops"}
_COLOURS = {0: "#2471b1", 1: "#cc6a1b"}
_THICKEST, _THINNEST = 6.0, 0.6
_MOST = 150
"""How many bars are drawn per dimension, the longest ones."""


def draw_barcode(
    bars: Barcode,
    *,
    layer: int | None = None,
    head: int | None = None,
    ax: Axes | None = None,
    **options: Any,
) -> Axes:
    """Draw the bars of one head, up to 150 per dimension, the longest on top.

    Parameters
    ----------
    bars : Barcode
        What `gattn.analysis.barcode` returns.
    layer, head : int, optional
        Which head; by default the last one, or the last one of this layer.

    Raises
    ------
    SelectionError
        If there is no such head, or there are no bars.
    """
    found = list(dict.fromkeys(place[:2] for place in bars.index))
    if not found:
        raise SelectionError("There are no bars to draw: a single token has none.")
    places = [
        place
        for place in found
        if (layer is None or place[0] == layer) and (head is None or place[1] == head)
    ]
    if not places:
        raise SelectionError(f"There are no bars for layer {layer}, head {head}, only for {found}.")
    shown = bars.xs(places[-1], level=("layer", "head"))
    parts = {d: shown.loc[[d]] for d in sorted(set(shown.index), reverse=True)}
    count = sum(min(len(part), _MOST) for part in parts.values())
    if ax is None:
        ax = new_axes(6.4, float(np.clip(1.4 + 0.08 * count, 2.4, 8.0)))
    apart = pitch(ax, count, "y")
    style: dict[str, Any] = {"linewidth": float(np.clip(0.75 * apart, _THINNEST, _THICKEST))}
    entries: list[Entry] = []
    row = 0
    for dimension, part in parts.items():
        lengths = (part["death"] - part["birth"]).to_numpy()
        some = part.iloc[np.argsort(lengths, kind="stable")[-_MOST:]]
        rows = np.arange(row, row + len(some))
        row += len(some)
        style["color"] = _COLOURS[dimension]
        ax.hlines(rows, some["birth"], some["death"], **style | options)
        line = Line2D([], [], color=(style | options)["color"], linewidth=_THICKEST / 2)
        entries.append((line, _bars_named(dimension, len(some), len(part))))
    ax.set(ylim=(-1, row), yticks=[], xlabel="distance, 1 − attention", xlim=(0, 1.02))
    ax.spines[["top", "left", "right"]].set_visible(False)
    add_key(ax, entries)
    title = f"barcode · layer {places[-1][0]} · head {places[-1][1]}"
    describe(ax, bars.attrs, title)
    return ax


def _bars_named(dimension: int, shown: int, count: int) -> str:
    return f"{_NAMES[dimension]} ({f'{shown} of ' if shown < count else ''}{count})"
