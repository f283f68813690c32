"""Shortens texts so that those that differ still read differently."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gattn.names.text import visible, width

_TIMES = 3
"""How often texts that still read alike are shortened once more."""
_FEW = 3
"""So many letters of a part that is cut off do not tell it from others."""
_BRACKETED = re.compile(r"(?:\d+ )?(?:<.*\w(\|?>)|\[.*\w(\]))")
"""Names such as "<|endoftext|>", "</s>" and "[MASK]", numbered or not."""
_ROOMY = 4.0
"""From how many font sizes on the closing bracket of a name is kept."""
_WHOLE = 200
"""The most letters of a stack's name that are read."""
_PART = re.compile(r".*[\s._/:-]", re.DOTALL)
"""What texts have in common, up to the end of its last whole part."""


def shortened(
    texts: Sequence[str], limit: float, measure: Callable[[str], float] = width
) -> list[str]:
    """Let texts that are wider than some font sizes end in an ellipsis.

    Names in brackets, as of special tokens, keep the closing one: "<|endo…|>". Where different
    texts would read alike, such as "component 1" and "component 2", or "layers.self_attn" and
    "layers.cross_attn", what tells them apart is kept, too.

    Parameters
    ----------
    texts : sequence of str
        The texts.
    limit : float
        The width beyond which they are shortened, in font sizes.
    measure : callable
        The width of a text, in font sizes.
    """
    found = {text: _cut(text, _end(text, limit), limit, measure) for text in texts}
    read = {text: cut if cut == text else _read(cut) for text, cut in found.items()}
    for _ in range(_TIMES):
        alike: dict[str, list[str]] = {}
        for text, cut in read.items():
            alike.setdefault(cut, []).append(text)
        groups = [group for group in alike.values() if len(group) > 1]
        if not groups:
            break
        for group in groups:
            shared = _shared(group)
            ends = {text: max(len(text) - shared, _told(text)) for text in group}
            found |= {text: _cut(text, end, limit, measure) for text, end in ends.items()}
        read = found
    return [found[text] for text in texts]


def short_names(stacks: Sequence[str], limit: float) -> list[str]:
    """Shorten the names of stacks so that they are told apart.

    First they lose the parts with which all of them begin or end, such as "model"; a number keeps
    what it counts: "stages.2".
    """
    names = [visible(stack, limit=_WHOLE) for stack in stacks]
    parts = [name.split(".") for name in names]
    is_long = max(map(width, names), default=0.0) > limit
    for end in (0, -1) if is_long and len(names) > 1 else ():
        while all(_is_shared(one, end, parts[0][end]) for one in parts):
            for one in parts:
                del one[end]
    return shortened([".".join(one) for one in parts], limit)


def _is_shared(parts: Sequence[str], end: int, part: str) -> bool:
    """Return whether a name has more parts than one of all names that it can lose."""
    return len(parts) > 1 and parts[end] == part and not (end == 0 and parts[1].isdigit())


def _end(text: str, limit: float) -> int:
    """Count the last characters that stay: what closes a name in brackets, or tells it already."""
    named = _BRACKETED.fullmatch(text)
    closing = len(named[1] or named[2]) if named and limit >= _ROOMY else 0
    return max(closing, _told(text))


def _told(text: str) -> int:
    """Count the characters after an ellipsis, which tell a text that was shortened before."""
    return len(text) - text.find("…") - 1 if "…" in text[:-1] else 0


def _read(cut: str) -> str:
    """Return what is read of a text that was cut: no part of which only a few letters are left."""
    shown = cut.removesuffix("…")
    whole = _PART.match(shown)
    return whole[0] if whole and len(shown) - whole.end() <= _FEW else cut


def _shared(texts: Sequence[str]) -> int:
    """Count the characters with which all texts begin, in whole parts if there are several."""
    first, last = min(texts), max(texts)
    size = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    common = first[:size]
    whole = _PART.match(common)
    return whole.end() if whole else len(common)


def _cut(text: str, end: int, limit: float, measure: Callable[[str], float]) -> str:
    """Shorten a text if it is too wide, where possible before so many last characters."""
    if measure(text) <= limit:
        return text
    text = text.removesuffix("…")
    begin, rest = text[: len(text) - end].removesuffix("…"), text[len(text) - end :]
    last = ""
    while measure(f"{begin.rstrip()}…{rest}{last}") > limit and len(begin) + len(rest) > 1:
        if begin:
            begin = begin[:-1]
        else:
            rest, last = rest[:-1], "…"
    return f"{begin.rstrip()}…{rest}{last}"
