"""Images of matrices, made for the resolution at which they are shown or saved."""

from __future__ import annotations

from typing import Any

from matplotlib.artist import allow_rasterization
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.transforms import Affine2D

from gattn.drawing.canvas.rooms import dots_of
from gattn.drawing.matrices.cells import Cells

_SHARP = 128
"""How many pixels along a side an image in a vector file has at least, as viewers blur smaller."""


class CellsImage(AxesImage):
    """An image of cells, which are pooled only as far as pixels are fewer.

    Parameters
    ----------
    ax : Axes
        Where it is drawn.
    cells : Cells
        What it shows.
    **style
        Of `matplotlib.image.AxesImage`: its extent, colour map and scale.
    """

    _A: Any  # the cells as matplotlib keeps them, which its types leave out

    def __init__(self, ax: Axes, cells: Cells, **style: Any) -> None:
        # With "none", vector files hold the cells themselves.
        super().__init__(ax, **({"interpolation": "none", "origin": "upper"} | style))
        self._cells = cells

    def get_array(self) -> Any:
        """Return the cells as last drawn, or as a screen would show them."""
        if self._A is None:
            self._fit(1.0)
        return super().get_array()

    @allow_rasterization  # type: ignore[untyped-decorator]
    def draw(self, renderer: Any) -> None:
        """Draw the cells at the renderer's resolution."""
        figure = self.get_figure()
        assert figure is not None
        self._fit(dots_of(figure, renderer) / figure.dpi)
        super().draw(renderer)

    def _fit(self, times: float) -> None:
        """Pool the cells to as many as there are pixels."""
        box = self.get_window_extent()
        wanted = (max(1, round(abs(size) * times)) for size in (box.height, box.width))
        rows, columns = (min(two) for two in zip(wanted, self._cells.shape, strict=True))
        if self._A is None or self._A.shape[:2] != (rows, columns):
            self.set_data(self._cells.at(rows, columns))

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
        """Make the pixels; vector files get cells of several pixels, in the same place."""
        image, x, y, place = super().make_image(renderer, magnification, unsampled)
        if unsampled and image is not None:
            times = max(1, _SHARP // max(image.shape[:2]))
            image = image.repeat(times, 0).repeat(times, 1)
            return image, x, y, Affine2D().scale(1 / times) + place
        return image, x, y, place


def add_cells(ax: Axes, cells: Cells, **style: Any) -> CellsImage:
    """Draw cells on axes, which keep their limits."""
    image = CellsImage(ax, cells, **style)
    ax.add_image(image)
    return image
