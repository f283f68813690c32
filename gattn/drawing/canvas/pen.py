"""Draws edges as lines whose colours and widths are their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from numpy.typing import ArrayLike, NDArray

from gattn.drawing.canvas.colours import Scale
from gattn.drawing.canvas.curves import Points
from gattn.drawing.canvas.frame import POINTS_PER_INCH

DASHES = (0, (2.5, 1.2))
"""The dashes of negative numbers, which colours alone do not tell apart in grey."""


@dataclass(frozen=True)
class Pen:
    """Turns numbers into the colours and widths of a picture.

    Parameters
    ----------
    scale : Scale
        From numbers to colours and widths.
    cmap : Colormap
        The colours.
    name : str
        What the numbers are.
    """

    scale: Scale
    cmap: Colormap
    name: str = "attention"

    @cached_property
    def norm(self) -> Normalize:
        """The scale as matplotlib takes it, one for all that share it."""
        return self.scale.norm

    def colours(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return a colour for each number."""
        colours: NDArray[np.float64] = np.asarray(self.cmap(self.norm(np.asarray(values))))
        return colours

    def draw(self, ax: Axes, paths: list[Path], values: ArrayLike, **style: Any) -> None:
        """Draw edges as one artist, negative ones dashed; `style` overrides colours and widths."""
        sizes = np.asarray(values, dtype=np.float64)
        plain: dict[str, Any] = {
            "facecolors": "none",
            "edgecolors": self.colours(sizes),
            "linewidths": self.scale.widths(sizes),
            "linestyles": [DASHES if size < 0 else "solid" for size in sizes],
            "capstyle": "butt",
            "clip_on": False,
            "gid": "gattn-edges",
        }
        lines = PathCollection(paths, **plain | style)
        ax.add_collection(lines, autolim=False)

    def draw_arrowheads(
        self, ax: Axes, tips: Points, towards: Points, values: NDArray[np.float64]
    ) -> None:
        """Draw small triangles at the ends of edges, as one artist.

        Parameters
        ----------
        ax : Axes
            The axes, whose two scales are equal.
        tips, towards : array (edges, 2)
            Where each tip lies, and the direction in which its edge arrives.
        values : array (edges,)
            The number of each edge.
        """
        length = np.maximum(np.hypot(*towards.T), 1e-12)[:, None]
        widths = self.scale.widths(values)[:, None]
        along = towards / length * (4.0 + 1.6 * widths)
        across = (towards / length)[:, ::-1] * np.array([[-1.0, 1.0]]) * (1.4 + 0.95 * widths)
        corners = np.stack([np.zeros_like(along), -along + across, -along - across], axis=1)
        assert ax.figure is not None
        triangles = PathCollection(
            [Path(triangle, closed=False) for triangle in corners],
            offsets=tips,
            offset_transform=ax.transData,
            facecolors=self.colours(values),
            linewidths=0.0,
            transform=Affine2D().scale(1 / POINTS_PER_INCH) + ax.figure.dpi_scale_trans,
            clip_on=False,
            gid="gattn-arrowheads",
        )
        ax.add_collection(triangles, autolim=False)
