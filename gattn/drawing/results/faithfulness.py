"""Pictures of deletion and insertion curves, and of how rankings agree with effects."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from gattn.drawing.canvas.colours import is_dark
from gattn.drawing.canvas.fitting import fitted, points, room
from gattn.drawing.canvas.frame import describe, new_axes, shown_text
from gattn.drawing.canvas.keys import Entry, add_key
from gattn.drawing.canvas.labels import font_size, small_size, text_style, widest_of, width_of
from gattn.errors import SelectionError
from gattn.names.text import wrapped

_INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DARK_INKS = ("#56b4e9", *_INKS[1:5], "#4f8fd6")
_DASHES = ("-", "--", "-.", ":")
_KEY_LINE = 5.0
"""How wide the line of an entry of a key is, with the room around it, in font sizes."""
_MARKERS = "osD^vP"
"""The marks of curves, whose colours may be about the same grey."""
_APART, _MOST = 0.05, 0.6
"""How far a key stays above curves, and the share of the axes it takes at most."""
_BASELINE = "random"


def draw_curves(table: pd.DataFrame, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw how a metric changes as more and more is cut, or restored.

    Parameters
    ----------
    table : DataFrame
        What `gattn.analysis.deletion_curve` or `insertion_curve` returns.

    Raises
    ------
    SelectionError
        If there are no curves.
    """
    names = [name for name in table.columns if name not in ("count", "random_low", "random_high")]
    if not names or not len(table):
        raise SelectionError("There is nothing to draw: the table has no curves.")
    ax = ax if ax is not None else new_axes(6.4, 4.2)
    shares = table.index.to_numpy(dtype=np.float64)
    inks = cycle(_inks())
    lines: list[Entry] = []
    for number, name in enumerate(name for name in names if name != _BASELINE):
        style: dict[str, Any] = {"color": next(inks), "ls": _DASHES[number // len(_INKS) % 4]}
        label = shown_text(str(name), limit=40)
        style |= {"marker": _MARKERS[number % len(_MARKERS)], "ms": 3}
        (line,) = ax.plot(shares, table[name], **(style | options))
        lines.append((line, label))
    if _BASELINE in table.columns:
        lines.append((_draw_baseline(ax, shares, table), "random orders: mean, range"))
    key = add_key(ax, lines, loc="best", fontsize=0.85 * font_size())
    fitted(ax, partial(_clear_key, ax, key, [name for _, name in lines], ax.get_ylim()))
    unit, done = table.attrs.get("unit", "edge"), table.attrs.get("inserted", False)
    ax.set_xlabel(f"share of the {unit}s " + ("restored" if done else "cut"))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    metric = shown_text(str(table.attrs.get("metric", "")), limit=60)
    ax.set_ylabel(metric, **text_style([metric]))
    ax.spines[["top", "right"]].set_visible(False)
    describe(ax, table.attrs)
    return ax


def _clear_key(ax: Axes, key: Legend, names: list[str], limits: tuple[float, float]) -> None:
    """Break names that are wider than the axes, and raise these where curves leave no room."""
    for text, name in zip(key.get_texts(), names, strict=True):
        wide = points(ax)[0] / float(text.get_fontsize()) - _KEY_LINE
        text.set_text(wrapped(name, wide, width_of))
    low, high = limits
    ax.set_ylim(low, high)
    box = key.get_window_extent()
    paths = [line.get_path().transformed(line.get_transform()) for line in ax.lines]
    share = min(box.height / ax.bbox.height + _APART, _MOST)
    if any(path.intersects_bbox(box, filled=False) for path in paths):
        ax.set_ylim(low, low + (high - low) / (1 - share))


def _inks() -> tuple[str, ...]:
    return _DARK_INKS if is_dark() else _INKS


def draw_agreement(table: pd.DataFrame, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw correlations of sizes with their intervals, and correlations with signs as diamonds.

    Parameters
    ----------
    table : DataFrame
        What `gattn.analysis.rank_agreement` returns.

    Raises
    ------
    SelectionError
        If there are no rankings.
    """
    if not len(table) or not {"correlation", "low", "high"} <= set(table.columns):
        raise SelectionError("There is nothing to draw: the table has no correlations.")
    ax = ax if ax is not None else new_axes(6.4, 1.9 + 0.34 * len(table))
    rows = np.arange(len(table))
    found = table["correlation"].to_numpy(dtype=np.float64)
    ends = table[["low", "high"]].to_numpy(dtype=np.float64).T
    away = np.clip(np.stack([found - ends[0], ends[1] - found]), 0, None)
    style: dict[str, Any] = {"fmt": "o", "color": _inks()[0], "capsize": 3} | options
    ax.axvline(0, color="0.5", lw=0.8)
    entries: list[Entry] = [
        (ax.errorbar(found, rows, xerr=away, **style), "of sizes, 95 % interval")
    ]
    signed = table.get("signed_correlation")
    if signed is not None and signed.notna().any():
        (diamonds,) = ax.plot(signed, rows, "D", mfc="none", color=_inks()[1])
        entries.append((diamonds, "with signs"))
    small = 0.8 * font_size()
    for row, (p, number) in enumerate(zip(table["p_value"], table["number"], strict=True)):
        said = f"p {'< 0.001' if p < 0.001 else f'= {p:.2g}'}, n = {number}"
        ax.text(1.02, row, said, va="center", size=small, transform=ax.get_yaxis_transform())
    names = [shown_text(str(name), limit=30) for name in table.index]
    ax.set_yticks(rows, names, **text_style(names))
    ax.set(xlim=(-1.02, 1.02), ylim=(len(table) - 0.4, -0.6))
    ax.set_xlabel("rank correlation with effects")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if len(entries) > 1:
        wide = (widest_of([name for _, name in entries]) + _KEY_LINE) * small_size() * 2
        columns = 2 if wide <= room(ax)[0] else 1
        add_key(ax, entries, ncols=columns, loc="upper left", bbox_to_anchor=(0, -0.3))
    describe(ax, table.attrs)
    return ax


def _draw_baseline(ax: Axes, shares: np.ndarray[Any, Any], table: pd.DataFrame) -> Line2D:
    middle = table[_BASELINE].to_numpy(dtype=np.float64)
    ink = ax.xaxis.label.get_color()
    (line,) = ax.plot(shares, middle, color=ink, lw=1, alpha=0.7)
    if {"random_low", "random_high"} <= set(table.columns):
        low, high = (table[f"random_{end}"].to_numpy(dtype=np.float64) for end in ("low", "high"))
        ax.fill_between(shares, low, high, color=ink, alpha=0.12, lw=0)
    return line
