"""Whether a ranking is of a text's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gattn.errors import SelectionError
from gattn.heads.head import Ints


def text_order(name: str, labels: Sequence[Any], tokens: Sequence[str]) -> Ints:
    """Find the tokens 0, 1, 2 ... among labels: their positions, or their texts in order."""
    if all(isinstance(label, str) for label in labels):
        check_texts(name, labels, tokens)
        return np.arange(len(tokens))
    try:
        fits = sorted(labels) == list(range(len(tokens)))
    except TypeError:
        fits = False
    if not fits:
        shown = ", ".join(map(repr, labels[:4])) + ", ..." * (len(labels) > 4)
        raise SelectionError(
            f"{name!r} is indexed by {shown}, which are not the positions 0 .. {len(tokens) - 1} "
            "of the text's tokens: index it by these, or pass only the numbers, in text order."
        )
    return np.argsort(np.array(labels, dtype=np.int64))


def check_texts(name: str, given: Sequence[str], expected: Sequence[str]) -> None:
    """Refuse tokens other than a text's; tokens named by their positions may be any."""
    if list(given) == [str(n) for n in range(len(given))]:
        return
    for position, (one, other) in enumerate(zip(given, expected, strict=True)):
        if one != other:
            raise other_text(name, position, one, other)


def other_text(name: str, position: int, given: str, expected: str) -> SelectionError:
    """Make the error that a ranking is of another text."""
    return SelectionError(
        f"{name!r} ranks other tokens than the text's: token {position} is {given!r} there, and "
        f"{expected!r} in the text. Rank the same text, with the same tokenizer."
    )
