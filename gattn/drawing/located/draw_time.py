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

from gattn.drawing.canvas.colours import beyond_said, colour_map, end_of
from gattn.drawing.canvas.frame import (
    edits_said,
    given_axes,
    heads_title,
    marked_edited,
    new_axes,
    write_texts,
)
from gattn.drawing.canvas.keys import add_colour_bar, begin_of, range_said
from gattn.drawing.canvas.labels import in_digits, in_percent
from gattn.drawing.canvas.sides import label_rows
from gattn.drawing.chosen.given import checks_given, refuse_unused
from gattn.drawing.chosen.queries import Tokens, check_same_tokens, rows_of, sides
from gattn.drawing.chosen.shown import kept_by
from gattn.drawing.located.clock import in_clock, label_times, ticks_between, unit_of
from gattn.drawing.located.sounds import ROOM, Sound, read_sound
from gattn.drawing.located.steps import Steps
from gattn.drawing.matrices.arrays import ArrayCells, PairCells
from gattn.drawing.matrices.cells import Pool, check_pool
from gattn.drawing.matrices.heatmaps import hatch_stretches, say_pooled
from gattn.drawing.matrices.images import add_cells
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.heads.geometry import Times
from gattn.heads.head import AttentionGraph

_LEAST = 0.0005
"""The least share that captions tell."""


@checks_given
def draw_time(
    heads: AttentionGraph | Iterable[AttentionGraph],
    query: Any = None,
    *,
    key: Any = None,
    waveform: Any = None,
    rate: float | None = None,
    vmax: float | None = None,
    pool: Pool = "mean",
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw attention over seconds: of a query as a curve, or of all as a heatmap.

    In a heatmap rows are queries, and keys lie where they are in time, empty where there is no
    edge and hatched where there is no key; colours, like the curve's
    height, run from 0 to the largest number shown; those of nearly even attention from the least,
    and the caption says so, as over an image. With a waveform, seconds end where it does, and the
    caption says how much of the attention lies after its end. `figsize`, `ax`, `cmap`, `labels` and
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
    vmax : float, optional
        The end of the scale, to compare pictures.
    pool : {"mean", "max"}
        What a pixel of the heatmap shows that stands for several cells.

    Raises
    ------
    SelectionError
        If there is no such query, key or colour map.
    ShapeError
        If it is not known when tokens are, two share a time so that one would not be seen, or the
        waveform cannot be read.
    """
    several = [heads] if isinstance(heads, AttentionGraph) else list(heads)
    if not several or not all(isinstance(head, AttentionGraph) for head in several):
        raise SelectionError("Over seconds are drawn a head, or several of the same tokens.")
    if query is not None and key is not None:
        raise SelectionError("Give a query or a key, not both: what it reads, or what reads it.")
    end_of(vmax)
    check_pool(pool)
    if query is not None or key is not None:
        all_queries = "it is for the heatmap of all queries, which is drawn where none is named"
        refuse_unused("cmap", all_queries, is_given=cmap is not None)
        refuse_unused("pool", all_queries, is_given=pool != "mean")
    check_same_tokens(several)
    sound = read_sound(waveform, rate)
    queries, keys = sides(several[0])
    asked, timed = (queries, keys) if key is None else (keys, queries)
    steps = Steps.of(timed)
    wanted = query if key is None else key
    rows = None if wanted is None else asked.find(wanted)
    matrix = _matrix(several, asked, rows, by_key=key is not None)
    ax = given_axes(ax, figsize)
    if ax is None:
        ax = new_axes(7.2, 2.9 if rows else min(max(2.6, 1.7 + 0.24 * len(matrix)), 8.0))
    end = min(steps.stop, sound.seconds) if sound else steps.stop
    if rows is None:
        notes = _draw_heatmap(
            ax, matrix, _edges(several), steps, queries, sound, vmax, pool, cmap, labels, legend
        )
    else:
        notes = _draw_curve(ax, matrix[0], steps, sound, vmax)
        _mark_own(ax, asked, rows)
    ax.set_xlim(steps.start, max(end, steps.start + 1e-9))
    label_times(ax)
    if sound:
        sound.draw(ax)
    edits = union(head.edits for head in several)
    said = _said(several, asked, rows, steps, matrix, end, by_key=key is not None)
    beyond = beyond_said(float(np.abs(matrix[:, steps.tokens]).max(initial=0.0)), vmax)
    caption = "; ".join(filter(None, [*said, *notes, beyond, edits_said(edits)]))
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


def _edges(heads: Sequence[AttentionGraph]) -> NDArray[np.float64]:
    """Return 1 where any head has an edge, 0 elsewhere."""
    found = np.zeros((heads[0].graph.num_queries, heads[0].graph.num_keys))
    for head in heads:
        found[head.query, head.key] = 1.0
    return found


def _draw_curve(
    ax: Axes, row: NDArray[np.float64], steps: Steps, sound: Sound | None, vmax: float | None
) -> list[str]:
    laid, edges = steps.with_gaps(row[None])
    colour = colour_map(None, is_signed=False)(0.7)
    ax.stairs(laid[0], edges, fill=True, color=colour, alpha=0.35, gid="gattn-area")
    ax.stairs(laid[0], edges, color=colour, linewidth=1.0, gid="gattn-curve", baseline=None)
    least = float(np.nanmin(laid, initial=0.0))
    most = float(np.nanmax(laid, initial=0.0)) if vmax is None else float(vmax)
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
    is_edge: NDArray[np.float64],
    steps: Steps,
    queries: Tokens,
    sound: Sound | None,
    vmax: float | None,
    pool: Pool,
    cmap: str | Colormap | None,
    labels: bool,
    legend: bool,
) -> list[str]:
    laid, edges = steps.with_gaps(matrix)
    rows = len(matrix)
    is_signed = bool((matrix < 0).any())
    most = float(np.nanmax(np.abs(laid), initial=0.0)) if vmax is None else float(vmax)
    least = float(np.nanmin(laid, initial=most)) if vmax is None else 0.0
    begin = begin_of(least, most)
    norm = Normalize(-most if is_signed else begin, most or 1.0)
    colours = colour_map(cmap, is_signed=is_signed, is_area=True)
    cells = PairCells(ArrayCells(laid, pool, edges), steps.with_gaps(is_edge)[0])
    extent = (edges[0], edges[-1], rows - 0.5, -0.5)
    image = add_cells(ax, cells, cmap=colours, norm=norm, extent=extent, gid="gattn-cells")
    image.set_clip_path(ax.patch)
    gaps = np.isnan(laid).all(axis=0)
    if gaps.any():
        ends = zip(edges[:-1][gaps], np.diff(edges)[gaps], strict=True)
        hatch_stretches(ax, list(ends), (-0.5, rows))
    say_pooled(ax, laid.shape, pool)
    ax.set_ylim(rows - 0.5, rows - 0.5 - rows / ROOM if sound else -0.5)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("query")
    if isinstance(queries.geometry, Times) and _is_in_order(queries.geometry):
        _label_seconds(ax, queries.geometry)
    elif labels:
        label_rows(ax, list(queries.labels))
        ax.yaxis.set_major_locator(FixedLocator([t for t in ax.get_yticks() if 0 <= t < rows]))
    else:
        ax.set_yticks([])
    if legend:
        add_colour_bar(ScalarMappable(norm, colours), "attention", ax, ticks=MaxNLocator(5))
    return [range_said(begin, most)]


def _is_in_order(times: Times) -> bool:
    """Whether all tokens have times, each a later one than the one before."""
    return bool(times.is_somewhere.all() and (np.diff(times.stretches[:, 0]) > 0).all())


def _label_seconds(ax: Axes, times: Times) -> None:
    """Write seconds beside the rows."""
    starts = times.stretches[:, 0]
    ticks, unit = ticks_between(starts[0], starts[-1], 5)
    places = np.interp(ticks, starts, np.arange(len(starts)))
    ax.set_yticks(places, [in_clock(tick, unit) for tick in ticks])
    ax.set_ylabel(f"query, {unit}")


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


def _in_clock(asked: Tokens, rows: Sequence[int], end: float) -> str:
    """Return when a query is, as an axis up to some second tells it, if not in seconds."""
    unit = unit_of(end)
    if unit == "seconds" or not isinstance(asked.geometry, Times) or len(rows) > 1:
        return ""
    if not asked.geometry.is_somewhere[rows[0]]:
        return ""
    begin, last = (in_clock(one, unit) for one in asked.geometry.stretches[rows[0]])
    return f" ({'–'.join(dict.fromkeys([begin, last]))} {unit})"


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
        called = asked.called(rows) + _in_clock(asked, rows, end)
        said.append(f"who reads {called}{mean}" if by_key else f"what {called} {reads}{mean}")
    if not by_key:
        every = slice(None) if rows is None else rows
        whole = float(np.mean([head.total_mass[every].mean() for head in heads])) * len(matrix)
        after = steps.tokens[steps.starts >= end - 1e-9]
        apart = np.setdiff1d(np.arange(matrix.shape[1]), steps.tokens)
        for tokens, where in ((apart, "on tokens without a time"), (after, "after the sound")):
            if len(tokens) and whole:
                share = float(np.abs(matrix[:, tokens]).sum()) / whole
                told = f"{in_percent(share)} of the attention lies {where}"
                said += [told] * (share >= _LEAST)
    if any(head.graph.num_edges < int(head.total_edges.sum()) for head in heads):
        said.append(kept_by(heads))
    if steps.overlap:
        said.append("stretches that overlap are drawn to their middle")
    return said
