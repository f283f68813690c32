"""Colours and widths of attention: fixed scales, which every picture states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap, Normalize, to_rgb
from numpy.typing import NDArray

from gattn.head import AttentionGraph

_ON_LIGHT = ("#c9e3d3", "#7fcdbb", "#41a5c3", "#2473b2", "#253c94", "#0a1a4f")
_ON_DARK = ("#2a3558", "#2d5a96", "#2e8bb8", "#5bbfbf", "#a5e0c0", "#f2fbe0")
_SIGNED_ON_LIGHT = ("#8c3a04", "#d6741f", "#f0c9a0", "#d9d9de", "#a9c6e4", "#3f7fbd", "#0b2f6b")
_SIGNED_ON_DARK = ("#ffd9a8", "#f59a45", "#8a5a30", "#3a3a40", "#3a628c", "#5aa5ea", "#cfe8ff")


@dataclass(frozen=True)
class Scale:
    """How attention becomes colour (on a square-root scale) and line width (on a linear one).

    Parameters
    ----------
    top : float
        The end of the scale: 1, or the largest size where attention exceeds 1.
    is_signed : bool
        Whether the scale runs from -top.
    """

    top: float
    is_signed: bool

    @classmethod
    def of(cls, *heads: AttentionGraph) -> Scale:
        """Find the scale that some heads share."""
        values = [part for h in heads for part in (h.attention, h.sink) if part is not None]
        sizes = [float(np.abs(part).max()) for part in values if len(part)]
        top = max([1.0, *sizes])
        is_signed = any(bool((part < 0).any()) for part in values)
        return cls(top if top > 1 + 1e-4 else 1.0, is_signed)

    @property
    def norm(self) -> Normalize:
        """The square-root scale as matplotlib takes it."""
        bottom = -self.top if self.is_signed else 0.0
        return FuncNorm((_signed_root, _signed_square), vmin=bottom, vmax=self.top)

    @property
    def ticks(self) -> list[float]:
        """Round values to label the scale at."""
        above = [0.05, 0.25, 0.5, 1.0]
        if self.top > 1:
            above = [float(f"{self.top * share:.2g}") for share in (0.05, 0.25, 0.5)] + [self.top]
        return [-tick for tick in reversed(above)] + [0.0, *above] if self.is_signed else above

    def widths(self, attention: NDArray[Any]) -> NDArray[np.float64]:
        """Compute line widths in points."""
        widths: NDArray[np.float64] = 0.5 + 3.0 * np.abs(attention) / self.top
        return widths


def _signed_root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _signed_square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def colour_map(cmap: str | Colormap | None, *, is_signed: bool) -> Colormap:
    """Take the given colour map, or one whose weak end still shows on the background.

    Lightness falls (on a dark background: rises) evenly with attention, so that it reads in grey
    and with any colour vision.
    """
    if cmap is not None:
        return mpl.colormaps[cmap] if isinstance(cmap, str) else cmap
    dark = is_dark()
    signed = _SIGNED_ON_DARK if dark else _SIGNED_ON_LIGHT
    colours = signed if is_signed else (_ON_DARK if dark else _ON_LIGHT)
    return LinearSegmentedColormap.from_list("attention", colours)


def is_dark() -> bool:
    """Say whether the current style writes light text, which takes a dark background."""
    red, green, blue = to_rgb(mpl.rcParams["text.color"])
    return 0.3 * red + 0.6 * green + 0.1 * blue > 0.5
