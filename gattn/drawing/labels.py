"""Labels of tokens that stay readable: they turn, shrink, then thin out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

from gattn.drawing import fonts
from gattn.drawing.text import visible, width

_SMALLEST = 5.5


@dataclass(frozen=True)
class Labels:
    """How to label a row of nodes.

    Parameters
    ----------
    texts : list of str
        The text of each node; "" where it goes without.
    size : float
        The font size in points.
    rotation : int
        Degrees, 0, 45 or 90.
    """

    texts: list[str]
    size: float
    rotation: int

    @property
    def extent(self) -> float:
        """The height in points that the labels take."""
        widest = max(map(width, self.texts), default=0.0) * self.size
        return {0: self.size, 45: 0.75 * widest + self.size, 90: widest}[self.rotation]


def fit(
    tokens: Sequence[str],
    positions: Sequence[int],
    pitch: float,
    *,
    rotations: Sequence[int] = (0, 45, 90),
) -> Labels:
    """Fit labels to the distance between nodes.

    Parameters
    ----------
    tokens : sequence of str
        The tokens' texts.
    positions : sequence of int
        Their positions, shown where not every token has a label.
    pitch : float
        The distance between neighbours, in points.
    rotations : sequence of int
        The rotations that the picture allows, in order of preference.
    """
    texts = [visible(token, has_glyph=fonts.has_glyph) for token in tokens]
    size = 0.9 * font_size()
    widest = max(map(width, texts), default=0.0) * size
    room = {0: widest + 0.5 * size, 45: 1.6 * size, 90: 1.15 * size}
    for rotation in rotations:
        if pitch >= room[rotation]:
            return Labels(texts, size, rotation)
    steepest = rotations[-1]
    size = max(_SMALLEST, pitch / 1.15)
    stride = max(1, -(-1.15 * size // pitch))
    if stride == 1:
        return Labels(texts, size, steepest)
    stride = next((k for k in (2, 5, 10, 20, 50, 100) if k >= stride), int(stride))
    numbered = [
        f"{position} {text}" if index % stride == 0 else ""
        for index, (position, text) in enumerate(zip(positions, texts, strict=True))
    ]
    return Labels(numbered, size, steepest)


def font_size() -> float:
    """Tell the user's font size in points."""
    return float(mpl.rcParams["font.size"])


def text_style(texts: Sequence[str]) -> dict[str, Any]:
    """Say how matplotlib must set texts that may hold anything: never as mathematics."""
    return {"parse_math": False, "usetex": False, "fontfamily": fonts.families(texts)}


def position_of(node: Hashable) -> int:
    """Tell the position of a node, which a bipartite graph names ("key", j)."""
    return int(node[1] if isinstance(node, tuple) else node)  # type: ignore[call-overload]
