"""The text itself, each token shaded by what one query reads of it, or by how it reads one key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.transforms import Affine2D, BboxTransformTo, ScaledTranslation, Transform
from numpy.typing import NDArray

from gattn.drawing.canvas.colours import Scale, colour_map, ink_on
from gattn.drawing.canvas.fitting import Fitting, fitted, slot
from gattn.drawing.canvas.frame import (
    KEY_WIDTH,
    add_axes,
    clear,
    edits_said,
    given_axes,
    heads_title,
    make_room,
    marked_edited,
    write_texts,
)
from gattn.drawing.canvas.keys import add_area_key
from gattn.drawing.canvas.labels import font_size, text_style
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.drawing.canvas.sides import say_patches
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.one_head.matrix import norm_of
from gattn.drawing.one_head.prose.setting import JOINT, PAD, Setting, Words
from gattn.drawing.one_head.prose.shades import Shade, shade_of
from gattn.drawing.styles.figures import new_figure
from gattn.edit_records import union
from gattn.heads.head import AttentionGraph

_LINE = 1.8
"""The distance between lines, in font sizes."""
_KEY_LINE = 1.4
"""That of lines of the key."""
_LARGEST = 1.5
"""How many times as large as usual text becomes where axes of a given size have room for it."""
_NARROWEST, _WIDEST, _SHORTEST = 26.0, 52.0, 16.0
"""The longest line in a figure of our own, in font sizes, of a text of some lines, of a long one,
and of one that is shorter than a line."""


@checks_given
def draw_text(
    heads: AttentionGraph | Iterable[AttentionGraph],
    query: int | str | None = None,
    *,
    key: int | str | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    values: str = "attention",
    cmap: str | Colormap | None = None,
    legend: bool = True,
) -> Axes:
    """Write the text, each token shaded by the attention that one query gives to it.

    The text is set as prose: the parts of a word stand together, a newline ends the line. The query
    is outlined; tokens without an edge to it are pale and not shaded. Colours are those of a
    matrix, on a square-root scale. The caption says which edges are shown, how many there are,
    which share of the query's attention they hold, and what the sink holds. `figsize`, `ax`,
    `cmap` and `legend`: see `gattn.drawing`; on axes of yours, and in a figure of your size, the
    text is as large as has room, up to one and a half times the font size.

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
    shade = shade_of(chosen, query, key, values)
    words, scale = Words.of(shade.tokens, shade.words), Scale.of(*chosen)
    is_signed = scale.is_signed and values == "attention"
    colours = colour_map(cmap, is_signed=is_signed, is_area=True)
    norm = scale.norm if values == "attention" else norm_of(shade.amounts[shade.is_edge], values)
    ax = given_axes(ax, figsize)
    is_fixed = ax is not None
    if ax is None:
        ax = _fitting_axes(words, 1 + len(scale.ticks) if legend else 0)
        ax.set_anchor("N")
    clear(ax)
    say_patches(ax, shade.tokens)
    fitted(ax, _Passage(ax, shade, words, colours, norm, is_fixed=is_fixed).place)
    if legend:
        ticks = scale.ticks[::-1]
        if values != "attention":
            ticks = np.linspace(norm.vmax or 0.0, norm.vmin or 0.0, 4).tolist()
        add_area_key(ax, colours, norm, ticks, values)
        Fitting.of(ax).is_key_aside = True
    Fitting.of(ax).grows = not is_fixed
    edits = union(head.edits for head in chosen)
    caption = "; ".join(filter(None, [shade.caption, edits_said(edits)]))
    write_texts(ax, marked_edited(heads_title(chosen), edits), caption)
    if not is_fixed:
        make_room(ax)
    return ax


def _fitting_axes(words: Words, key_lines: int) -> Axes:
    """Make a figure as wide as the text, up to a page, and as high as its lines or the key's."""
    size = font_size()
    wide = min(max(words.width / 3, _NARROWEST), _WIDEST, max(words.width, _SHORTEST))
    lines = words.set(wide).lines
    width = wide * size + 20 + KEY_WIDTH * size * bool(key_lines)
    height = max(lines * _LINE + 3.5, key_lines * _KEY_LINE + 1.5) * size + 20
    inches = width / POINTS_PER_INCH, height / POINTS_PER_INCH
    figure = new_figure(inches)
    return add_axes(figure, legend=bool(key_lines))


def _fitted(words: Words, width: float, height: float, size: float) -> tuple[Setting, float]:
    """Find the largest font size, up to a size, at which the text fits."""
    while True:
        found = words.set(width / size)
        is_narrow = float(found.right.max(initial=0.0)) * size <= width + 1
        if size < 1.0 or (is_narrow and found.lines * _LINE * size <= height + 1):
            return found, size
        size *= 0.95


class _Passage:
    """The text as prose, in lines as long as the axes are wide."""

    def __init__(
        self,
        ax: Axes,
        shade: Shade,
        words: Words,
        cmap: Colormap,
        norm: Normalize,
        *,
        is_fixed: bool,
    ) -> None:
        self._ax, self._shade, self._words, self._is_fixed = ax, shade, words, is_fixed
        fills, plain = cmap(norm(shade.amounts)), mpl.rcParams["text.color"]
        style: dict[str, Any] = {"clip_on": False, "linewidths": 0.0}
        self._shades = PolyCollection(
            [], facecolors=fills[shade.is_edge], gid="gattn-shades", **style
        )
        self._outline = PolyCollection(
            [], facecolors="none", edgecolors=plain, gid="gattn-outline", **style
        )
        self._bars = LineCollection([], colors=plain, gid="gattn-generated", **style)
        self._drawn: list[Collection] = [self._shades]
        self._drawn += [self._outline] * (shade.outlined is not None)
        self._drawn += [self._bars] * bool(shade.generated)
        for drawn in self._drawn:
            ax.add_collection(drawn, autolim=False)
        fonts = text_style(words.texts)
        self._texts = [
            ax.text(
                0.0,
                0.0,
                text,
                color=ink_on(fills[i]) if shade.is_edge[i] else plain,
                alpha=1.0 if shade.is_edge[i] or i == shade.outlined else 0.55,
                gid="gattn-label",
                **fonts,
            )
            for i, text in enumerate(words.texts)
        ]

    def place(self) -> None:
        """Set the text in the largest font in which it fits the axes."""
        wide, tall = slot(self._ax)
        most = font_size() * (_LARGEST if self._is_fixed else 1.0)
        found, size = _fitted(self._words, wide, tall, most)
        # Title and caption stay near a text that is shorter than its figure.
        self._ax.set_box_aspect(min(found.lines * _LINE * size, tall) / wide)
        middle = -(found.line + 0.5) * _LINE
        place = _from_top_left(self._ax, size)
        low, high = middle - 0.72, middle + 0.72
        boxes = np.stack([found.left, low, found.right - 0.04, high], axis=1)
        self._shades.set_verts([_corners(box) for box in boxes[self._shade.is_edge]])
        if self._shade.outlined is not None:
            around = boxes[self._shade.outlined] + [-0.05, -0.05, 0.05, 0.05]
            self._outline.set_verts([_corners(around)])
        self._outline.set_linewidth(0.14 * size)
        new = boxes[len(boxes) - self._shade.generated :]
        self._bars.set_segments([[(box[0], box[1] - 0.08), (box[2], box[1] - 0.08)] for box in new])
        self._bars.set_linewidth(0.1 * size)
        for drawn in self._drawn:
            drawn.set_transform(place)
        for i, text in enumerate(self._texts):
            text.set_position(
                (found.left[i] + (PAD if found.starts_word[i] else JOINT), middle[i] - 0.3)
            )
            text.set(size=size, transform=place)


def _corners(box: NDArray[np.float64]) -> list[tuple[float, float]]:
    left, low, right, high = box.tolist()
    return [(left, low), (right, low), (right, high), (left, high)]


def _from_top_left(ax: Axes, size: float) -> Transform:
    """Count in font sizes from the axes' top left corner, wherever a layout engine moves it."""
    assert ax.figure is not None
    scale = Affine2D().scale(size / POINTS_PER_INCH) + ax.figure.dpi_scale_trans
    return scale + ScaledTranslation(0, 1, BboxTransformTo(ax.bbox))
