"""Which fonts can draw which characters, among those installed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import matplotlib as mpl
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

_LAST = "DejaVu Sans"
_NOT_UNICODE = ("cmb", "cmex", "cmmi", "cmr", "cmss", "cmsy", "cmtt", "Last Resort")


def families(texts: Iterable[str]) -> list[str]:
    """List the font families that together draw some texts: the user's own first.

    Families are added for characters that the user's fonts lack, where an installed one has them.
    """
    chosen = list(dict.fromkeys([*_user_families(), _LAST]))
    for character in sorted(set().union(*map(set, texts), set())):
        if not any(ord(character) in _glyphs(_path(family)) for family in chosen):
            chosen.extend(_installed_with(character)[:1])
    return list(dict.fromkeys(chosen))


def has_glyph(character: str) -> bool:
    """Return whether any installed font has a character."""
    known = [*_user_families(), _LAST]
    if any(ord(character) in _glyphs(_path(family)) for family in known):
        return True
    return bool(_installed_with(character))


def _user_families() -> list[str]:
    """List the families of the settings that are installed."""
    family = mpl.rcParams["font.family"]
    wanted = [family] if isinstance(family, str) else list(family)
    return [family for family in wanted if _is_installed(family)]


def _is_installed(family: str) -> bool:
    try:
        findfont(FontProperties(family=[family]), fallback_to_default=False)
    except ValueError:
        return False
    return True


def _path(family: str) -> str:
    return str(findfont(FontProperties(family=[family])))


@lru_cache(maxsize=4096)
def _installed_with(character: str) -> list[str]:
    """List the families with a character in their upright, regular font, one at most."""
    for font in fontManager.ttflist:
        plain = font.style == "normal" and font.weight in (400, "normal", "regular")
        if not plain or font.name.startswith(_NOT_UNICODE):
            continue
        has_it = ord(character) in _glyphs(font.fname)
        # Of two files of one family, the one that matplotlib takes must have it.
        if has_it and ord(character) in _glyphs(_path(font.name)):
            return [font.name]
    return []


@lru_cache(maxsize=4096)
def _glyphs(path: str) -> frozenset[int]:
    try:
        font = get_font(path)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
