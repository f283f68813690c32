"""Which fonts can draw which characters, among those installed."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from gattn.checks import warn

_LAST = "DejaVu Sans"
_NOT_UNICODE = ("cmb", "cmex", "cmmi", "cmr", "cmss", "cmsy", "cmtt", "Last Resort")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")
_SETTINGS = [name for name in mpl.rcParams if name.startswith("font.") and name != "font.size"]
"""On what it depends which font a family is."""
_seen_folders: dict[str, int] = {}
"""The folders of fonts that were searched, and when each was changed last."""


def families(texts: Iterable[str]) -> list[str]:
    """List the font families that together draw some texts: the user's own first.

    Families are added for characters that the user's fonts lack, where an installed one has them.
    """
    chosen, drawn = _usual(_settings())
    missing = set().union(*map(set, texts), set()) - drawn
    added: list[str] = []
    for character in sorted(missing):
        if not any(ord(character) in _glyphs(_path(family)) for family in added):
            added.extend(_family_with(character))
    return list(dict.fromkeys([*chosen, *added]))


def are_own(characters: str) -> bool:
    """Return whether the user's own fonts have all of some characters, so that none is added."""
    return _own(_settings()).issuperset(characters)


def usual_characters() -> frozenset[str]:
    """List the characters that the user's fonts, and the last resort, have."""
    return _usual(_settings())[1]


def weight_of(text: str) -> str:
    """Return "bold" if bold fonts have all of a text, which regular ones may have to write."""
    bold = (FontProperties(family=[family], weight="bold") for family in families([text]))
    drawn = frozenset().union(*(_glyphs(str(findfont(one))) for one in bold))
    return "bold" if drawn.issuperset(map(ord, text)) else "normal"


def has_glyph(character: str) -> bool:
    """Return whether any installed font has a character; if none has, warn and say what to do.

    Fonts that were installed since matplotlib listed them are found, too.
    """
    if character in usual_characters() or _family_with(character):
        return True
    _warn(character)
    return False


def _family_with(character: str) -> list[str]:
    """List an installed family with a character, if there is one by now."""
    found, name = _installed_with(character), unicodedata.name(character, "")
    if not found and name and _add_new_fonts():
        found = _installed_with(character)
    return found


def _add_new_fonts() -> bool:
    """Tell matplotlib of fonts that it has not listed; return whether there are any."""
    changed = [folder for folder, when in _folders() if _seen_folders.get(folder) != when]
    if not changed:
        return False
    _seen_folders.update(_folders())
    listed = {os.path.abspath(font.fname) for font in fontManager.ttflist}
    found = font_manager.findSystemFonts(changed)
    new = [path for path in found if os.path.abspath(path) not in listed]
    for path in new:
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):  # damaged, or of a kind it cannot read
            continue
    if new:
        for cached in (_installed_with, _glyphs, _usual, _own):
            cached.cache_clear()
    return bool(new)


def _folders() -> list[tuple[str, int]]:
    """List the folders of fonts with the time of their last change."""
    if os.getenv("MPL_IGNORE_SYSTEM_FONTS"):
        return []
    roots = [
        *font_manager.X11FontDirectories,
        *font_manager.OSXFontDirectories,
        *font_manager.MSUserFontDirectories,
        os.path.join(os.environ.get("WINDIR", r"C:\Windows"), "Fonts"),
    ]
    walked = chain.from_iterable(os.walk(root, followlinks=True) for root in roots)
    found = []
    for folder, _, _ in walked:
        try:
            found.append((folder, os.stat(folder).st_mtime_ns))
        except OSError:
            continue
    return found


def _warn(character: str) -> None:
    """Say once for each script which font is missing, and what to do."""
    name = unicodedata.name(character, "")
    if not name:
        return  # for private use: no font that is meant for all has it
    script = name.partition(" ")[0]
    if unicodedata.category(character) == "So" and ord(character) > 0xFFFF:
        which = "Noto Emoji (matplotlib cannot draw the coloured one)"
    elif script in _EAST_ASIAN:
        which = "Noto Sans CJK (on Debian and Ubuntu: apt install fonts-noto-cjk)"
    else:
        which = "Noto Sans (on Debian and Ubuntu: apt install fonts-noto-core)"
    if not _is_new(which if which.startswith("Noto Emoji") else script):
        return
    code = f"U+{ord(character):04X}"
    warn(
        f"No installed font has “{character}” ({code}, {name}), so pictures show it, and others of "
        f"its kind, as {code}: install a font that has it, such as {which}, and draw again. "
        "Nothing needs to be restarted."
    )


def _is_new(script: str) -> bool:
    """Return whether there was no warning of a script yet."""
    is_new = script not in _warned
    _warned.add(script)
    return is_new


_warned: set[str] = set()


def _settings() -> tuple[str, ...]:
    """Return all on which it depends which fonts are the user's."""
    return (str(len(fontManager.ttflist)), *(str(mpl.rcParams[name]) for name in _SETTINGS))


@lru_cache(maxsize=64)
def _usual(settings: tuple[str, ...]) -> tuple[list[str], frozenset[str]]:
    """List the user's families, at these settings the present ones, and the characters they have.

    Settings and fonts are looked up here, and not for each of the texts that a picture measures.
    """
    chosen = list(dict.fromkeys([*_user_families(), _LAST]))
    every = frozenset().union(*(_glyphs(_path(family)) for family in chosen))
    return chosen, frozenset(map(chr, every))


@lru_cache(maxsize=4)
def _own(settings: tuple[str, ...]) -> frozenset[str]:
    """List the characters of the user's families at these settings."""
    families = _user_families() or [_LAST]
    return frozenset(map(chr, frozenset().union(*(_glyphs(_path(one)) for one in families))))


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
