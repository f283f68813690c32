"""Pictures of scores over a corpus: all heads as a heatmap, or the largest ones ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import KINDS, colour_map, ink_on, is_dark
from gattn.drawing.canvas.fitting import pitch
from gattn.drawing.canvas.frame import LARGEST, describe, name_side, new_axes, shown_text
from gattn.drawing.canvas.sides import label_rows, label_tokens, space_numbers
from gattn.drawing.chosen.given import refuse_unused
from gattn.drawing.matrices.heatmaps import draw_heatmap, write_cells
from gattn.errors import SelectionError
from gattn.names.text import worded

_SMALLEST = 24.0
"""The side in points of the smallest cell that has a line."""
_HALF, _LIFT = 0.4, 0.17
"""Half the width of the scale within a cell, and how far it and the number are from its middle."""
_RANKED = 20


@dataclass(frozen=True)
class _Shown:
    """What is drawn of a table: which column, in which colours, and which heads are marked."""

    table: pd.DataFrame
    column: str
    name: str
    is_signed: bool
    marked: NDArray[np.bool_]
    mark: str = ""

    @property
    def values(self) -> NDArray[np.float64]:
        """The numbers that are drawn."""
        return self.table[self.column].to_numpy(dtype=np.float64)

    @property
    def intervals(self) -> NDArray[np.float64]:
        """The ends of the intervals, (2, heads)."""
        return self.table[["low", "high"]].to_numpy(dtype=np.float64).T

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """The heads, each a stack, a layer and a number."""
        return self.table.index.tolist()

    def scale(self) -> tuple[float, float]:
        """Choose the ends of the scale: from 0, or around 0, so that all intervals lie on it."""
        drawn = np.concatenate([self.values[None], self.intervals])
        known = drawn[np.isfinite(drawn)]
        top = float(known.max(initial=0))
        if self.is_signed:
            top = float(np.abs(known).max(initial=0)) or 1.0
            return -top, top
        return min(0.0, float(known.min(initial=0))), top or 1.0


def draw_statistics(
    table: pd.DataFrame,
    kind: str = "map",
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    count: int | None = None,
    **options: Any,
) -> Axes:
    """Draw the means of heads with their intervals.

    A map has one cell per head. If cells are large enough, each has a line: from left to right the
    cell is the scale of the colours, the line is the interval, and its tick the mean.

    Parameters
    ----------
    table : DataFrame
        What `gattn.surveys.ask.statistics.head_statistics` returns, or some of its rows.
    kind : {"map", "ranked"}
        All heads by layer and head; or the largest ones, as points with whiskers.
    count : int, optional
        How many heads are ranked, by default 20.

    Raises
    ------
    SelectionError
        If there is nothing to draw, or no such kind or colour map.
    """
    _check_columns(table, "mean")
    is_signed = bool((table["mean"] < 0).any())
    marked = np.zeros(len(table), dtype=bool)
    shown = _Shown(table, "mean", str(table.attrs.get("name", "mean")), is_signed, marked)
    return _draw(shown, kind, ax, cmap, count, options)


def draw_comparison(
    table: pd.DataFrame,
    kind: str = "map",
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    count: int | None = None,
    alpha: float = 0.05,
    **options: Any,
) -> Axes:
    """Draw how heads differ, with intervals as in `draw_statistics`, and mark those that do.

    Heads with a corrected p below `alpha` are outlined in a map, and filled in a ranking.

    Parameters
    ----------
    table : DataFrame
        What `gattn.surveys.ask.comparison.compare_heads` returns, or some of its rows.
    kind : {"map", "ranked"}
        All heads by layer and head; or those that differ most, as points with whiskers.
    count : int, optional
        How many heads are ranked, by default 20.
    alpha : float
        Heads with a corrected p below this are marked.

    Raises
    ------
    SelectionError
        If there is nothing to draw, or no such kind or colour map.
    """
    _check_columns(table, "difference", "p_corrected")
    marked = (table["p_corrected"] < alpha).to_numpy()
    said = f"corrected p < {alpha:.3g} ({int(marked.sum()):,} of {len(table):,})"
    name = f"difference in {table.attrs.get('name', 'score')}"
    return _draw(
        _Shown(table, "difference", name, True, marked, said), kind, ax, cmap, count, options
    )


def _check_columns(table: pd.DataFrame, *columns: str) -> None:
    if not len(table) or not {*columns, "low", "high"} <= set(table.columns):
        raise SelectionError(
            f"There is nothing to draw: the table has no rows, or lacks {', '.join(columns)}, low "
            "or high."
        )


def _draw(
    shown: _Shown,
    kind: str,
    ax: Axes | None,
    cmap: str | Colormap | None,
    count: int | None,
    options: Mapping[str, Any],
) -> Axes:
    if kind == "map":
        refuse_unused("count", "kind='ranked' shows so many heads", is_given=count is not None)
        return _draw_map(shown, ax, cmap, options)
    if kind == "ranked":
        refuse_unused("cmap", "kind='map' has colours", is_given=cmap is not None)
        return _draw_ranked(shown, ax, _RANKED if count is None else count, options)
    raise SelectionError(f"kind is 'map' or 'ranked', not {kind!r:.200}.")


def _draw_map(
    shown: _Shown, ax: Axes | None, cmap: str | Colormap | None, options: Mapping[str, Any]
) -> Axes:
    rows = sorted({place[:2] for place in shown.places})
    heads = sorted({head for *_, head in shown.places})
    cells = [(rows.index(place[:2]), heads.index(place[2])) for place in shown.places]
    if ax is None:
        wide, high = 2.4 + 0.55 * len(heads), 1.6 + 0.42 * len(rows)
        ax = new_axes(min(LARGEST, max(5.0, wide)), min(LARGEST, max(2.4, high)))
    values = np.full((len(rows), len(heads)), np.nan)
    values[tuple(np.transpose(cells))] = shown.values
    colours = colour_map(cmap, is_signed=shown.is_signed, is_area=True)
    style = {"norm": Normalize(*shown.scale())} | dict(options)
    draw_heatmap(ax, values, shown_text(shown.name), colours, **style)
    painted = ax.images[-1].to_rgba(np.ma.masked_invalid(values))
    has_lines = _has_room(ax, values.shape)
    write_cells(ax, values, painted, lift=_LIFT * has_lines)
    inks = [ink_on(painted[cell]) for cell in cells]
    if has_lines:
        _draw_lines(ax, shown, cells, inks)
    for (i, j), is_marked, ink in zip(cells, shown.marked, inks, strict=True):
        if is_marked:
            place = (j - 0.46, i - 0.46)
            ax.add_patch(Rectangle(place, 0.92, 0.92, fill=False, ec=ink, lw=1.4))
    for i, j in set(np.ndindex(values.shape)) - set(cells):  # no such head
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, color=ax.get_facecolor()))
    _name_sides(ax, shown, rows, heads)
    on = "in a cell: the interval, from left to right on the scale of the colours"
    notes = [on if has_lines else "cells are too small to show the intervals"]
    notes += [f"outlined: {shown.mark}"] * bool(shown.mark)
    notes += ["hatched: no score"] * bool(np.isnan(shown.values).any())
    describe(ax, shown.table.attrs, notes=notes)
    return ax


def _has_room(ax: Axes, shape: tuple[int, ...]) -> bool:
    sides = (pitch(ax, count, side) for count, side in zip(shape, "yx", strict=True))
    return min(sides) >= _SMALLEST


def _draw_lines(ax: Axes, shown: _Shown, cells: list[tuple[int, int]], inks: list[str]) -> None:
    """Draw in each cell the scale as a thin line, on it the interval, and the mean as a tick."""
    bottom, top = shown.scale()
    row, column = np.transpose(cells).astype(np.float64)
    row += 1.5 * _LIFT
    middle = (bottom + top) / 2
    low, mean, high = (
        column + 2 * _HALF * (numbers - middle) / (top - bottom)
        for numbers in (shown.intervals[0], shown.values, shown.intervals[1])
    )

    def inks_of(heads: NDArray[np.bool_]) -> list[str]:
        return [ink for ink, is_drawn in zip(inks, heads, strict=True) if is_drawn]

    known, sure = np.isfinite(mean), np.isfinite(low + high)
    ax.hlines(row[known], (column - _HALF)[known], (column + _HALF)[known], inks_of(known), lw=0.4)
    ax.hlines(row[sure], low[sure], high[sure], inks_of(sure), lw=3)
    ax.vlines(mean[known], row[known] - 0.09, row[known] + 0.09, inks_of(known), lw=1)


def _name_sides(ax: Axes, shown: _Shown, rows: list[tuple[str, int]], heads: list[int]) -> None:
    stacks = [stack for stack, _ in rows]
    label_rows(ax, [str(n) for _, n in rows], stacks)
    label_tokens(ax, heads, list(map(str, heads)), "x")
    ax.set(xlabel="head", ylabel="layer")
    for i in range(1, len(rows)):
        if stacks[i] != stacks[i - 1]:
            ax.axhline(i - 0.5, color=ax.get_facecolor(), lw=4)
    ax.spines[:].set_visible(False)


def _draw_ranked(shown: _Shown, ax: Axes | None, count: int, options: Mapping[str, Any]) -> Axes:
    values = shown.values
    known = np.flatnonzero(np.isfinite(values))
    largest = known[np.argsort(-np.abs(values[known]), kind="stable")][:count]
    order = largest[np.argsort(-values[largest], kind="stable")]
    if not len(order):
        raise SelectionError("There is nothing to draw: no head has a score, or count is 0.")
    if ax is None:
        ax = new_axes(6.4, min(LARGEST, 1.8 + 0.24 * len(order)))
    rows, found, ends = np.arange(len(order)), values[order], shown.intervals[:, order]
    away = np.clip(np.stack([found - ends[0], ends[1] - found]), 0, None)
    colour = KINDS[4] if is_dark() else KINDS[0]
    style: dict[str, Any] = {"fmt": "none", "color": colour, "capsize": 2.5, "lw": 1.4}
    ax.errorbar(found, rows, xerr=away, **(style | dict(options)))
    filled = shown.marked[order] if shown.mark else np.ones(len(order), dtype=bool)
    fills = np.where(filled, colour, "none")
    ax.scatter(found, rows, s=26, c=fills, edgecolors=colour, zorder=3)
    if shown.is_signed:
        ax.axvline(0, color="0.5", lw=0.8, zorder=0)
    places = [shown.places[i] for i in order]
    label_rows(ax, [f"{n}.{m}" for _, n, m in places], [stack for stack, *_ in places])
    ax.set(ylim=(len(order) - 0.4, -0.6), ylabel="head")
    name_side(ax, "x", shown_text(worded(shown.name)))
    space_numbers(ax)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(axis="y", color="0.5", alpha=0.2)
    notes = []
    if len(order) < len(values):
        notes.append(f"the {len(order)} largest of {len(values):,} heads")
    notes += [f"filled: {shown.mark}"] * bool(shown.mark)
    describe(ax, shown.table.attrs, notes=notes)
    return ax
