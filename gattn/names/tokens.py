"""Finds the tokens that somebody names: by position, from the end, or by text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from operator import index

import numpy as np

from gattn.errors import SelectionError

_BEFORE, _AFTER = ("##", "Ġ", "▁"), ("</w>", "@@")
_SHOWN = {"␣": " ", "↵": "\n", "\\t": "\t", "\\r": "\r"}
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_LISTED = 20


def find_text(
    wanted: str, tokens: Sequence[str], spellings: Iterable[Sequence[str]] = ()
) -> list[int]:
    """Find the tokens of a text, by the names that attention graphs show.

    Where no token has the text itself, it may be what the tokenizer calls one ("##believ",
    " dog", or in lower case "the") or what pictures and tables write ("␣dog"), if that leaves no
    doubt which are meant.

    Parameters
    ----------
    wanted : str
        The text.
    tokens : sequence of str
        The tokens' texts.
    spellings : iterable of sequence of str
        What else the tokens are called.

    Returns
    -------
    list of int
        Their places among the tokens, none where there is no such token.

    Raises
    ------
    SelectionError
        Where some of the tokens that have one text are meant and others are not, or several
        different texts differ from what was written.
    """
    found = _find(wanted, tokens, spellings)
    meant = from_shown(wanted)
    return found if found or meant == wanted else _find(meant, tokens, spellings)


def from_shown(text: str) -> str:
    """Give the token that pictures and tables write so: ``␣lamp`` is ``" lamp"``.

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
    return found


def _plain(token: str) -> str:
    """Take away a tokenizer's marks, and spaces."""
    text = token.strip()
    for mark in _BEFORE:
        text = text.removeprefix(mark) or text
    for mark in _AFTER:
        text = text.removesuffix(mark) or text
    return text.strip() or text


def _unclear(wanted: str, found: Sequence[int], tokens: Sequence[str]) -> SelectionError:
    listed = ", ".join(f"{n} {tokens[n]!r}" for n in sorted(found)[:_LISTED])
    return SelectionError(
        f"{wanted!r} may mean several tokens, {listed}: name one as it is written there, or by its "
        "position."
    )


def described(tokens: Sequence[str], wanted: object = None) -> str:
    """Say which tokens there are; first those most like a text that is not there."""
    if not tokens:
        return "there are no tokens"
    known = list(dict.fromkeys(tokens))
    alike = get_close_matches(wanted, known, 3) if isinstance(wanted, str) else []
    if alike:
        return f"the tokens most alike are {', '.join(map(repr, alike))}"
    more = ", ..." if len(tokens) > _LISTED else ""
    return f"the {len(tokens)} tokens are {', '.join(map(repr, tokens[:_LISTED]))}{more}"


def find_tokens(
    wanted: int | str, positions: Sequence[int], tokens: Sequence[str], name: str = "token"
) -> list[int]:
    """Find tokens by a position, from the end -1, -2 ..., or a text, which names each of that text.

    Returns
    -------
    list of int
        Their places among the tokens.

    Raises
    ------
    SelectionError
        Where there is none, or the text leaves doubt which are meant.
    """
    if found := places_of(wanted, positions, tokens, name):
        return found
    if isinstance(wanted, str):
        raise SelectionError(f"No {name} {wanted!r}; {described(tokens, wanted)}.")
    raise SelectionError(f"No {name} {wanted!r}: {_no_place(wanted, positions, name)}")


def places_of(
    wanted: int | str, positions: Sequence[int], tokens: Sequence[str], name: str = "token"
) -> list[int]:
    """Do what `find_tokens` does, but give no places where there is no such token."""
    if isinstance(wanted, str):
        return find_text(wanted, tokens)
    try:
        number = index(wanted)
        if isinstance(wanted, (bool, np.bool_)):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise _no_place(wanted, positions, name) from error
    if number < 0:
        return [len(positions) + number] if number >= -len(positions) else []
    return [n for n, position in enumerate(positions) if position == number]


def _no_place(wanted: object, positions: Sequence[int], name: str) -> SelectionError:
    if not positions:
        return SelectionError(f"{name} is a token's position, but there are no tokens.")
    return SelectionError(
        f"{name} is a token's position, here {positions[0]} .. {positions[-1]}, from the end "
        f"-1, -2 ..., or its text, not {wanted!r}."
    )


def find_token(
    wanted: int | str, positions: Sequence[int], tokens: Sequence[str], name: str = "token"
) -> int:
    """Find one token; see `find_tokens`.

    Raises
    ------
    SelectionError
        Where there is none, or several have the text.
    """
    found = find_tokens(wanted, positions, tokens, name)
    if len(found) > 1:
        places = ", ".join(str(positions[n]) for n in found[:_LISTED])
        raise SelectionError(
            f"{name} is one token, but {wanted!r} stands at the positions {places}: name one of "
            "these."
        )
    return found[0]
