"""Finds tokens by position, from the end, or by text.

A SelectionError says which tokens there are, or which ones a text may mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from operator import index

import numpy as np

from gattn.errors import SelectionError

_BEFORE, _AFTER = ("##", "Ġ", "▁"), ("</w>", "@@")
_SHOWN = {"␣": " ", "↵": "\n", "\\t": "\t", "\\r": "\r"}
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_PATCH = re.compile(r"(\d+),(\d+)")
_SPACED = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*\)?")
_TWO_NUMBERS = re.compile(r"\D*\d+\D+\d+\D*")
_LISTED = 20


def find_text(
    wanted: str, tokens: Sequence[str], spellings: Iterable[Sequence[str]] = ()
) -> list[int]:
    """Find all tokens that have a text.

    If no token has exactly this text, it may be the tokenizer's name for one ("##believ", " dog"),
    its form in pictures and tables ("␣dog"), or differ only in case, as long as it is clear which
    tokens are meant.

    Parameters
    ----------
    wanted : str
        The text.
    tokens : sequence of str
        The tokens' texts.
    spellings : iterable of sequence of str
        Other names of the tokens.

    Returns
    -------
    list of int
        Their indices among the tokens; empty if there is no such token.

    Raises
    ------
    SelectionError
        If only some of the tokens with the same text are meant, or tokens of different texts.
    """
    found = _find(wanted, tokens, spellings)
    meant = from_shown(wanted)
    return found if found or meant == wanted else _find(meant, tokens, spellings)


def from_shown(text: str) -> str:
    """Read a token as pictures and tables write it: ``␣lamp`` is ``" lamp"``.

    Examples
    --------
    >>> from_shown("␣lamp")
    ' lamp'
    """
    if text == '""':
        return ""
    for shown, meant in _SHOWN.items():
        text = text.replace(shown, meant)
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def _find(wanted: str, tokens: Sequence[str], spellings: Iterable[Sequence[str]]) -> list[int]:
    if exact := [n for n, token in enumerate(tokens) if wanted in (token, token.strip())]:
        return exact
    for spelled in spellings:
        found = [n for n, token in enumerate(spelled) if token == wanted]
        texts = {tokens[n] for n in found}
        others = [n for n, token in enumerate(tokens) if token in texts and n not in found]
        if others:
            raise _unclear(wanted, [*found, *others], tokens)
        if found:
            return found
    plain = _plain(wanted)
    if found := [n for n, token in enumerate(tokens) if _plain(token) == plain]:
        return found
    found = [n for n, token in enumerate(tokens) if _plain(token).casefold() == plain.casefold()]
    if len({tokens[n] for n in found}) > 1:
        raise _unclear(wanted, found, tokens)
    if found or (patch := _SPACED.fullmatch(wanted)) is None:
        return found
    return [n for n, token in enumerate(tokens) if token == ",".join(patch.groups())]


def _plain(token: str) -> str:
    """Strip spaces and a tokenizer's marks."""
    text = token.strip()
    for mark in _BEFORE:
        text = text.removeprefix(mark) or text
    for mark in _AFTER:
        text = text.removesuffix(mark) or text
    return text.strip() or text


def _unclear(wanted: str, found: Sequence[int], tokens: Sequence[str]) -> SelectionError:
    listed = ", ".join(f"{n} {tokens[n]!r}" for n in sorted(found)[:_LISTED])
    return SelectionError(
        f"{wanted!r} may mean several tokens, {listed}: name one as here, or by position."
    )


def described(tokens: Sequence[str], wanted: object = None) -> str:
    """Return which tokens there are, or those most similar to a text that is missing."""
    if not tokens:
        return "there are no tokens"
    known = list(dict.fromkeys(tokens))
    if isinstance(wanted, str) and _TWO_NUMBERS.fullmatch(wanted) and (size := grid_of(known)):
        return _patches_described(size)
    alike = get_close_matches(wanted, known, 3) if isinstance(wanted, str) else []
    if alike:
        return f"the most similar tokens are {', '.join(map(repr, alike))}"
    more = ", ..." if len(tokens) > _LISTED else ""
    return f"the {len(tokens)} tokens are {', '.join(map(repr, tokens[:_LISTED]))}{more}"


def grid_of(tokens: Sequence[str]) -> tuple[int, int] | None:
    """Return how many rows and columns of patches tokens are named by; None if by something else.

    Examples
    --------
    >>> grid_of(["class", "0,0", "0,1", "1,0", "1,1"])
    (2, 2)
    """
    found = [one for one in map(_PATCH.fullmatch, tokens) if one is not None]
    if 2 * len(found) <= len(tokens):
        return None
    rows, columns = (1 + max(int(one[side]) for one in found) for side in (1, 2))
    return rows, columns


def cells_of(tokens: Sequence[str]) -> tuple[int, int, list[int]] | None:
    """Return how many rows and columns of patches tokens are named by, and the cell of each.

    It is -1 for a token that is no patch; None if tokens are named by something else.
    """
    if (size := grid_of(tokens)) is None:
        return None
    found = map(_PATCH.fullmatch, tokens)
    return *size, [-1 if one is None else int(one[1]) * size[1] + int(one[2]) for one in found]


def _patches_described(size: tuple[int, int]) -> str:
    rows, columns = size
    return (
        f"patches are '0,0' .. '{rows - 1},{columns - 1}', rows 0 .. {rows - 1} and columns "
        f"0 .. {columns - 1}"
    )


def unclear_pair(name: str, given: object) -> str | None:
    """Say what to write for a tuple of two positions, where patches lie in rows and columns.

    Pictures take such a pair for a patch, edits for two tokens. None for anything else.
    """
    if not isinstance(given, tuple) or len(given) != 2:
        return None
    if not all(isinstance(one, Integral) and int(one) >= 0 for one in given):
        return None
    row, column = given
    return (
        f"{name}=({row}, {column}) may mean a patch or two tokens: write "
        f'{name}="{row},{column}" for the patch in row {row} and column {column}, or '
        f"{name}=[{row}, {column}] for the tokens {row} and {column}."
    )


def find_tokens(
    wanted: int | str, positions: Sequence[int], tokens: Sequence[str], name: str = "token"
) -> list[int]:
    """Find tokens by a position, negative from the end, or by a text, which may name several.

    Returns
    -------
    list of int
        Their indices among the tokens.
    """
    if found := places_of(wanted, positions, tokens, name):
        return found
    if isinstance(wanted, str):
        raise SelectionError(f"No {name} {wanted!r}; {described(tokens, wanted)}.")
    raise _no_place(wanted, positions, tokens, name)


def places_of(
    wanted: int | str, positions: Sequence[int], tokens: Sequence[str], name: str = "token"
) -> list[int]:
    """Do what `find_tokens` does, but return an empty list if there is no such token."""
    if isinstance(wanted, str):
        return find_text(wanted, tokens)
    try:
        number = index(wanted)
        if isinstance(wanted, (bool, np.bool_)):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise _no_place(wanted, positions, tokens, name) from error
    if number < 0:
        return [len(positions) + number] if number >= -len(positions) else []
    return [n for n, position in enumerate(positions) if position == number]


def _no_place(
    wanted: object, positions: Sequence[int], tokens: Sequence[str], name: str
) -> SelectionError:
    if not positions:
        return SelectionError(f"{name} must be a token, but there are no tokens.")
    size = grid_of(tokens)
    return SelectionError(
        f"{name} must be a token's position, here {positions[0]} .. {positions[-1]} (-1, -2 ... "
        f"from the end), or its text, not {wanted!r}"
        + (f"; {_patches_described(size)}." if size else ".")
    )


def find_token(
    wanted: int | str, positions: Sequence[int], tokens: Sequence[str], name: str = "token"
) -> int:
    """Find exactly one token; see `find_tokens`."""
    found = find_tokens(wanted, positions, tokens, name)
    if len(found) > 1:
        places = ", ".join(str(positions[n]) for n in found[:_LISTED])
        raise SelectionError(
            f"{name} is one token, but {wanted!r} is at the positions {places}: pass one of these."
        )
    return found[0]
