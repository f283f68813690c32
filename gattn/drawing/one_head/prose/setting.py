"""Running text: tokens side by side in lines, as prose is set."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.labels import HINTED, widths_of
from gattn.names.pieces import first_whole, spelled
from gattn.names.text import visible

PAD = 0.14
"""How far a word's box reaches beyond its text on either side, in font sizes."""
JOINT = 0.06
"""How far a token's box reaches beyond its text where it joins another of the word."""
_SPACE = 0.34
_LONGEST = 40
_LOOSE, _MORE = 6.0, 0.12
"""From which width in font sizes on a token's box leaves more room, and which share: letters that
are fitted to pixels take more than the space between words makes up for."""

_WIDE = 0.05
"""The room that a Chinese, Japanese or Korean letter takes more where it is fitted to pixels."""


@dataclass(frozen=True)
class Setting:
    """Where the tokens of a text stand, in font sizes.

    Parameters
    ----------
    texts : list of str
        What is written for each token.
    left, right : array (tokens,)
        Where the box of each begins and ends.
    line : array of int (tokens,)
        The line that each stands in, from 0.
    starts_word : array of bool (tokens,)
        Whether there is a space, or the edge of the text, on the left.
    """

    texts: list[str]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    line: NDArray[np.int64]
    starts_word: NDArray[np.bool_]

    @property
    def lines(self) -> int:
        """The number of lines."""
        return int(self.line.max(initial=-1)) + 1


@dataclass(frozen=True)
class Words:
    """A text's tokens with what sets them apart: `spaces` before each, and whether a line ends.

    Parameters
    ----------
    texts : list of str
        What is written for each token.
    widths : list of float
        The width of each, in font sizes.
    spaces : list of int
        How many spaces stand before each.
    ends_line : list of bool
        Whether a new line begins after it.
    """

    texts: list[str]
    widths: list[float]
    spaces: list[int]
    ends_line: list[bool]

    @classmethod
    def of(cls, tokens: Sequence[str], words: Sequence[int | None]) -> Words:
        """Read tokens, with the word that each is a part of where that is known."""
        has_glyph = cache(fonts.has_glyph)
        texts = [
            visible(token, limit=_LONGEST, has_glyph=has_glyph).removeprefix("##")
            for token in spelled(tokens, first_whole)
        ]
        ends_line = [token.rstrip(" ").endswith("\n") for token in tokens]
        widths = widths_of(texts)
        widths = widths / HINTED + _MORE * np.maximum(widths - _LOOSE, 0.0)
        widths += [_WIDE * sum(map(_is_wide, text)) for text in texts]
        return cls(texts, widths.tolist(), _spaces(tokens, words), ends_line)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The tokens that stand together without a space, as half-open ranges."""
        starts = [
            i for i, spaces in enumerate(self.spaces) if i == 0 or spaces or self.ends_line[i - 1]
        ]
        return list(pairwise([*starts, len(self.spaces)]))

    @property
    def width(self) -> float:
        """The width of the text in one line for each line of its own."""
        return float(self.set(float("inf")).right.max(initial=0.0))

    def set(self, width: float) -> Setting:
        """Break the text into lines of a width, between words where that can be."""
        left, right, line = (np.zeros(len(self.texts)) for _ in range(3))
        starts_word = np.zeros(len(self.texts), dtype=bool)
        x, row = 0.0, 0
        for first, stop in self.runs:
            space = self.spaces[first] * _SPACE
            total = sum(self.widths[first:stop]) + 2 * PAD + 2 * JOINT * (stop - first - 1)
            if x and x + space + total > width:
                x, row, space = 0.0, row + 1, 0.0
            is_long = space + total > width
            x += space
            starts_word[first] = True
            for i in range(first, stop):
                pads = PAD * ((i == first) + (i == stop - 1)) + JOINT * (
                    (i > first) + (i < stop - 1)
                )
                if is_long and i > first and x + self.widths[i] + pads > width:
                    x, row = 0.0, row + 1
                left[i], right[i], line[i] = x, x + self.widths[i] + pads, row
                x = right[i]
            if self.ends_line[stop - 1]:
                x, row = 0.0, row + 1
        return Setting(self.texts, left, right, line.astype(np.int64), starts_word)


def _spaces(tokens: Sequence[str], words: Sequence[int | None]) -> list[int]:
    """Count the spaces before each token: its own, or one where a word begins."""
    own = [len(token) - len(token.lstrip(" ")) for token in tokens]
    if any(token.startswith(" ") and token.strip() for token in tokens):
        return own
    found = []
    for i, token in enumerate(tokens):
        before = words[i - 1] if words and i else None
        is_inside = words[i] is not None and words[i] == before if words else token[:2] == "##"
        closes = _is(token[:1], "Pe", "Pf") or token[:1] in set(",.;:!?%")
        opens = i > 0 and _is(tokens[i - 1][-1:], "Ps", "Pi")
        begins = i == 0 or tokens[i - 1].endswith("\n")
        found.append(int(not (begins or is_inside or closes or opens)))
    return found


def _is(character: str, *categories: str) -> bool:
    return bool(character) and unicodedata.category(character) in categories


def _is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"
