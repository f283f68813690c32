"""Characters that no font has, and fonts installed while Python runs."""

import os
import warnings

import matplotlib.font_manager as manager
import pytest
from fontTools.ttLib import TTFont
from sample_heads import causal_head

from gattn.drawing.canvas import fonts

CAT = "猫"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Only DejaVu is installed; fonts may be put into an empty folder."""
    listed = [font for font in manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(manager.fontManager, "ttflist", listed)
    monkeypatch.setattr(manager, "X11FontDirectories", [str(tmp_path)])
    for name in ("OSXFontDirectories", "MSUserFontDirectories"):
        monkeypatch.setattr(manager, name, [])
    monkeypatch.setattr(fonts, "_warned", set())
    monkeypatch.delenv("MPL_IGNORE_SYSTEM_FONTS", raising=False)
    clear()
    yield tmp_path
    clear()


def clear():
    for cached in (fonts._installed_with, fonts._glyphs, fonts._usual):
        cached.cache_clear()
    fonts._seen_folders.clear()
    manager.fontManager._findfont_cached.cache_clear()


def install(folder):
    """Write a font of one character, which looks like an A."""
    font = TTFont(manager.findfont("DejaVu Sans"))
    for table in font["cmap"].tables:
        table.cmap = {ord(CAT): "A"} if table.isUnicode() else {}
    for record in font["name"].names:
        if record.nameID in (1, 4, 6, 16):
            record.string = "Cats"
    font.save(folder / "Cats.ttf")
    os.utime(folder, ns=(0, 10**18))  # as if some time had passed


def test_a_missing_character_says_once_which_font_to_install(folder):
    message = r"No installed font has “猫” \(U\+732B, CJK .*fonts-noto-cjk.*draw again"
    with pytest.warns(UserWarning, match=message):
        assert not fonts.has_glyph(CAT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fonts.has_glyph(CAT)
        assert not fonts.has_glyph("犬")  # of the same script
        assert not fonts.has_glyph("\U0010fffd")  # for private use: no font would help


def test_an_emoji_needs_a_font_of_outlines(folder):
    with pytest.warns(UserWarning, match="Noto Emoji .matplotlib cannot draw the coloured one"):
        assert not fonts.has_glyph("\U0001fac0")


def test_a_font_that_was_just_installed_is_used_at_once(folder):
    head = causal_head(2, tokens=[CAT, "dog"])
    with pytest.warns(UserWarning, match="No installed font"):
        before = head.draw("columns")
    install(folder)
    after = head.draw("columns")
    texts = [{text.get_text() for text in ax.texts} for ax in (before, after)]
    assert "U+732B" in texts[0]
    assert CAT in texts[1]
    assert fonts.families([CAT])[-1] == "Cats"


def test_a_damaged_font_is_passed_over(folder):
    (folder / "broken.ttf").write_bytes(b"no font")
    install(folder)
    assert fonts.has_glyph(CAT)


def test_system_fonts_may_be_left_alone(folder, monkeypatch):
    monkeypatch.setenv("MPL_IGNORE_SYSTEM_FONTS", "1")
    install(folder)
    with pytest.warns(UserWarning, match="No installed font"):
        assert not fonts.has_glyph(CAT)
