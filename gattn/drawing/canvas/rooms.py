"""What room a figure leaves to axes and all that stands around them."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.transforms import Bbox

POINTS_PER_INCH = 72
_LEAST = 0.3
"""The least share of their place that axes keep."""
_EDGE = 2.0
"""How many points stay free at the edge of a figure, and between two pictures."""
_FINE = 300
"""The dots per inch for which vector files are made at least."""


def dots_of(figure: Any, renderer: Any = None) -> float:
    """Return the dots per inch of the images in the file or on the screen that is now drawn.

    In a vector file they are those of `savefig`, which only the renderer knows.
    """
    if renderer is None:
        is_vector = getattr(figure.canvas, "fixed_dpi", None) is not None
        return max(float(figure.dpi), _FINE) if is_vector else float(figure.dpi)
    dots = float(figure.dpi * renderer.get_image_magnification())
    return max(dots, _FINE) if renderer.option_scale_image() else dots


def in_figure(ax: Axes) -> Any:
    """Return the transform from shares of a figure, or subfigure, to pixels."""
    assert ax.figure is not None
    return ax.figure.transSubfigure


def is_laid_out(ax: Axes) -> bool:
    """Return whether a layout engine moves the axes to make room for their texts."""
    assert ax.figure is not None
    engine = ax.figure.get_layout_engine()
    has_one = engine is not None and not isinstance(engine, PlaceHolderLayoutEngine)
    return has_one and ax.get_subplotspec() is not None and ax.get_in_layout()


def figure_room(ax: Axes) -> Bbox:
    """Return the pixels of the figure but for its edge."""
    figure = ax.figure
    assert figure is not None
    edge = 0.25 * _EDGE * figure.dpi / POINTS_PER_INCH
    return Bbox(figure.bbox.padded(-edge))


def own_room(ax: Axes, slot: Bbox) -> Bbox:
    """Find the pixels that a picture may fill: up to the middle between it and other axes."""
    figure = ax.figure
    assert figure is not None
    whole, own = figure.bbox, slot.transformed(in_figure(ax))
    x0, y0, x1, y1 = whole.extents
    for other in figure.axes:
        box = other.get_position(original=True).transformed(in_figure(ax))
        if other is ax or not other.get_visible():
            continue
        if box.y0 < own.y1 and box.y1 > own.y0:
            if box.x0 >= own.x1 - 1:
                x1 = min(x1, (own.x1 + box.x0) / 2)
            elif box.x1 <= own.x0 + 1:
                x0 = max(x0, (own.x0 + box.x1) / 2)
        if box.x0 < own.x1 and box.x1 > own.x0:
            if box.y0 >= own.y1 - 1:
                y1 = min(y1, (own.y1 + box.y0) / 2)
            elif box.y1 <= own.y0 + 1:
                y0 = max(y0, (own.y0 + box.y1) / 2)
    edge = _EDGE * figure.dpi / POINTS_PER_INCH
    return Bbox.from_extents(x0 + edge, y0 + edge, x1 - edge, y1 - edge)


def fitting_box(box: Bbox, slot: Bbox, whole: Bbox, room: Bbox, figure: Any) -> Bbox:
    """Find the largest box within its slot around which all that stands around it has room."""
    left = box.x0 + (room.x0 - whole.x0) / figure.width
    right = box.x1 + (room.x1 - whole.x1) / figure.width
    low = box.y0 + (room.y0 - whole.y0) / figure.height
    high = box.y1 + (room.y1 - whole.y1) / figure.height
    x0, x1 = max(left, slot.x0), min(right, slot.x1)
    y0, y1 = max(low, slot.y0), min(high, slot.y1)
    x0, x1 = _at_least(_LEAST * slot.width, x0, x1, box.x0, box.x1)
    y0, y1 = _at_least(_LEAST * slot.height, y0, y1, box.y0, box.y1)
    return Bbox.from_extents(x0, y0, x1, y1)


def _at_least(
    least: float, low: float, high: float, begin: float, end: float
) -> tuple[float, float]:
    """Widen a side to the least that it keeps, around its middle, within where it was."""
    if high - low >= least or end - begin <= least:
        return (low, high) if high - low >= least else (begin, end)
    middle = min(max((low + high) / 2, begin + least / 2), end - least / 2)
    return middle - least / 2, middle + least / 2
