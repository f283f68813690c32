"""Draws edges as lines whose colours and widths are their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Colormap, Normalize, to_rgba_array
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from numpy.typing import ArrayLike, NDArray

from gattn.drawing.canvas.colours import Scale
from gattn.drawing.canvas.curves import Points
from gattn.drawing.canvas.fitting import fitted, thickness
from gattn.drawing.canvas.rooms import POINTS_PER_INCH

_APART = 1.1
"""How far lines of one kind are moved from those of the next, in points to the right and up."""
_USUAL = 3.5
"""The width in points of the widest line, of which arrowheads of weak edges are a share."""
DASHES = (0, (2.5, 1.2))
"""The dashes of negative numbers, which colours alone do not tell apart in grey."""

_OF_KINDS: tuple[Any, ...] = (
    "solid", (0, (2.4, 0.8)), (0, (0.9, 0.7)), (0, (3, 0.7, 0.8, 0.7)), (0, (1.6, 1.6)),
    (0, (2.4, 0.6, 0.8, 0.6, 0.8, 0.6)), (0, (0.9, 1.6)), (0, (1.6, 0.6, 0.6, 0.6)),
)  # fmt: skip
"""The dashes of kinds of lines whose colours are about the same grey."""
_LEAST, _PERIOD = 1.2, 8.0
"""The shortest dash or gap, and the most that all of them take until they repeat, in points."""
_SAME_GREY = 0.12
"""Which share of the way from black to white lies between greys that are told apart, at least."""
_LUMA = 0.299, 0.587, 0.114


def dashed(dash: Any, width: float) -> Any:
    """Stretch dashes, given in widths of a line, so that they are seen at its width in points."""
    if isinstance(dash, str) or not width:
        return dash
    start, lengths = dash
    sizes = np.array(lengths) * width
    share = max(min(1.0, _PERIOD / sizes.sum()), _LEAST / sizes.min())
    return start, tuple((share * np.array(lengths)).tolist())


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
    kinds : mapping of str to str
        Where a picture shows several heads, the name of each and its colour, in place of `cmap`.
    """

    scale: Scale
    cmap: Colormap
    name: str = "attention"
    kinds: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def norm(self) -> Normalize:
        """The scale as matplotlib takes it, one for all that share it."""
        return self.scale.norm

    @cached_property
    def dashes(self) -> list[Any]:
        """The dashes of each kind; colours of about the same grey have different ones.

        Where numbers have signs, the only dashes are those of negative ones.
        """
        greys = to_rgba_array(list(self.kinds.values()))[:, :3] @ np.array(_LUMA)
        found: list[int] = []
        for n, grey in enumerate(greys):
            taken = {
                m
                for m, other in zip(found, greys[:n], strict=True)
                if abs(other - grey) < _SAME_GREY
            }
            found.append(min(set(range(len(_OF_KINDS))) - taken))
        return [_OF_KINDS[0 if self.scale.is_signed else n] for n in found]

    def colours(
        self, values: ArrayLike, kind: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return a colour for each number, or for the kind of each."""
        if self.kinds and kind is not None:
            return to_rgba_array(list(self.kinds.values()))[kind]
        colours: NDArray[np.float64] = np.asarray(self.cmap(self.norm(np.asarray(values))))
        return colours

    def thickness(self, ax: Axes) -> float:
        """Return how much thicker than on the scale lines are: thinner in small axes."""
        return 1.0 if self.scale.is_fixed else thickness(ax)

    def draw(
        self,
        ax: Axes,
        paths: list[Path],
        values: ArrayLike,
        kind: NDArray[np.int64] | None = None,
        **style: Any,
    ) -> PathCollection:
        """Draw edges as one artist, negative ones dashed; `style` overrides colours and widths.

        Lines of several kinds are moved apart a little, so that none hides another.
        """
        sizes = np.asarray(values, dtype=np.float64)
        usual: list[Any] = ["solid"] * len(sizes)
        if self.kinds and kind is not None:
            usual = [self.dashes[n] for n in kind.tolist()]
            style = self._apart(ax, kind) | style
        plain: dict[str, Any] = {
            "facecolors": "none",
            "edgecolors": self.colours(sizes, kind),
            "linewidths": self.scale.widths(sizes),
            "linestyles": [
                DASHES if size < 0 else dash for size, dash in zip(sizes, usual, strict=True)
            ],
            "capstyle": "butt",
            "clip_on": False,
            "gid": "gattn-edges",
        }
        plain |= style
        lines = PathCollection(paths, **plain)
        ax.add_collection(lines, autolim=False)
        widths, dashes = np.asarray(lines.get_linewidth()), plain["linestyles"]

        def step() -> None:
            found = widths * self.thickness(ax)
            sized = zip(dashes, found.tolist(), strict=True) if len(found) == len(dashes) else ()
            lines.set_linestyle([dashed(dash, width) for dash, width in sized] or dashes)
            lines.set_linewidth(found.tolist())

        fitted(ax, step)
        return lines

    def _apart(self, ax: Axes, kind: NDArray[np.int64]) -> dict[str, Any]:
        """Return offsets in points that move the lines of each kind its own way."""
        assert ax.figure is not None
        steps = (kind - (len(self.kinds) - 1) / 2) * _APART
        place = Affine2D().scale(1 / POINTS_PER_INCH) + ax.figure.dpi_scale_trans
        return {"offsets": np.stack([steps, steps], axis=1), "offset_transform": place}

    def draw_arrowheads(
        self,
        ax: Axes,
        tips: Points,
        towards: Points,
        values: NDArray[np.float64],
        kind: NDArray[np.int64] | None = None,
    ) -> PathCollection:
        """Draw small triangles at the ends of edges, as one artist.

        Parameters
        ----------
        ax : Axes
            The axes, whose two scales are equal.
        tips, towards : array (edges, 2)
            Where each tip lies, and the direction in which its edge arrives.
        values : array (edges,)
            The number of each edge.
        kind : array of int (edges,), optional
            The kind of each edge, where there are several.
        """
        length = np.maximum(np.hypot(*towards.T), 1e-12)[:, None]
        widths = self.scale.widths(values)[:, None]
        least = self.scale.widest if self.scale.is_fixed else _USUAL
        along = towards / length * (1.15 * least + 1.6 * widths)
        across = (towards / length)[:, ::-1] * [[-1.0, 1.0]] * (0.4 * least + 0.95 * widths)
        corners = np.stack([np.zeros_like(along), -along + across, -along - across], axis=1)
        assert ax.figure is not None
        size = Affine2D()
        triangles = PathCollection(
            [Path(triangle, closed=False) for triangle in corners],
            offsets=tips,
            offset_transform=ax.transData,
            facecolors=self.colours(values, kind),
            linewidths=0.0,
            transform=size + ax.figure.dpi_scale_trans,
            clip_on=False,
            gid="gattn-arrowheads",
        )
        ax.add_collection(triangles, autolim=False)

        def step() -> None:
            size.clear().scale(self.thickness(ax) / POINTS_PER_INCH)

        fitted(ax, step)
        return triangles
