"""Labels of tokens that stay readable: they shorten, turn, shrink, then thin out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray

from gattn.drawing.canvas import fonts
from gattn.names import shortening
from gattn.names.pieces import spelled
from gattn.names.text import numbered, visible

_EXPONENT = re.compile(r"(?<![\w.“\"])(?<!\w-)(\d+(?:\.\d+)?)e([+-]\d\d\d?)(?![\w.])")
_RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_RAISE = str.maketrans("-0123456789", _RAISED)
_SMALLEST = 5.0
"""The size of the smallest text in points, or the user's own if that is smaller."""
_FIRST_IN_ROW = re.compile(r"\d+,0")
"""The name of the first patch of a row."""
_FEWEST_ROWS = 3
"""How many rows at least are named by their first patches in place of other patches."""
_STRIDES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_MEASURED_AT = 100.0
HINTED = 1.04
"""How much wider than in vector files letters get when they are fitted to pixels."""
COARSEST = 1.06
"""How much wider again, at most, lines of small text get at 72 to 144 dots per inch."""
_BETWEEN = 0.5
"""The least distance between labels side by side, in font sizes."""
_BETWEEN_LETTERS = 0.15
"""That of labels of one character each, which turned would take no less room."""
_LINE, _SLANTED = 1.15, 1.65
"""How far apart upright and slanted labels stand, in font sizes."""
_USUAL = 5.0
"""The width in font sizes to which no label is shortened for being wider than others."""
_MOST_OF = 0.7
"""The share of their room that labels may fill though they are wider than others."""
_WHOLE = 200
"""The most letters of a token that are read to tell it from others."""
_FEWEST = 2.4
"""To what width in font sizes a label is shortened at most: three letters and an ellipsis."""


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
        widest = widest_of(self.texts[:3]) * self.size
        return max(0.0, 0.7 * widest - self.size) if self.rotation == 45 else 0.0

    def within(self, room: float) -> Labels:
        """Shrink the labels to a width in points, as far as they stay readable; then shorten."""
        wanted = self.size * min(1.0, room / max(self.widest, 1e-9))
        size = max(wanted, min(self.size, smallest()))
        return replace(self, size=size, texts=shortened(self.texts, room / size))

    def closed(self, pitch: float) -> Labels:
        """Leave out the last label where, around a circle, it would meet the first."""
        shown = [n for n, text in enumerate(self.texts) if text]
        between = (len(self.texts) - shown[-1] + shown[0]) * pitch if shown else math.inf
        if len(shown) < 2 or between >= _LINE * self.size:
            return self
        return self._without_last()

    def is_clear_of_next(self, pitch: float, between: float) -> bool:
        """Return whether the last label stays away from the first of a like row beside this one.

        The rows are `between` points apart, their nodes `pitch` points.
        """
        shown = [n for n, text in enumerate(self.texts) if text]
        if not shown:
            return True
        least = _LINE * self.size
        if self.rotation == 0:
            ends = [self.texts[shown[0]], self.texts[shown[-1]]]
            least = (float(widths_of(ends).sum()) / 2 + _between(ends)) * self.size
        return bool((len(self.texts) - shown[-1] + shown[0]) * pitch + between >= least)

    def clear_of_next(self, pitch: float, between: float) -> Labels:
        """Leave out the last label where it would meet the first of a like row beside this one."""
        return self if self.is_clear_of_next(pitch, between) else self._without_last()

    def beside(self, other: Labels, places: Sequence[float], around: float = math.inf) -> Labels:
        """Label these nodes, and then those of another row, whose labels these do not meet.

        `places` are where the nodes of both stand, in points along a line that is closed if it is
        so many points long `around`.
        """
        size, count = min(self.size, other.size), len(self.texts)
        taken = [place for place, text in zip(places[count:], other.texts, strict=True) if text]

        def is_clear(place: float) -> bool:
            apart = (abs(place - one) for one in taken)
            return all(min(far, around - far) >= _LINE * size for far in apart)

        own = zip(self.texts, places[:count], strict=True)
        texts = [text if text and is_clear(place) else "" for text, place in own]
        return replace(self, size=size, texts=[*texts, *other.texts])

    def _without_last(self) -> Labels:
        last = max(n for n, text in enumerate(self.texts) if text)
        return replace(self, texts=[*self.texts[:last], *[""] * (len(self.texts) - last)])


def fit(
    tokens: Mapping[Any, str],
    pitch: float,
    *,
    rotations: Sequence[int],
    reach: float = math.inf,
    first: Sequence[Any] = (),
) -> Labels:
    """Fit labels to the distance between nodes.

    A long label among short ones is shortened, so that the others need not turn.

    Parameters
    ----------
    tokens : mapping of node to str
        The tokens' texts. Nodes are positions, shown if not every token has a label.
    pitch : float
        The distance between neighbours, in points.
    rotations : sequence of int
        The rotations that the picture allows, in order of preference.
    reach : float
        How far turned labels may reach, in points; longer ones are shortened.
    first : sequence of nodes
        Those that are named before others where not all have room.
    """
    texts = _visible(spelled(tokens.values()))
    size = 0.9 * font_size()
    smaller = min(size, max(smallest(), pitch / _LINE))
    for rotation in rotations:
        if rotation == 0:
            for some in (size, smaller) if _are_letters(texts) else (size,):
                if (found := _side_by_side(texts, pitch / some)) is not None:
                    return Labels(found, some, 0)
        elif pitch >= {45: _SLANTED, 90: _LINE}[rotation] * size:
            limit = reach * (2**0.5 if rotation == 45 else 1.0) / size
            return Labels(_alike(texts, limit), size, rotation)
    size = smaller
    needed = math.ceil(_LINE * size / max(pitch, 1e-9) - 1e-6)
    if needed > 1:
        chosen = _some(list(tokens), needed, first, texts)
        every = enumerate(zip(tokens, texts, strict=True))
        texts = [numbered(node, text) if i in chosen else "" for i, (node, text) in every]
    return Labels(_alike(texts, reach / size), size, rotations[-1])


def _some(nodes: Sequence[Any], apart: int, first: Sequence[Any], texts: Sequence[str]) -> set[int]:
    """Choose nodes that are at least so far apart: the first, and others at round numbers.

    Of the patches of an image, those are chosen that start every row, or every second and so on.
    """
    stride = next((k for k in _STRIDES[1:] if k >= apart), apart)
    others: Sequence[int] = range(0, len(nodes), stride)
    starts = [n for n, text in enumerate(texts) if _FIRST_IN_ROW.fullmatch(text)]
    if len(starts) >= _FEWEST_ROWS:
        rows = next((k for k in _STRIDES if k * (starts[1] - starts[0]) >= apart), len(starts))
        others = starts[::rows] if len(starts[::rows]) >= _FEWEST_ROWS else others
    places = [n for n, node in enumerate(nodes) if node in set(first)]
    chosen: set[int] = set()
    for place in [*places, *others]:
        if chosen.isdisjoint(range(place - apart + 1, place + apart)):
            chosen.add(place)
    return chosen


def _visible(tokens: Sequence[str]) -> list[str]:
    """Write tokens so that every font can show them, in a few letters that tell them apart."""
    usual, elsewhere = fonts.usual_characters(), cache(fonts.has_glyph)
    seen = partial(visible, has_glyph=lambda one: one in usual or elsewhere(one))
    whole = [seen(token, limit=_WHOLE) for token in tokens]
    texts = [seen(token) for token in tokens]
    alike = len(set(texts)) < len(set(whole))
    return shortening.shortened(whole, max(map(len, texts)), len) if alike else texts


def _are_letters(texts: Sequence[str]) -> bool:
    """Return whether each text is one character, or none."""
    return max(map(len, texts), default=0) <= 1


def _between(texts: Sequence[str]) -> float:
    """Return how far apart these labels must stand side by side, in font sizes."""
    return _BETWEEN_LETTERS if _are_letters(texts) else _BETWEEN


def _side_by_side(texts: Sequence[str], pitch: float) -> list[str] | None:
    """Return texts that stand side by side, a few of them shortened; None if they do not."""
    widths, room = widths_of(texts), pitch - _between(texts)
    if not (widths[1:] + widths[:-1] > 2 * room).any():
        return list(texts)
    is_long = widths > room
    if room < _FEWEST or is_long.sum() > max(1, len(texts) // 10):
        return None
    beside = np.pad(np.minimum(widths, room), 1)
    left = 2 * room - np.maximum(beside[:-2], beside[2:])
    found = [
        shortened([text], float(most))[0] if too_long else text
        for text, most, too_long in zip(texts, left, is_long, strict=True)
    ]
    return found if len(set(found)) == len(set(texts)) else shortened(texts, room)


def _alike(texts: Sequence[str], limit: float) -> list[str]:
    """Shorten texts to some font sizes, and the few that are far wider than the others more."""
    widths = widths_of(texts)
    usual = max(_USUAL, 2 * float(np.median(widths[widths > 0])) if widths.any() else 0.0)
    usual = max(usual, _MOST_OF * limit)
    if 0 < (widths > usual).sum() <= max(1, len(texts) // 10):
        limit = min(limit, usual)
    return shortened(texts, limit)


def shortened(texts: Sequence[str], limit: float) -> list[str]:
    """Shorten texts that are wider than some font sizes, so that they still read differently."""
    limit = max(limit, _FEWEST)
    if not (widths_of(texts) > limit).any():
        return list(texts)
    families = tuple(fonts.families(texts))
    return shortening.shortened(texts, limit, lambda text: _width(text, families))


def widths_of(texts: Sequence[str]) -> NDArray[np.float64]:
    """Measure the widths of lines of text in the user's font, in font sizes."""
    families = tuple(fonts.families(texts))
    return np.array([_width(text, families) for text in texts], dtype=np.float64)


def widest_of(texts: Iterable[str]) -> float:
    """Measure the width of the widest text, in font sizes."""
    return float(widths_of(list(texts)).max(initial=0.0))


def width_of(text: str) -> float:
    """Measure the width of a line of text in the user's font, in font sizes."""
    return float(widths_of([text])[0])


@lru_cache(maxsize=1 << 15)
def _width(text: str, families: tuple[str, ...]) -> float:
    font = FontProperties(family=list(families), size=_MEASURED_AT)
    across, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return HINTED * float(across) / _MEASURED_AT


def in_digits(value: float, form: str = ".3g") -> str:
    """Write a number as all pictures do: "0.54", "−0.5", "6.6×10⁻⁵", never "-0.00"."""
    return with_powers(f"{value:z{form}}").replace("-", "−")


def with_powers(text: str) -> str:
    """Write the numbers of a text that have an exponent, such as 6.6e-05, as "6.6×10⁻⁵".

    They stay as they are in a font without raised digits.
    """
    return _EXPONENT.sub(_raised, text) if fonts.are_own(_RAISED) else text


def _raised(found: re.Match[str]) -> str:
    return f"{found[1]}×10{f'{int(found[2])}'.translate(_RAISE)}"


def in_percent(share: float) -> str:
    """Write a share as all pictures do: "60 %"; "99.6 %" and "0.4 %", which are not all or none."""
    percent = 100 * share
    is_nearly = 0.05 <= percent < 0.95 or 99.5 <= percent < 99.95
    return f"{in_digits(percent, '.1f' if is_nearly else '.0f')} %"


def font_size() -> float:
    """Return the user's font size in points."""
    return float(mpl.rcParams["font.size"])


def small_size() -> float:
    """Return the font size of keys, captions and small names in points."""
    return 0.75 * font_size()


def smallest() -> float:
    """Return the font size in points below which labels do not shrink."""
    return min(_SMALLEST, small_size())


def larger() -> float:
    """Return how much larger than usual a figure must be for a large font."""
    return max(1.0, font_size() / 10)


def text_style(texts: Sequence[str]) -> dict[str, Any]:
    """Return how matplotlib must set texts that may hold anything: never as mathematics."""
    return {"parse_math": False, "usetex": False, "fontfamily": fonts.families(texts)}
