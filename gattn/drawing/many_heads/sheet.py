"""A figure as a sheet measured in inches from its top left corner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from numpy.typing import NDArray

from gattn.drawing.canvas.keys import add_colour_bar
from gattn.drawing.canvas.labels import small_size, text_style
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.canvas.rooms import POINTS_PER_INCH, dots_of
from gattn.drawing.matrices.cells import EdgeCells
from gattn.drawing.matrices.images import add_cells
from gattn.drawing.matrices.minus import MARKED, minus_signs


class Sheet:
    """One Axes over a whole figure: faster than one Axes for each of a thousand matrices.

    Parameters
    ----------
    figure : Figure or SubFigure
        The figure.
    """

    def __init__(self, figure: Figure | SubFigure) -> None:
        wide, tall = inches_of(figure)
        if isinstance(figure, Figure) and not figure.axes:
            figure.set_layout_engine("none")  # it would warn that there is nothing to lay out
        self._axes = figure.add_axes((0, 0, 1, 1), gid="gattn-sheet")
        self._axes.set(xlim=(0, wide), ylim=(-tall, 0), aspect="equal", anchor="NW")
        self._axes.set_axis_off()

    def write(self, x: float, y: float, text: str, **style: Any) -> Text:
        """Write a small text that starts at a place on its baseline."""
        plain: dict[str, Any] = {"size": small_size(), "va": "baseline"}
        return self._axes.text(x, -y, text, **plain | text_style([text]) | style)

    def write_for(self, x: float, y: float, said: Callable[[float], str], **style: Any) -> None:
        """Write a text that is another at another resolution, in dots per inch."""
        figure = self._axes.figure
        assert figure is not None
        figure.add_artist(_Wording(self.write(x, y, said(dots_of(figure)), **style), said))

    def add_image(self, box: Sequence[float], found: EdgeCells, pen: Pen) -> None:
        """Draw cells in a box: its left and upper end, width and height."""
        x, y, wide, tall = box
        extent = (x, x + wide, -y - tall, -y)
        image = add_cells(self._axes, found, cmap=pen.cmap, norm=pen.norm, extent=extent)
        rows, columns = found.shape
        size = wide / columns, tall / rows
        if pen.scale.is_signed and min(size) >= as_inches(MARKED):
            values = found.at(rows, columns)
            self.add_signs(box, values, pen.scale.top, image.to_rgba)

    def add_signs(
        self,
        box: Sequence[float],
        values: NDArray[Any],
        top: float,
        paint: Callable[[NDArray[Any]], Any],
    ) -> None:
        """Mark the negative cells of a matrix in a box."""
        (x, y, wide, tall), (rows, columns) = box, values.shape
        size = wide / columns, -tall / rows
        apart = min(wide / columns, tall / rows) * POINTS_PER_INCH
        for patch in minus_signs(values, top, paint, apart, corner=(x, -y), size=size):
            self._axes.add_patch(patch)

    def add_pixels(self, box: Sequence[float], pixels: NDArray[Any], **style: Any) -> None:
        """Draw pixels, (height, width, 3 or 4), in a box."""
        x, y, wide, tall = box
        found = AxesImage(self._axes, extent=(x, x + wide, -y - tall, -y), origin="upper", **style)
        found.set_data(pixels)
        found.set_clip_path(self._axes.patch)
        self._axes.add_image(found)

    def add_lines(
        self, lines: Iterable[Sequence[tuple[float, float]]], gid: str, **style: Any
    ) -> None:
        """Draw lines, if any, in the colour of texts."""
        found = [[(x, -y) for x, y in line] for line in lines]
        if found:
            plain: dict[str, Any] = {"colors": mpl.rcParams["text.color"], "capstyle": "butt"}
            collection = LineCollection(found, gid=gid, **plain | style)
            self._axes.add_collection(collection, autolim=False)

    def add_outline(self, corners: Sequence[tuple[float, float]], share: float = 1.0) -> None:
        """Draw a line, white and black, that shows on any image, in a share of its width."""
        for colour, wide in (("white", 1.8), ("black", 0.8)):
            style = {"colors": colour, "linewidths": wide * min(share, 1.0), "zorder": 3}
            self.add_lines([corners], "gattn-outline", **style)

    def add_key(self, x: float, y: float, long: float, pen: Pen) -> None:
        """Show what colours mean."""
        self.add_bar(x, y, long, ScalarMappable(pen.norm, pen.cmap), pen.name, pen.scale.ticks)

    def add_bar(
        self, x: float, y: float, long: float, mappable: ScalarMappable, name: str, ticks: Any
    ) -> None:
        """Show what any colours mean."""
        place = (x, -y - long, 0.09, long)
        bar = self._axes.inset_axes(place, transform=self._axes.transData)
        add_colour_bar(mappable, name, bar, ticks=ticks, inside=True)


class _Wording(Artist):
    """Sets a text when its resolution is known: is drawn before all axes, and leaves no mark.

    Parameters
    ----------
    text : Text
        The text.
    said : callable
        What it says, by dots per inch.
    """

    def __init__(self, text: Text, said: Callable[[float], str]) -> None:
        super().__init__()
        self._text, self._said = text, said
        self.set(zorder=-1e9, in_layout=False, gid="gattn-wording")

    def draw(self, renderer: Any) -> None:
        """Set the text."""
        self._text.set_text(self._said(dots_of(self._text.figure, renderer)))


def inches_of(figure: Figure | SubFigure) -> tuple[float, float]:
    """Measure the width and height of a figure."""
    box = figure.bbox
    return float(box.width / figure.dpi), float(box.height / figure.dpi)


def as_inches(points: float) -> float:
    """Convert points to inches."""
    return points / POINTS_PER_INCH


def line_height(size: float) -> float:
    """Return the height in inches of a line of text whose size is in points."""
    return as_inches(1.3 * size)


def key_width() -> float:
    """Return the inches that a key of colours takes."""
    return 0.15 + as_inches(5.4 * small_size())
