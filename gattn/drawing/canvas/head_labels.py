"""Labels of heads, such as "first token (sink), 0.48", in fewer words where there is less room."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gattn.drawing.canvas.labels import shortened, width_of

_SHARE = re.compile(r", \d+\.\d+$")
"""What ends a part of a label in numbers."""
_ASIDE = re.compile(r" \([^()]*\)")
"""What a label says besides."""


def shorter(text: str) -> tuple[str, ...]:
    """Write a label with less and less of it.

    "first token (sink), 0.48; even" loses its shares, then all but its first part, then the words
    in brackets; "…" stands for what follows.
    """
    parts = [_SHARE.sub("", part) for part in text.split("; ")]
    more = "\N{NO-BREAK SPACE}…" * (len(parts) > 1)
    plain = _ASIDE.sub("", parts[0]) or parts[0]
    forms = text, "; ".join(parts), f"{parts[0]}{more}", f"{plain}{more}"
    return tuple(dict.fromkeys(forms))


def fullest(labels: Iterable[str], limit: float) -> list[str]:
    """Write each label in its fullest form that is no wider than some font sizes."""
    found = []
    for label in labels:
        forms = shorter(label)
        fits = (form for form in forms if width_of(form) <= limit)
        found.append(next(fits, "") or shortened([forms[-1]], limit)[0])
    return found
