"""Refuses pictures whose texts have no room on a figure of the size that a user gave."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from gattn.drawing.canvas.labels import font_size
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.errors import SelectionError

_ENOUGH = 25.0
"""The sides of a figure, in font sizes, from which on any picture has room."""
_LEAST = 2.5
"""The least side of axes, in font sizes."""
_WANTED = 18.0
"""The sides that are advised in place of smaller ones, in font sizes."""
_AROUND = ("gattn-caption", "gattn-note")
_SHARED = 1.0
"""How many points texts may share with each other, or lie outside."""


@contextmanager
def no_figure_left() -> Iterator[None]:
    """Close the figures that were begun where a picture is refused."""
    before = set(plt.get_fignums())
    try:
        yield
    except Exception:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)
        raise


def check_readable(ax: Axes) -> None:
    """Refuse a small figure whose texts are cut or meet, or leave the picture no room.

    Raises
    ------
    SelectionError
        With a size that is large enough.
    """
    figure = ax.figure
    assert isinstance(figure, Figure)
    if min(_sides(figure)) < _ENOUGH and not _has_room(ax, figure):
        raise lacks_room(figure)


def lacks_room(figure: Figure) -> SelectionError:
    """Say that a figure is too small, and which size is large enough."""
    given = " x ".join(f"{side:.3g}" for side in figure.get_size_inches())
    wide, high = (
        max(_WANTED, min(1.3 * side, _ENOUGH), side) * font_size() / POINTS_PER_INCH + 0.05
        for side in _sides(figure)
    )
    return SelectionError(
        f"figsize of {given} inches leaves no room for the texts around the picture: give one of "
        f"about {wide:.1f} x {high:.1f}, or a smaller font.size."
    )


def _sides(figure: Figure) -> list[float]:
    """Measure a figure in font sizes."""
    return [float(side) * POINTS_PER_INCH / font_size() for side in figure.get_size_inches()]


def _has_room(ax: Axes, figure: Figure) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a layout collapsed shows in the size of the axes
        figure.draw_without_rendering()
    point = figure.dpi / POINTS_PER_INCH
    if min(ax.bbox.width, ax.bbox.height) < _LEAST * font_size() * point:
        return False
    whole = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    room = figure.bbox.padded(_SHARED * point)
    if not (room.x0 <= whole.x0 and whole.x1 <= room.x1):
        return False
    if not (room.y0 <= whole.y0 and whole.y1 <= room.y1):
        return False
    boxes = [box.padded(-_SHARED * point / 2) for box in _around(ax)]
    return not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def _around(ax: Axes) -> list[Bbox]:
    """Measure the title, the caption, notes and the key."""
    texts = [ax.title, *(text for text in ax.texts if text.get_gid() in _AROUND)]
    shown = [text for text in texts if text.get_visible() and text.get_text()]
    boxes = [text.get_window_extent() for text in shown]
    legend = ax.get_legend()
    return boxes + ([legend.get_window_extent()] if legend is not None else [])
