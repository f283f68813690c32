"""Colours and widths of attention: fixed scales, which every picture states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import (
    Colormap,
    FuncNorm,
    LinearSegmentedColormap,
    ListedColormap,
    Normalize,
    to_rgb,
    to_rgba,
)
from matplotlib.patches import Patch
from numpy.typing import NDArray

from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph

RAMPS = {
    "light": {
        "unsigned": ["#f1f6f0", "#b9dccb", "#79c6bb", "#41a2c4", "#2471b1", "#253c94", "#0a1a4f"],
        "signed": ["#602602", "#bd5f14", "#eab37c", "#dedee2", "#9dbfe0", "#3a7ab9", "#0b2f6b"],
    },
    "dark": {
        "unsigned": ["#1c2033", "#2a3f6e", "#2b6499", "#3290b4", "#61bcbb", "#a9e2c0", "#f4fce3"],
        "signed": ["#ffc878", "#ee8f2e", "#8a5222", "#3a3a40", "#2f5f92", "#4f9fe6", "#a8d6ff"],
    },
}
"""Colours from the weakest attention to the strongest, on a light and on a dark background."""

KINDS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89a00", "#7b5ea7")
"""Colours without an order, which everyone can tell apart."""
KINDS_OF_AREAS = (
    "#0a3f7f", "#ffe9a8", "#c94f0a", "#84c0ea", "#7d2f82", "#3cbf8c", "#f3c3a0", "#1d1a2b",
)  # fmt: skip
"""The same for areas side by side: each has its own lightness, so that grey tells them apart."""
REST_OF_KINDS = "#7f7f7f"
"""The colour of all further kinds."""
KINDS_ON_DARK = (
    "#6fb1e8", "#f0b44c", "#4fc79c", "#e09cc4", "#a8d8f5", "#ef7d3c", "#d0c43a", "#ab95d6",
)  # fmt: skip
"""The same for lines on a dark background."""

_LEAST, _MOST = 1e-20, 1e20
"""The ends of the numbers that a user can give a scale or a line."""


@dataclass(frozen=True)
class Scale:
    """How attention becomes colour (on a square-root scale) and line width (on a linear one).

    Parameters
    ----------
    top : float
        The end of the scale: 1, or the largest size where attention exceeds 1, or the user's vmax.
    is_signed : bool
        Whether the scale runs from -top.
    widest : float
        The width of the widest line in points.
    is_fixed : bool
        Whether `widest` is the user's, whatever the size of the axes.
    """

    top: float
    is_signed: bool
    widest: float
    is_fixed: bool = False

    @classmethod
    def of(
        cls, *heads: AttentionGraph, vmax: float | None = None, linewidth: float | None = None
    ) -> Scale:
        """Find the scale for one or several heads; lines are thinner in longer texts."""
        values = [part for h in heads for part in (h.attention, h.sink) if part is not None]
        is_signed = any(bool((part < 0).any()) for part in values)
        tokens = max((h.graph.num_tokens for h in heads), default=1)
        widest = 6.5 / max(tokens, 5) ** 0.25
        if linewidth is not None:
            widest = positive("linewidth", linewidth, "the width of the widest line in points")
        top = max([1.0, *_largest(values)])
        top = top if top > 1 + 1e-4 else 1.0
        return cls(end_of(vmax) or top, is_signed, widest, linewidth is not None)

    def beyond(self, heads: Iterable[AttentionGraph]) -> str:
        """Say that attention exceeds the end of the scale; "" if it does not."""
        values = [part for h in heads for part in (h.attention, h.sink) if part is not None]
        return beyond_said(max(_largest(values), default=0.0), self.top)

    @property
    def norm(self) -> Normalize:
        """The square-root scale as matplotlib takes it."""
        bottom = -self.top if self.is_signed else 0.0
        return FuncNorm((_signed_root, _signed_square), vmin=bottom, vmax=self.top)

    @property
    def ticks(self) -> list[float]:
        """Round values to label the scale at."""
        above = [float(f"{self.top * share:.2g}") for share in (0.05, 0.25, 0.5)] + [self.top]
        return [-tick for tick in reversed(above)] + [0.0, *above] if self.is_signed else above

    def widths(self, attention: NDArray[Any]) -> NDArray[np.float64]:
        """Compute line widths in points."""
        share = np.minimum(np.abs(attention) / self.top, 1.0)
        widths: NDArray[np.float64] = self.widest * (0.12 + 0.88 * share)
        return widths


def _largest(values: Iterable[NDArray[Any]]) -> list[float]:
    return [float(np.abs(part).max()) for part in values if len(part)]


def beyond_said(most: float, end: float | None) -> str:
    """Say that the largest number shown exceeds the end of its scale; "" if it does not."""
    if end is None or most <= end * (1 + 1e-4):
        return ""
    return f"the scale ends at {end:.3g}, the largest is {most:.3g}"


def end_of(vmax: float | None) -> float | None:
    """Check the end that a user gives a scale."""
    return None if vmax is None else positive("vmax", vmax, "the end of the scale")


def positive(name: str, value: Any, what: str) -> float:
    """Check a number above 0 that is neither so small nor so large that pictures overflow."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and _LEAST <= value <= _MOST:
        return float(value)
    raise SelectionError(
        f"{name} is {what}, a number above 0, not {value!r:.80}; the least is {_LEAST:g}, the "
        f"largest {_MOST:g}."
    )


def _signed_root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _signed_square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def colour_map(cmap: str | Colormap | None, *, is_signed: bool, is_area: bool = False) -> Colormap:
    """Take the given colour map, or one whose weak end still shows on the background.

    Lightness falls (on a dark background: rises) evenly with attention, so that it reads in grey
    and with any colour vision. Areas start closer to the background than lines.
    """
    if cmap is not None:
        return given_map(cmap)
    ramps = RAMPS["dark" if is_dark() else "light"]
    if is_signed:
        return LinearSegmentedColormap.from_list("attention", ramps["signed"])
    colours = LinearSegmentedColormap.from_list("attention", ramps["unsigned"])
    start = 0.08 if is_area else 0.25
    return LinearSegmentedColormap.from_list("attention", colours(np.linspace(start, 1, 256)))


def given_map(cmap: str | Colormap) -> Colormap:
    """Take a colour map, or find it by name."""
    if isinstance(cmap, Colormap):
        return cmap
    if not isinstance(cmap, str) or cmap not in mpl.colormaps:
        raise SelectionError(
            f"No colours {cmap!r:.200}; give the name of one of matplotlib's colour maps, such as "
            "'viridis', or a Colormap."
        )
    return mpl.colormaps[cmap]


def is_dark() -> bool:
    """Return whether the current style writes light text, which takes a dark background."""
    return _is_light(mpl.rcParams["text.color"])


def ground(ax: Axes, pad: float = 0.08) -> dict[str, Any]:
    """Set text off from the lines behind it; a stroke around it would make it paths in SVG.

    It has the colour of what is behind the axes, or of the style where that is see-through.
    """
    assert ax.figure is not None
    behind = ("black" if is_dark() else "white", ax.figure.figure.get_facecolor())
    shown = (*behind, ax.get_facecolor()) if ax.patch.get_visible() else behind
    face = next(colour for colour in reversed(shown) if to_rgba(colour)[3])
    return {"boxstyle": f"round,pad={pad}", "facecolor": face, "linewidth": 0}


def ink_on(fill: Any) -> str:
    """Choose black or white text, whichever stands out from a fill."""
    return "black" if _is_light(fill) else "white"


def _is_light(colour: Any) -> bool:
    red, green, blue = to_rgb(colour)
    return 0.3 * red + 0.6 * green + 0.1 * blue > 0.5


def hatched_in(colour: Any) -> dict[str, Any]:
    """Return the style of a hatch in a colour, whatever `hatch.color` a style has."""
    named = ["edgecolor", "hatchcolor"] if hasattr(Patch, "set_hatchcolor") else ["edgecolor"]
    return dict.fromkeys(named, colour)


def layer_colours(cmap: str | Colormap | None) -> Colormap:
    """Take the given colours of layers, or those of viridis that stand out from the background."""
    if cmap is not None:
        return given_map(cmap)
    some = np.linspace(0.3, 1.0, 256) if is_dark() else np.linspace(0.0, 0.88, 256)
    return ListedColormap(mpl.colormaps["viridis"](some))
