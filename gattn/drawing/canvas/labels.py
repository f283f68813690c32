"""Labels of tokens that stay readable: they turn, shrink, then thin out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import matplotlib as mpl

from gattn.drawing.canvas import fonts
from gattn.names.text import visible, width

_SMALLEST = 5.5
_STRIDES = (2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Labels:
    """How to label a row of nodes.

    Parameters
    ----------
    texts : list of str
        The text of each node; "" if it has no label.
    size : float
        The font size in points.
    rotation : int
        Degrees, 0, 45 or 90.
    """

    texts: list[str]
    size: float
    rotation: int

    @property
    def widest(self) -> float:
        """The width in points of the widest label."""
        return widest_of(self.texts) * self.size

    @property
    def extent(self) -> float:
        """The height in points that the labels take."""
        return {0: self.size, 45: 0.75 * self.widest + self.size, 90: self.widest}[self.rotation]

    @property
    def overhang(self) -> float:
        """How far in points the first labels may reach out on the left."""
        if self.rotation == 90 or not self.texts:
            return 0.0
        widest = max(map(width, self.texts[:3])) * self.size
        return max(0.0, 0.7 * widest - self.size) if self.rotation == 45 else 0.0

    def within(self, room: float) -> Labels:
        """Shrink the labels to a width in points, as far as they stay readable."""
        wanted = self.size * min(1.0, room / max(self.widest, 1e-9))
        return replace(self, size=max(wanted, min(self.size, _SMALLEST)))


def fit(tokens: Mapping[Any, str], pitch: float, *, rotations: Sequence[int]) -> Labels:
    """Fit labels to the distance between nodes.

    Parameters
    ----------
    tokens : mapping of node to str
        The tokens' texts. Nodes are positions, shown if not every token has a label.
    pitch : float
        The distance between neighbours, in points.
    rotations : sequence of int
        The rotations that the picture allows, in order of preference.
    """
    has_glyph = cache(fonts.has_glyph)
    texts = [visible(token, has_glyph=has_glyph) for token in tokens.values()]
    size = 0.9 * font_size()
    widest = widest_of(texts) * size
    room = {0: widest + 0.5 * size, 45: 1.6 * size, 90: 1.15 * size}
    for rotation in rotations:
        if pitch >= room[rotation]:
            return Labels(texts, size, rotation)
    size = min(size, max(_SMALLEST, pitch / 1.15))
    needed = math.ceil(1.15 * size / max(pitch, 1e-9) - 1e-6)
    if needed > 1:
        stride = next((k for k in _STRIDES if k >= needed), needed)
        every = enumerate(zip(tokens, texts, strict=True))
        texts = [numbered(node, text) if i % stride == 0 else "" for i, (node, text) in every]
    return Labels(texts, size, rotations[-1])


def widest_of(texts: Iterable[str]) -> float:
    """Estimate the width of the widest text, in font sizes."""
    return max(map(width, texts), default=0.0)


def numbered(node: Any, text: str) -> str:
    """Put a node's position before its text, if not every token has a label."""
    position = str(node[1] if isinstance(node, tuple) else node)
    return position if text == position else f"{position} {text}"


def in_digits(value: float, form: str = ".3g") -> str:
    """Write a number as all pictures do: "0.54", "−0.5", never "-0.00"."""
    return f"{value:z{form}}".replace("-", "−")


def font_size() -> float:
    """Return the user's font size in points."""
    return float(mpl.rcParams["font.size"])


def small_size() -> float:
    """Return the font size of keys, captions and small names in points."""
    return 0.75 * font_size()


def larger() -> float:
    """Return how much larger than usual a figure must be for a large font."""
    return max(1.0, font_size() / 10)


def text_style(texts: Sequence[str]) -> dict[str, Any]:
    """Return how matplotlib must set texts that may hold anything: never as mathematics."""
    return {"parse_math": False, "usetex": False, "fontfamily": fonts.families(texts)}
