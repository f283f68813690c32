"""Names along the sides of axes: tokens, heads, layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator

from gattn.drawing.canvas.fitting import Fitting, fitted, pitch, points, room
from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.canvas.labels import (
    fit,
    font_size,
    in_digits,
    shortened,
    small_size,
    smallest,
    text_style,
    widest_of,
    width_of,
)
from gattn.names.shortening import short_names
from gattn.names.text import wrapped
from gattn.names.tokens import grid_of

_BETWEEN = 0.5
"""The least distance between names side by side, in font sizes."""
_MOST_NUMBERS = 9
"""Between how many numbers along a side there are steps, at most."""
REACH = 0.3
"""The share of a picture's width or height that names beside it take at most."""


def label_tokens(
    ax: Axes, positions: Sequence[Any] | None, tokens: Sequence[str], side: str
) -> None:
    """Write tokens' texts along a side of axes, at 0, 1, 2 ..., as many as stay readable.

    Where not all do, they are numbered by their positions, unless they have none.
    """
    ax.tick_params(axis="x" if side == "x" else "y", length=0)
    say_patches(ax, tokens)
    fitted(ax, partial(_label_tokens, ax, positions, tokens, side))


def say_patches(ax: Axes, tokens: Iterable[str]) -> None:
    """Say in the caption how patches are named, if these tokens are."""
    if said := patches_said(tokens):
        Fitting.of(ax).note("patches", said)


def patches_said(*sides: Iterable[str]) -> str:
    """Say what the numbers in tokens' names are, if those are where patches lie; else nothing.

    Tokens may have their position before their name.
    """
    plain = [[token.rpartition(" ")[2] for token in tokens] for tokens in sides]
    return "patches are named row,column" * any(map(grid_of, plain))


def _label_tokens(
    ax: Axes, positions: Sequence[Any] | None, tokens: Sequence[str], side: str
) -> None:
    named = dict(zip(range(len(tokens)) if positions is None else positions, tokens, strict=True))
    low, high = ax.get_xlim() if side == "x" else ax.get_ylim()
    apart, reach = pitch(ax, abs(high - low), side), REACH * room(ax)[side == "x"]
    labels = fit(named, apart, rotations=[0, 45, 90] if side == "x" else [90], reach=reach)
    shown = [i for i, text in enumerate(labels.texts) if text]
    texts = [labels.texts[i] for i in shown]
    if positions is None:
        _note_skipped(ax, shown, side)
    if positions is None and labels.rotation:
        texts = shortened([shown_text(tokens[i]) for i in shown], reach / labels.size)
    style: dict[str, Any] = {"size": labels.size, **text_style(texts)}
    if side == "x":
        turned: dict[str, Any] = {"ha": "center", "rotation_mode": "default"}
        if labels.rotation == 45:
            turned = {"ha": "right", "rotation_mode": "anchor"}
        turned["rotation"] = labels.rotation
        ax.set_xticks(shown, texts, **style, **turned)
    else:
        ax.set_yticks(shown, texts, **style)


def _note_skipped(ax: Axes, shown: Sequence[int], side: str) -> None:
    """Say in the caption if only some rows or columns are named: names do not show it."""
    step = shown[1] - shown[0] if len(shown) > 1 else 1
    what = "column" if side == "x" else "row"
    Fitting.of(ax).note(f"{what}s", f"one {what} in {step} is named" * (step > 1))


def space_numbers(ax: Axes) -> None:
    """Write as many numbers below axes as have room."""
    ax.xaxis.set_major_formatter(lambda value, _: in_digits(value))
    fitted(ax, partial(_space_numbers, ax))


def _space_numbers(ax: Axes) -> None:
    axis = ax.xaxis
    size = FontProperties(size=mpl.rcParams["xtick.labelsize"]).get_size_in_points()
    low, high = sorted(axis.get_view_interval())
    for most in range(_MOST_NUMBERS, 0, -1):
        locator = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10])
        shown = [at for at in locator.tick_values(low, high) if low <= at <= high]
        wide = (widest_of(in_digits(at) for at in shown) + _BETWEEN) * size
        if len(shown) < 2 or wide <= points(ax)[0] * (shown[1] - shown[0]) / (high - low):
            break
    axis.set_major_locator(locator)


def label_columns(ax: Axes, names: Sequence[str]) -> None:
    """Name the columns of a matrix, in lines if these keep the names upright, or else turned."""
    ax.tick_params(axis="x", length=0)
    fitted(ax, partial(_label_columns, ax, names))


def _label_columns(ax: Axes, names: Sequence[str]) -> None:
    whole = [shown_text(name) for name in names]
    for size in (0.9 * font_size(), small_size(), smallest()):
        apart = pitch(ax, len(names), "x") / size - _BETWEEN
        lines = [wrapped(name, apart, width_of) for name in whole]
        if widest_of(line for text in lines for line in text.split("\n")) <= apart:
            style: dict[str, Any] = {"size": size, "rotation": 0, "ha": "center"}
            ax.set_xticks(range(len(lines)), lines, **style, **text_style(lines))
            return
    _label_tokens(ax, None, names, "x")


def label_rows(ax: Axes, names: Sequence[str], stacks: Sequence[str] = ()) -> None:
    """Name the rows of a matrix, as many as stay readable, after their stacks if there are several.

    Where there is no room, stacks are shortened, and what tells the rows of one apart is not.
    """
    ax.tick_params(axis="y", length=0)
    fitted(ax, partial(_label_rows, ax, names, stacks if len(set(stacks)) > 1 else ()))


def _label_rows(ax: Axes, names: Sequence[str], stacks: Sequence[str]) -> None:
    reach = REACH * room(ax)[0]
    labels = fit(dict(enumerate(names)), pitch(ax, len(names), "y"), rotations=[90])
    shown = [i for i, text in enumerate(labels.texts) if text]
    _note_skipped(ax, shown, "y")
    limit = reach / labels.size
    if stacks:
        limit -= widest_of([f" {name}" for name in names])
        every = list(dict.fromkeys(stacks))
        short = dict(zip(every, short_names(every, limit), strict=True))
        named = [f"{short[stacks[i]]} {names[i]}" for i in shown]
    else:
        named = shortened([shown_text(names[i]) for i in shown], limit)
    ax.set_yticks(shown, named, size=labels.size, **text_style(named))
