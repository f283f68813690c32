"""Writes calls that differ only in some values by these values alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

_VALUE = re.compile(r"=(.*?)(?=, \w+=|\)$|\), \w+\()", re.DOTALL)
"""The value of a keyword, up to the next keyword, the end of the call, or the next call."""
_LEFT_OUT = "…"


def in_form(texts: Sequence[str]) -> tuple[str, list[str]]:
    """Say what calls have in common, and write each by the values in which it differs.

    Parameters
    ----------
    texts : sequence of str
        Calls with keywords, such as edits.

    Returns
    -------
    (str, list of str)
        The form, with an ellipsis for each such value, and these values; "" and the texts
        themselves if they are no such calls, or do not differ in values alone.

    Examples
    --------
    >>> in_form(["Cut(layer=1, head=2)", "Cut(layer=1, head=3)", "Cut(layer=1, head=4)"])
    ('Cut(layer=1, head=…)', ['2', '3', '4'])
    >>> in_form(["Cut(layer=1)", "Scale(0.5, layer=1)"])
    ('', ['Cut(layer=1)', 'Scale(0.5, layer=1)'])
    """
    rest = {_VALUE.sub("=", text) for text in texts}
    if len(rest) != 1:
        return "", list(texts)
    values = [_VALUE.findall(text) for text in texts]
    differ = [len(set(some)) > 1 for some in zip(*values, strict=True)]
    if not any(differ):
        return "", list(texts)
    shown = iter(differ)
    form = _VALUE.sub(lambda found: f"={_LEFT_OUT}" if next(shown) else found[0], texts[0])
    return form, [
        ", ".join(value for value, is_told in zip(some, differ, strict=True) if is_told)
        for some in values
    ]
