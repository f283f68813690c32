"""Reads heads named as text, such as ``5.1``: one grammar for all of gattn.

A ValueError says what is expected instead of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

Numbers: TypeAlias = "int | list[int] | None"
Places: TypeAlias = "list[tuple[int, int]]"

MOST = 100_000
"""The most layers, heads or tokens that can be listed."""
DIGITS = 12
_RANGE = r"\d+(?:-\d+)?"
_COMMA = r"\s*,\s*"
NUMBERS = rf"(?:\*|{_RANGE}(?:{_COMMA}{_RANGE})*)"
_HEADS = rf"{_RANGE}\.{_RANGE}(?:{_COMMA}{_RANGE}\.{_RANGE})+"
_STACK = r"[^\W\d][\w.]*(?: [\w.]+)*"
PLACE = rf"(?:{_STACK}:)?(?:{_HEADS}|{NUMBERS}(?:\.{NUMBERS})?)"
_PARTS = re.compile(
    rf"(?:(?P<stack>{_STACK}):)?"
    rf"(?:(?P<heads>{_HEADS})|(?P<layer>{NUMBERS})(?:\.(?P<head>{NUMBERS}))?)"
)
EXAMPLES = "2.1 for head 1 of layer 2, 1.1,2.0 for several, or decoder:2.1 of a stack"


@dataclass(frozen=True)
class Named:
    """What a text names: single heads, or the same heads of several layers.

    Parameters
    ----------
    stack : str, optional
        The stack, if it is named.
    layer, head : int or list of int, optional
        The layers, and the heads of each; None for all.
    heads : tuple of (layer, head)
        Heads of different layers, as in ``1.1,2.0``; then there is no layer and no head.
    """

    stack: str | None = None
    layer: Numbers = None
    head: Numbers = None
    heads: tuple[tuple[int, int], ...] = ()

    def places(self) -> Places:
        """List its heads as (layer, head), unless it takes the model to know which they are."""
        if self.heads:
            return list(self.heads)
        if self.layer is None or self.head is None:
            raise ValueError(f"heads with their layers, such as {EXAMPLES}")
        return _product(self.layer, self.head)


def read_heads(text: str) -> Named:
    """Read ``[STACK:]LAYER[.HEAD]``, or heads of different layers, ``[STACK:]1.1,2.0``.

    A layer and a head are a number, a range ``2-4``, a list ``1,4``, or ``*`` for all.
    """
    found = _PARTS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a place [STACK:]LAYER[.HEAD], both from 0, such as {EXAMPLES}")
    if found["heads"]:
        pairs = (one.split(".") for one in found["heads"].split(","))
        heads = [place for pair in pairs for place in _product(*map(read_numbers, pair))]
        if len(heads) > MOST:
            raise ValueError(f"at most {MOST:,} heads")
        return Named(found["stack"], heads=tuple(dict.fromkeys(heads)))
    return Named(found["stack"], _numbers(found["layer"]), _numbers(found["head"]))


def read_choice(text: str) -> tuple[str | None, list[int] | Places]:
    """Read which heads are chosen: numbers, such as ``0,2-4``, or places, such as ``1.1,2.0``.

    Returns
    -------
    tuple
        The stack, where places name it, and the numbers or places.

    Raises
    ------
    ValueError
        If the text is neither; it says what is expected instead.
    """
    return list_places(text) if "." in text else (None, read_numbers(text))


def list_places(given: Any) -> tuple[str | None, Places]:
    """Read single heads: as text, or several, each as (layer, head) or text.

    Returns
    -------
    tuple
        The stack, if a text names it, and the heads.
    """
    parts = [given] if isinstance(given, str) else _listed(given)
    stacks: dict[str | None, None] = {}
    heads: Places = []
    for part in parts:
        if isinstance(part, str):
            named = read_heads(part)
            stacks[named.stack] = None
            heads += named.places()
        else:
            heads.append(_pair(part))
    if len(stacks) > 1:
        raise ValueError("heads of one stack, named once or with each of them")
    return next(iter(stacks), None), list(dict.fromkeys(heads))


def read_numbers(written: str) -> list[int]:
    """Read numbers and ranges, such as ``0,2-4``, at most `MOST` of them."""
    numbers: list[int] = []
    for part in map(str.strip, written.split(",")):
        first, dash, last = part.partition("-")
        start, stop = read_number(first), read_number(last if dash else first)
        if stop < start:
            raise ValueError(f"rising ranges: {part} is empty")
        if stop - start + len(numbers) >= MOST:
            raise ValueError(f"at most {MOST:,} numbers")
        numbers += range(start, stop + 1)
    return numbers


def read_number(written: str) -> int:
    """Read one number of a layer, head or token, of at most `DIGITS` digits."""
    if len(written) > DIGITS:
        raise ValueError(f"numbers of at most {DIGITS} digits")
    if not written.isdecimal():
        raise ValueError(f"numbers, such as 0,2-4: {written!r} is not one")
    return int(written)


def _numbers(written: str | None) -> Numbers:
    if written is None or written == "*":
        return None
    return read_number(written) if written.isdecimal() else read_numbers(written)


def _product(layers: Numbers, heads: Numbers) -> Places:
    several = [[one] if isinstance(one, int) else one or [] for one in (layers, heads)]
    if len(several[0]) * len(several[1]) > MOST:
        raise ValueError(f"at most {MOST:,} heads")
    return [(layer, head) for layer in several[0] for head in several[1]]


def _listed(given: Iterable[Any]) -> Sequence[Any]:
    try:
        return list(given)
    except TypeError:
        raise ValueError(
            f"several heads, each as (layer, head) or text, such as {EXAMPLES}"
        ) from None


def _pair(place: Any) -> tuple[int, int]:
    try:
        layer, head = place
        if not {type(layer), type(head)} & {bool, str} and min(index(layer), index(head)) >= 0:
            return index(layer), index(head)
    except (TypeError, ValueError):
        pass
    raise ValueError("each head as (layer, head), which count from 0, or as text such as '2.1'")
