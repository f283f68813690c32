"""Attention over seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import NO_NUMBER, colour_map
from gattn.drawing.canvas.frame import (
    edits_said,
    heads_title,
    marked_edited,
    new_axes,
    pitch,
    write_texts,
)
from gattn.drawing.canvas.keys import add_colour_bar, begin_of, range_said
from gattn.drawing.canvas.labels import in_digits
from gattn.drawing.canvas.shown import kept_by
from gattn.drawing.canvas.sides import label_rows
from gattn.drawing.located.queries import Tokens, check_same_tokens, rows_of, sides
from gattn.drawing.located.sounds import ROOM, Sound, read_sound
from gattn.drawing.located.steps import Steps, pooled
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.heads.geometry import Times
from gattn.heads.head import AttentionGraph

_LEAST = 0.05
"""The least share, in percent, that captions tell."""


def draw_time(
    heads: AttentionGraph | Iterable[AttentionGraph],
    query: Any = None,
    *,
    key: Any = None,
    waveform: Any = None,
    rate: float | None = None,
    top: float | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw attention over seconds: of a query as a curve, or of all as a heatmap.

    In a heatmap rows are queries, and keys lie where they are in time; colours, like the curve's
    height, run from 0 to the largest number shown; those of nearly even attention from the least,
    and the caption says so, as over an image. With a waveform, seconds end where it does, and the
    caption says how much of the attention lies after its end. `ax`, `cmap`, `labels` and
    `legend`: see `gattn.drawing`.

    Parameters
    ----------
    heads : AttentionGraph or iterable of them
        A head, or several of the same tokens, whose mean is shown. Its keys, or with `key` its
        queries, have times; see `AttentionTrace.at_times`.
    query : int, str, float, or list of these, optional
        A query by position or text, or by the second that it is in; of several the mean is shown.
        By default all, as a heatmap.
    key : as query, optional
        Instead of a query: what each query gives to this key, over the queries' seconds.
    waveform : array or Tensor (samples,), optional
        The sound, drawn above.
    rate : float, optional
        The waveform's samples per second.
    top : float, optional
        The end of the scale, to compare pictures.

    Raises
    ------
    SelectionError
        If there is no such query, key or colour map.
    ShapeError
        If it is not known when tokens are, or the waveform cannot be read.
    """
    several = [heads] if isinstance(heads, AttentionGraph) else list(heads)
    if not several or not all(isinstance(head, AttentionGraph) for head in several):
        raise SelectionError("Over seconds are drawn a head, or several of the same tokens.")
    if query is not None and key is not None:
        raise SelectionError("Give a query or a key, not both: what it reads, or what reads it.")
    if top is not None and not (isinstance(top, int | float) and 0 < top < np.inf):
        raise SelectionError(f"top is the end of the scale, a number above 0, not {top!r}.")
    check_same_tokens(several)
    sound = read_sound(waveform, rate)
    queries, keys = sides(several[0])
    asked, timed = (queries, keys) if key is None else (keys, queries)
    steps = Steps.of(timed)
    wanted = query if key is None else key
    rows = None if wanted is None else asked.find(wanted)
    matrix = _matrix(several, asked, rows, by_key=key is not None)
    if ax is None:
        ax = new_axes(7.2, 2.9 if rows else min(max(2.6, 1.7 + 0.24 * len(matrix)), 8.0))
    end = min(steps.stop, sound.seconds) if sound else steps.stop
    if rows is None:
        notes = _draw_heatmap(ax, matrix, steps, queries, sound, top, cmap, labels, legend)
    else:
        notes = _draw_curve(ax, matrix[0], steps, sound, top)
        _mark_own(ax, asked, rows)
    ax.set_xlim(steps.start, max(end, steps.start + 1e-9))
    ax.set_xlabel("seconds")
    if sound:
        sound.draw(ax)
    edits = union(head.edits for head in several)
    said = _said(several, asked, rows, steps, matrix, end, by_key=key is not None)
    caption = "; ".join(filter(None, [*said, *notes, edits_said(edits)]))
    write_texts(ax, marked_edited(heads_title(several), edits), caption)
    return ax


def _matrix(
    heads: Sequence[AttentionGraph], asked: Tokens, rows: list[int] | None, *, by_key: bool
) -> NDArray[np.float64]:
    """Average heads: one row of all queries' mean, or a row of each."""
    if rows is not None:
        parts = [rows_of(head, rows, "attention", by_key=by_key)[0] for head in heads]
        return np.asarray(np.mean(parts, axis=0))[None]
    dense = [head.to_dense().astype(np.float64) for head in heads]
    return np.asarray(np.mean(dense, axis=0))


def _draw_curve(
    ax: Axes, row: NDArray[np.float64], steps: Steps, sound: Sound | None, top: float | None
) -> list[str]:
    laid, edges = steps.with_gaps(row[None])
    colour = colour_map(None, is_signed=False)(0.7)
    ax.stairs(laid[0], edges, fill=True, color=colour, alpha=0.35, gid="gattn-area")
    ax.stairs(laid[0], edges, color=colour, linewidth=1.0, gid="gattn-curve", baseline=None)
    least = float(np.nanmin(laid, initial=0.0))
    most = float(np.nanmax(laid, initial=0.0)) if top is None else float(top)
    span = (most - least) or 1.0
    ax.set_ylim(least, least + span / (ROOM if sound else 0.95))
    ticks = MaxNLocator(4).tick_values(least, least + span)
    ax.set_yticks([tick for tick in ticks if least <= tick <= least + span * 1.001])
    ax.yaxis.set_major_formatter(lambda value, _: in_digits(value))
    ax.set_ylabel("attention")
    ax.spines[["top", "right"]].set_visible(False)
    return []


def _draw_heatmap(
    ax: Axes,
    matrix: NDArray[np.float64],
    steps: Steps,
    queries: Tokens,
    sound: Sound | None,
    top: float | None,
    cmap: str | Colormap | None,
    labels: bool,
    legend: bool,
) -> list[str]:
    laid, edges = steps.with_gaps(matrix)
    rows = len(matrix)
    down, across = (
        int(np.ceil(size / max(pitch(ax, 1, side), 50)))
        for size, side in zip(laid.shape, "yx", strict=True)
    )
    laid = pooled(pooled(laid, across, 1), down, 0)
    edges = np.append(edges[:-1][::across], edges[-1])
    heights = np.append(np.arange(0, rows, down), rows) - 0.5
    is_signed = bool((matrix < 0).any())
    most = float(np.nanmax(np.abs(laid), initial=0.0)) if top is None else float(top)
    least = float(np.nanmin(laid, initial=most)) if top is None else 0.0
    begin = begin_of(least, most)
    norm = Normalize(-most if is_signed else begin, most or 1.0)
    colours = colour_map(cmap, is_signed=is_signed, is_area=True).with_extremes(bad=NO_NUMBER)
    mesh = ax.pcolormesh(
        edges, heights, np.ma.masked_invalid(laid), cmap=colours, norm=norm,
        gid="gattn-cells",
    )  # fmt: skip
    mesh.set_rasterized(True)
    ax.set_ylim(rows - 0.5, rows - 0.5 - rows / ROOM if sound else -0.5)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("query")
    if isinstance(queries.geometry, Times) and queries.geometry.is_somewhere.all():
        _label_seconds(ax, queries.geometry)
    elif labels:
        label_rows(ax, list(queries.labels))
        ax.yaxis.set_major_locator(FixedLocator([t for t in ax.get_yticks() if 0 <= t < rows]))
    else:
        ax.set_yticks([])
    if legend:
        add_colour_bar(ScalarMappable(norm, colours), "attention", ax, ticks=MaxNLocator(5))
    pooled_by = f"a cell is the largest of {down} × {across}" if max(down, across) > 1 else ""
    return [part for part in (range_said(begin, most), pooled_by) if part]


def _label_seconds(ax: Axes, times: Times) -> None:
    """Write seconds beside the rows."""
    starts = times.stretches[:, 0]
    ticks = np.asarray(MaxNLocator(5).tick_values(starts[0], starts[-1]))
    places = np.interp(ticks, starts, np.arange(len(starts)), left=np.nan, right=np.nan)
    is_there = ~np.isnan(places)
    ax.set_yticks(places[is_there], [in_digits(tick) for tick in ticks[is_there]])
    ax.set_ylabel("query, seconds")


def _mark_own(ax: Axes, asked: Tokens, rows: Sequence[int]) -> None:
    """Shade when the queries themselves are, if they have times."""
    if not isinstance(asked.geometry, Times) or len(rows) == len(asked.positions):
        return
    for start, stop in asked.geometry.stretches[sorted(set(rows))].tolist():
        if not np.isnan(start):
            ax.axvspan(
                start, stop, color=mpl.rcParams["text.color"], alpha=0.25, linewidth=0,
                gid="gattn-outline",
            )  # fmt: skip


def _said(
    heads: Sequence[AttentionGraph],
    asked: Tokens,
    rows: list[int] | None,
    steps: Steps,
    matrix: NDArray[np.float64],
    end: float,
    *,
    by_key: bool,
) -> list[str]:
    said = []
    if rows is not None:
        mean = ", on average" * (len(rows) > 1)
        reads = "reads" if len(rows) == 1 else "read"
        called = asked.called(rows)
        said.append(f"who reads {called}{mean}" if by_key else f"what {called} {reads}{mean}")
    if not by_key:
        every = slice(None) if rows is None else rows
        whole = float(np.mean([head.total_mass[every].mean() for head in heads])) * len(matrix)
        after = steps.tokens[steps.starts >= end - 1e-9]
        apart = np.setdiff1d(np.arange(matrix.shape[1]), steps.tokens)
        for tokens, where in ((apart, "on tokens without a time"), (after, "after the sound")):
            if len(tokens) and whole:
                share = 100 * float(np.abs(matrix[:, tokens]).sum()) / whole
                told = f"{share:.1f} % of the attention lies {where}"
                said += [told] * (share >= _LEAST)
    if any(head.graph.num_edges < int(head.total_edges.sum()) for head in heads):
        said.append(kept_by(heads))
    if steps.overlap:
        said.append("stretches that overlap are drawn to their middle")
    return said
