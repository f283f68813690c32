"""Tokens as text that any font can show, independent of matplotlib."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gattn.names.pieces import spelled

_NAMED = {"\n": "↵", "\t": "\\t", "\r": "\\r"}
_DOTTED_CIRCLE = "◌"


def always(character: str) -> bool:
    """Pretend that the font has every character."""
    return True


def visible(token: str, *, limit: int = 16, has_glyph: Callable[[str], bool] = always) -> str:
    r"""Write a token without characters that are invisible, change the layout, or lack a glyph.

    Parameters
    ----------
    token : str
        Any string.
    limit : int
        The number of characters beyond which it ends in an ellipsis.
    has_glyph : callable
        Whether a character can be drawn.

    Returns
    -------
    str
        Spaces at the ends are stripped; if there are only spaces, each is ``␣``, and an empty token
        is ``""``. A newline is ``↵``, other control characters are escapes such as ``\\x00``, and
        invisible or missing characters look like ``U+202E``.

    Examples
    --------
    >>> visible(" the"), visible("  "), visible("a\nb"), visible("")
    ('the', '␣␣', 'a↵b', '""')
    """
    if not token:
        return '""'
    stripped = token.strip(" ")
    pieces = [_piece(character, has_glyph) for character in stripped or "␣" * len(token)]
    if unicodedata.combining(stripped[:1] or " ") and has_glyph(_DOTTED_CIRCLE):
        pieces.insert(0, _DOTTED_CIRCLE)
    return _ellipsised(pieces, limit)


def quoted(
    token: str,
    *,
    limit: int = 24,
    has_glyph: Callable[[str], bool] = always,
    is_entry: bool = False,
) -> str:
    """Write a token within a sentence, so that punctuation and spaces are told from its own.

    Of an entry of the vocabulary, such as a predicted token, spaces before it are shown: “␣lamp”.
    """
    word = token.lstrip(" ")
    shown = "␣" * (len(token) - len(word)) + word if is_entry and word else token
    return f"“{visible(shown, limit=limit, has_glyph=has_glyph)}”"


_PLACE = re.compile(r"\d+,\d+|[-+.e\d]+ s")
"""The name of a patch, and that of a moment."""


def numbered(node: Any, text: str) -> str:
    """Put a node's position before its text: ``5 lamp``.

    It is left out of texts that say where they are: ``5``, ``0,5`` of a patch, or ``0.2 s``.
    """
    position = str(node[1] if isinstance(node, tuple) else node)
    return text if text == position or _PLACE.fullmatch(text) else f"{position} {text}"


def placed(
    position: Any, tokens: Sequence[str], at: int, *, has_glyph: Callable[[str], bool] = always
) -> str:
    """Name one of some tokens within a sentence: ``5 “lamp”``, or ``5`` if that is its text, too.

    A part of a character is named as labels name it, by those beside it: ``5 “é 2/2”``.
    """
    token = spelled(tokens)[at]
    return f"{position}" + f" {quoted(token, has_glyph=has_glyph)}" * (token != str(position))


_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def writable(text: str) -> str:
    """Write as escapes what XML cannot hold, or what turns the direction of the text around it."""
    return _UNFIT.sub(lambda found: _piece(found[0], always), text)


def _piece(character: str, has_glyph: Callable[[str], bool]) -> str:
    if character in _NAMED:
        return _NAMED[character]
    category = unicodedata.category(character)
    if category == "Cc":
        return f"\\x{ord(character):02x}"
    hidden = category[0] == "C" or (category[0] == "Z" and character != " ")
    if hidden or not has_glyph(character):
        return f"U+{ord(character):04X}"
    return character


def _ellipsised(pieces: list[str], limit: int) -> str:
    if len(_joined(pieces)) <= limit:
        return _joined(pieces)
    kept: list[str] = []
    for piece in pieces:
        if kept and len(_joined([*kept, piece])) >= limit:
            break
        kept.append(piece)
    return _joined(kept) + "…"


def _joined(pieces: list[str]) -> str:
    """Join characters and escapes, with spaces around ``U+...``."""
    text = ""
    for before, piece in zip(["", *pieces], pieces, strict=False):
        apart = before and (len(piece) > 4 or len(before) > 4)
        text += f" {piece}" if apart else piece
    return text


def width(text: str) -> float:
    """Estimate the width of a line of text, in units of its font size."""
    return sum(map(_character_width, text))


def _character_width(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "ijltfr.,:;'|!()[]- ":
        return 0.4
    if character in "mwMW@%…—":
        return 0.95
    return 0.75 if character.isupper() or character.isdigit() or character in "+−=<>#&→←" else 0.62


def worded(name: str) -> str:
    """Write the name of a column in words: "edges_for_90" is "edges for 90 %"."""
    return name.replace("_for_90", "_for_90_%").replace("_", " ")


_APART = re.compile(r"(?<![≥×<+−/])(?!(?<=\bhead) \d)(?!(?<=\blayer) \d) (?![%≥×+−/]|[01]\.\d+\b)")
"""The spaces at which a line may end: not within "head 1", or beside a sign of mathematics."""

_EVEN = 0.5
"""To how much of a font size lines are made as long as each other."""


def wrapped(text: str, limit: float, measure: Callable[[str], float] = width) -> str:
    """Break text at spaces into lines of at most `limit` font sizes, if words are short enough.

    The lines are as few as can be, and about as long as each other: no word stands alone at the
    end. A share such as 0.43 stays with the word before it, and "60 %", "head 1" and
    "attention ≥ 0.1" stay whole. Names that are longer than a line break after a dot, a dash or a
    slash, and no "·" begins or ends a line. Lines that the text has stay lines.

    Parameters
    ----------
    text : str
        The text.
    limit : float
        The width of a line, in font sizes.
    measure : callable
        The width of a text, in font sizes.
    """
    return "\n".join(line for own in text.split("\n") for line in _lines(own, limit, measure))


def _lines(text: str, limit: float, measure: Callable[[str], float]) -> list[str]:
    of_one = cache(measure)
    pieces = [piece for word in _APART.split(text) for piece in _pieces(word, limit, measure)]
    lines = _filled(pieces, limit, measure)
    if len(lines) == 1:
        return lines
    widths = [sum(map(of_one, piece)) for piece in pieces]
    even, high = lines, max(sum(map(of_one, line)) for line in lines)
    low = high / 2
    while high - low > _EVEN:
        middle = (low + high) / 2
        starts = _starts(pieces, widths, middle, of_one(" "))
        if len(starts) != len(lines):
            low = middle
            continue
        ends = [*starts[1:], len(pieces)]
        even = [_line(pieces[start:end]) for start, end in zip(starts, ends, strict=True)]
        high = middle
    found = even if max(map(measure, even)) <= limit else lines
    return [line.removeprefix("· ").removesuffix(" ·") for line in found]


_INSIDE = re.compile(r"(?<=[/_-])(?=\w)|(?<=\.)(?=[^\W\d])|(?<=[^\W\d]\.)(?=\d)")
"""Where names such as "encoder.layers.0" may break, unlike numbers."""
_LEAST_LINE = 6.0
"""From which width of a line on, in font sizes, names are broken."""


def _pieces(word: str, limit: float, measure: Callable[[str], float]) -> list[str]:
    """Break a word that is longer than a line; each piece but its first follows without a space."""
    if limit < _LEAST_LINE or measure(word) <= limit:
        return [f" {word}"]
    first, *others = _INSIDE.split(word)
    return [f" {first}", *others]


def _line(pieces: Sequence[str]) -> str:
    return "".join(pieces).removeprefix(" ")


def _starts(
    pieces: Sequence[str], widths: Sequence[float], limit: float, space: float
) -> list[int]:
    """List the pieces with which lines start that take as many of such widths as have room."""
    starts, line = [0], widths[0]
    for n, width in enumerate(widths[1:], 1):
        line += width
        if line > limit + space:  # a line begins without its space
            starts.append(n)
            line = width + space * (not pieces[n].startswith(" "))
    return starts


def _filled(pieces: Sequence[str], limit: float, measure: Callable[[str], float]) -> list[str]:
    """Put as many pieces on each line as have room."""
    lines: list[str] = []
    for piece in pieces:
        if lines and measure(f"{lines[-1]}{piece}") <= limit:
            lines[-1] += piece
        else:
            lines.append(_line([piece]))
    return lines
