"""Numbers with an exponent are written with powers of ten, on axes and in captions."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from meeting import drawn_texts, problems
from seen import caption
from test_bars_of_effects import table

import gattn
from gattn.drawing.canvas.frame import write_texts
from gattn.drawing.canvas.labels import in_digits, with_powers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-6.55e-05, "−6.55×10⁻⁵"),
        (1e-12, "1×10⁻¹²"),
        (123456.0, "1.23×10⁵"),
        (1.5e300, "1.5×10³⁰⁰"),
        (0.54, "0.54"),
        (-0.0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_with_an_exponent(value, text):
    assert in_digits(value) == text


def test_texts_that_only_look_so_stay_as_they_are():
    for text in (
        "model_1e-05",
        "model-1e-05",
        "“1e-05”",
        "1e-05b",
        "v2.1e-05.bin",
        "0e5",
        "e-05",
        "12 − 1e5",
    ):
        assert with_powers(text) == text
    assert with_powers("by -6.5e-05") == "by -6.5×10⁻⁵"
    assert with_powers("to 5.0e-16 of 1e+06, at most") == "to 5.0×10⁻¹⁶ of 1×10⁶, at most"


def test_fonts_without_raised_digits_keep_the_exponent():
    from gattn.drawing.canvas import fonts

    with mpl.rc_context({"font.family": ["STIXSizeOneSym"]}):
        assert not fonts.are_own("⁻⁵")
        assert in_digits(-6.55e-05) == "−6.55e−05"
    assert fonts.are_own("⁻⁵")


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 3)])
@pytest.mark.parametrize("layout", ["edits", "arcs", "matrix", "heads"])
def test_pictures_of_small_effects(layout, size):
    edges = [gattn.Cut(layer=2, head=0, query=4, key=key) for key in range(4)]
    heads = [gattn.Cut(layer=layer, head=head) for layer in range(2) for head in range(4)]
    found = table(heads if layout == "heads" else edges)
    found["effect"] = np.linspace(-1, 0.7, len(found)) * 6.55e-5
    with mpl.rc_context({"font.size": 7}):
        ax = found.draw(layout, ax=Figure(size).add_subplot())
        assert not problems(ax.figure)
        texts = {box.text for box in drawn_texts(ax.figure)}
    assert not [text for text in texts if "e-0" in text or "e−0" in text]
    assert [text for text in texts if "×10⁻" in text]


def test_a_caption_of_ones_own_stays_as_it_is():
    ax = Figure().add_subplot()
    write_texts(ax, "", "off by 5.0e-16")
    assert caption(ax) == "off by 5.0×10⁻¹⁶"
    write_texts(ax, "", "off by 5.0e-16", is_whole=True)
    assert caption(ax) == "off by 5.0e-16"
