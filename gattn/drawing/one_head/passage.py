"""The text itself, each token shaded by what one query reads of it, or by how it reads one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.transforms import Affine2D, BboxTransformTo, ScaledTranslation, Transform
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import Scale, colour_map, ink_on
from gattn.drawing.canvas.frame import (
    KEY_WIDTH,
    POINTS_PER_INCH,
    add_axes,
    clear,
    edits_said,
    heads_title,
    make_room,
    marked_edited,
    points,
    shown_text,
    width_left,
    write_texts,
)
from gattn.drawing.canvas.keys import add_area_key
from gattn.drawing.canvas.labels import font_size, text_style
from gattn.drawing.canvas.shown import all_of, kept_by, share_of
from gattn.drawing.one_head.look import check_values
from gattn.drawing.one_head.matrix import norm_of
from gattn.drawing.one_head.setting import PAD, Setting, Words
from gattn.edit_records import union
from gattn.errors import SelectionError
from gattn.heads.given.weights import what_of
from gattn.heads.head import AttentionGraph
from gattn.names.tokens import find_token

_NOT_SHARED_OUT = ("score", "value_norm")
"""Values that a dropped edge lacks, whereas its attention counts as 0."""
_LINE = 1.8
"""The distance between lines, in font sizes."""
_NARROWEST, _WIDEST = 26.0, 52.0
"""The longest line in a figure of our own, in font sizes, of a short text and of a long one."""


def draw_text(
    heads: AttentionGraph | Iterable[AttentionGraph],
    query: int | str | None = None,
    *,
    key: int | str | None = None,
    ax: Axes | None = None,
    values: str = "attention",
    cmap: str | Colormap | None = None,
    legend: bool = True,
) -> Axes:
    """Write the text, each token shaded by the attention that one query gives to it.

    The text is set as prose: the parts of a word stand together, a newline ends the line. The query
    is outlined; tokens without an edge to it are pale and not shaded. Colours are those of a
    matrix, on a square-root scale. The caption says which edges are shown, how many there are,
    which share of the query's attention they hold, and what the sink holds. `ax`, `cmap` and
    `legend`: see `gattn.drawing`; on axes of yours the text shrinks until it fits.

    Parameters
    ----------
    heads : AttentionGraph or iterable of them
        A head, or several heads of one text, whose mean is shown. An edge that a head did not keep
        counts as no attention and no contribution; the mean score and value norm are of the heads
        that have the edge, and the caption says so.
    query : int or str, optional
        The query's position, from the end if negative, or its text; by default the last one.
    key : int or str, optional
        Instead of a query: shade each token by the attention that it gives to this key.
    values : {"attention", "score", "contribution", "value_norm"}
        Which number of the edges.

    Raises
    ------
    SelectionError
        If there is no such query, key or colour map, or the heads lack the values or are of
        several texts.
    """
    chosen = [heads] if isinstance(heads, AttentionGraph) else list(heads)
    shade = _shade(chosen, query, key, values)
    words, scale = Words.of(shade.tokens, shade.words), Scale.of(*chosen)
    is_signed = scale.is_signed and values == "attention"
    colours = colour_map(cmap, is_signed=is_signed, is_area=True)
    norm = scale.norm if values == "attention" else norm_of(shade.amounts[shade.is_edge], values)
    is_own = ax is None
    if ax is None:
        ax = _fitting_axes(words, 2 + len(scale.ticks) if legend else 0)
        width = points(ax)[0]
    else:
        width = width_left(ax, points(ax)[0], legend=legend)
    clear(ax)
    _write(ax, shade, words, width, colours, norm)
    edits = union(head.edits for head in chosen)
    caption = "; ".join(filter(None, [shade.caption, edits_said(edits)]))
    write_texts(ax, marked_edited(heads_title(chosen), edits), caption)
    if is_own:
        make_room(ax)
    if legend:
        ticks = scale.ticks[::-1]
        if values != "attention":
            ticks = np.linspace(norm.vmax or 0.0, norm.vmin or 0.0, 4).tolist()
        add_area_key(ax, colours, norm, ticks, values)
    return ax


@dataclass(frozen=True)
class _Shade:
    """What is written, and how strongly each token is shaded."""

    tokens: Sequence[str]
    words: Sequence[int | None]
    amounts: NDArray[np.float64]
    is_edge: NDArray[np.bool_]
    outlined: int | None
    generated: int
    caption: str


def _shade(
    heads: Sequence[AttentionGraph], query: int | str | None, key: int | str | None, values: str
) -> _Shade:
    _check_one_text(heads, query, key)
    for head in heads:
        check_values(head, values)
    first = heads[0]
    keys, queries = first.node_ids()
    of_key, bipartite = key is not None, first.graph.is_bipartite
    if key is None:
        wanted = -1 if query is None else query
        place = find_token(wanted, queries, first.query_labels(), "query")
        name = f"query {queries[place]} {_quoted(first.query_labels()[place])}"
    else:
        place = find_token(key, keys, first.labels()[: len(keys)], "key")
        name = f"key {keys[place]} {_quoted(first.labels()[place])}"
    of_queries = of_key and bipartite
    tokens = first.query_labels() if of_queries else first.labels()
    amounts, having = np.zeros(len(tokens)), np.zeros(len(tokens), dtype=int)
    for head in heads:
        chosen = np.flatnonzero((head.key if of_key else head.query) == place)
        others = head.query[chosen] + head.graph.query_offset if of_key else head.key[chosen]
        amounts[others] += head.edge_values[values][chosen]
        having[others] += 1
    is_edge = having > 0
    if values in _NOT_SHARED_OUT:
        mark = "; each token's mean is of the heads that have its edge"
        mark *= bool((having[is_edge] < len(heads)).any())
        amounts[is_edge] /= having[is_edge]
    else:
        mark, amounts = "", amounts / len(heads)
    generated = first.generated if of_queries or not bipartite else 0
    mark += f"; underlined: {generated} generated" if generated else ""
    what = _who_reads(heads, place) if of_key else _what_is_read(heads, place)
    return _Shade(
        tokens,
        () if of_queries else first.words,
        amounts,
        is_edge,
        None if bipartite else place + (0 if of_key else first.graph.query_offset),
        generated,
        f"{'what reads ' if of_key else ''}{name}{'' if of_key else ' reads'}: {what}{mark}",
    )


def _check_one_text(
    heads: Sequence[AttentionGraph], query: int | str | None, key: int | str | None
) -> None:
    if query is not None and key is not None:
        raise SelectionError("Give a query or a key, not both: what it reads, or what reads it.")
    if not heads or not all(isinstance(head, AttentionGraph) for head in heads):
        raise SelectionError(
            "Give a head, or several, as in draw_text([trace[2, 0], trace[2, 1]])."
        )
    texts = {(tuple(head.labels()), tuple(head.query_labels())) for head in heads}
    if len(texts) > 1:
        raise SelectionError("These heads are of several texts; a picture shows one text.")
    if not min(heads[0].graph.num_queries, heads[0].graph.num_keys):
        raise SelectionError("There is nothing to draw: this head has no queries or no keys.")


def _quoted(token: str) -> str:
    return f"“{shown_text(token, limit=24)}”"


def _what_is_read(heads: Sequence[AttentionGraph], row: int) -> str:
    kept = sum(int(head.graph.in_degree[row]) for head in heads)
    total = sum(int(head.total_edges[row]) for head in heads)
    text = all_of(total)
    if kept < total:
        mass = sum(float(head.kept_mass[row]) for head in heads)
        whole = sum(float(head.total_mass[row]) for head in heads)
        some = f"{kept:,} of {total:,} edges{share_of(mass, whole, what_of(heads))}"
        text = ", ".join(filter(None, [kept_by(heads), some]))
    sinks = [float(head.sink[row]) for head in heads if head.sink is not None]
    return text + (f"; {sum(sinks) / len(heads):.2g} from the sink" if sinks else "")


def _who_reads(heads: Sequence[AttentionGraph], column: int) -> str:
    count = sum(int((head.key == column).sum()) for head in heads)
    if all(head.graph.num_edges == int(head.total_edges.sum()) for head in heads):
        return all_of(count)
    return ", ".join(filter(None, [kept_by(heads), f"{count:,} edges were kept"]))


def _fitting_axes(words: Words, key_lines: int) -> Axes:
    """Make a figure as wide as the text, up to a page, and as high as its lines or the key's."""
    size = font_size()
    wide = min(max(words.width / 3, _NARROWEST), _WIDEST)
    lines = words.set(wide).lines
    width = wide * size + 20 + KEY_WIDTH * size * bool(key_lines)
    height = (max(lines * _LINE, key_lines) + 4.5) * size + 20
    inches = width / POINTS_PER_INCH, height / POINTS_PER_INCH
    figure = plt.figure(figsize=inches, layout="none")
    return add_axes(figure, legend=bool(key_lines))


def _fitted(words: Words, width: float, height: float) -> tuple[Setting, float]:
    """Find the largest font size, up to the user's, at which the text fits."""
    size = font_size()
    while True:
        found = words.set(width / size)
        is_narrow = float(found.right.max(initial=0.0)) * size <= width + 1
        if size < 1.0 or (is_narrow and found.lines * _LINE * size <= height + 1):
            return found, size
        size *= 0.95


def _write(
    ax: Axes, shade: _Shade, words: Words, width: float, cmap: Colormap, norm: Normalize
) -> None:
    found, size = _fitted(words, width, points(ax)[1])
    middle = -(found.line + 0.5) * _LINE
    place = _from_top_left(ax, size)
    low, high = middle - 0.72, middle + 0.72
    boxes = np.stack([found.left, low, found.right - 0.04, high], axis=1)
    fills = cmap(norm(shade.amounts))
    ax.add_collection(
        PolyCollection(
            [_corners(box) for box in boxes[shade.is_edge]],
            facecolors=fills[shade.is_edge],
            linewidths=0.0,
            transform=place,
            clip_on=False,
            gid="gattn-shades",
        ),
        autolim=False,
    )
    plain = mpl.rcParams["text.color"]
    style = text_style(found.texts)
    for i, text in enumerate(found.texts):
        ax.text(
            found.left[i] + PAD * found.starts_word[i],
            middle[i] - 0.3,
            text,
            size=size,
            color=ink_on(fills[i]) if shade.is_edge[i] else plain,
            alpha=1.0 if shade.is_edge[i] or i == shade.outlined else 0.55,
            transform=place,
            gid="gattn-label",
            **style,
        )
    if shade.outlined is not None:
        outline = PolyCollection(
            [_corners(boxes[shade.outlined] + [-0.05, -0.05, 0.05, 0.05])],
            facecolors="none",
            edgecolors=plain,
            linewidths=0.14 * size,
            transform=place,
            clip_on=False,
            gid="gattn-outline",
        )
        ax.add_collection(outline, autolim=False)
    if shade.generated:
        new = boxes[len(boxes) - shade.generated :]
        bars = LineCollection(
            [[(box[0], box[1] - 0.08), (box[2], box[1] - 0.08)] for box in new],
            colors=plain,
            linewidths=0.1 * size,
            transform=place,
            clip_on=False,
            gid="gattn-generated",
        )
        ax.add_collection(bars, autolim=False)


def _corners(box: NDArray[np.float64]) -> list[tuple[float, float]]:
    left, low, right, high = box.tolist()
    return [(left, low), (right, low), (right, high), (left, high)]


def _from_top_left(ax: Axes, size: float) -> Transform:
    """Count in font sizes from the axes' top left corner, wherever a layout engine moves it."""
    assert ax.figure is not None
    scale = Affine2D().scale(size / POINTS_PER_INCH) + ax.figure.dpi_scale_trans
    return scale + ScaledTranslation(0, 1, BboxTransformTo(ax.bbox))
