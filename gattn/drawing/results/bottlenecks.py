"""Pictures of bottlenecks: tokens across, layers up, and the minimum cut between two tokens."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from gattn.drawing.canvas.frame import LARGEST, describe, new_axes, width_of_tokens
from gattn.drawing.canvas.sides import label_tokens

_CUT = "#d55e00"


def draw_bottlenecks(found: pd.DataFrame, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw a minimum cut among all nodes and edges that carry information from token to token.

    Parameters
    ----------
    found : Bottlenecks
        What `gattn.analysis.bottlenecks` returns.
    **options
        Passed on to the lines, such as ``color``.
    """
    tokens, between, cut = (found.attrs[name] for name in ("tokens", "between", "cut"))
    if ax is None:
        ax = new_axes(width_of_tokens(len(tokens)), min(LARGEST, 1.8 + 0.5 * len(between)))
    lines = [((key, depth), (query, depth + 1)) for depth, query, key in found.attrs["edges"]]
    style: dict[str, Any] = {"color": "#8886", "linewidths": 0.8, "zorder": 1} | options
    ax.add_collection(LineCollection(lines, **style))
    places = [(row, depth) for depth, rows in enumerate(between) for row in rows]
    ax.scatter(*_x_and_y(places), s=14, color="0.45", zorder=2)
    is_of_tokens = "position" in found.columns
    if is_of_tokens:
        ax.scatter(*_x_and_y([(row, depth) for depth, row in cut]), s=60, color=_CUT, zorder=3)
    else:
        red = [((key, depth), (query, depth + 1)) for depth, query, key in cut]
        ax.add_collection(LineCollection(red, color=_CUT, linewidths=2, zorder=3))
    ax.set(xlim=(-0.5, len(tokens) - 0.5), ylim=(-0.3, len(between) - 0.7), ylabel="layers")
    label_tokens(ax, range(len(tokens)), tokens, "x")
    ax.set_yticks(range(len(between)))
    ax.spines[["top", "right"]].set_visible(False)
    what = "token" if is_of_tokens else "edge"
    title = f"bottlenecks · minimum cut: {len(cut)} {what}{'' if len(cut) == 1 else 's'}"
    describe(ax, found.attrs, title)
    return ax


def _x_and_y(places: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [x for x, _ in places], [y for _, y in places]
