"""Pictures obey matplotlib's settings, and none of them breaks a picture."""

import dataclasses
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.texmanager import TexManager
from sample_heads import causal_head

from gattn.drawing import notebook_svg
from gattn.graph.token_graph import TokenGraph

SVG = "{http://www.w3.org/2000/svg}text"
TOKENS = ["The", "quick", "brown", "fox", "jumps", "ünder", "a", "$dog$"]


def head():
    found = causal_head(8, tokens=TOKENS, generated=2)
    return dataclasses.replace(found, sink=np.full(8, 0.1), score=np.log(found.attention))


PICTURES = {
    "arcs": lambda: head().draw("arcs"),
    "columns": lambda: head().draw("columns"),
    "circle": lambda: head().draw("circle"),
    "matrix": lambda: head().draw("matrix"),
    "scores": lambda: head().draw("matrix", values="score"),
    "positions": lambda: head().draw({i: (i, i % 3) for i in range(-1, 8)}),
    "text": lambda: head().draw_text(),
    "token graph": lambda: TokenGraph.causal(8).draw(),
    "token graph in blocks": lambda: TokenGraph.causal(1200).draw(),
    "token graph as lines": lambda: TokenGraph.causal(8).draw("arcs"),
}
SETTINGS = [
    {"text.usetex": True},
    {"font.family": "serif"},
    {"font.family": ["No such font", "DejaVu Sans Mono"]},
    {"font.size": 6},
    {"font.size": 20},
    {"axes.facecolor": "#eeeeff", "savefig.transparent": True},
    {"axes.grid": True, "axes.spines.top": False},
    {"figure.autolayout": True},
    {"figure.constrained_layout.use": True},
    {"legend.frameon": True, "legend.fontsize": 20, "xtick.labelsize": 20},
    {"image.origin": "lower", "image.aspect": "auto"},
    {"patch.force_edgecolor": True, "lines.linestyle": "--", "axes.unicode_minus": False},
    {"text.color": "white", "figure.facecolor": "black"},
]


@pytest.fixture(params=PICTURES.values(), ids=PICTURES)
def picture(request):
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda some: next(iter(some)))
def test_no_setting_breaks_a_picture(picture, settings, monkeypatch, caplog):
    monkeypatch.setattr(TexManager, "get_text_width_height_descent", None)
    with mpl.rc_context(settings):
        picture().figure.savefig(io.BytesIO())
    assert not [record for record in caplog.records if "No such font" not in record.message]


def texts_of(figure, **settings):
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", **settings}):
        figure.savefig(buffer, format="svg")
    return ["".join(node.itertext()) for node in ET.fromstring(buffer.getvalue()).iter(SVG)]


@pytest.mark.parametrize("name", ["arcs", "columns", "circle", "matrix", "positions", "text"])
def test_every_token_can_be_selected_in_an_svg(name):
    assert set(TOKENS) <= set(texts_of(PICTURES[name]().figure))


@pytest.mark.parametrize("name", ["arcs", "matrix", "text"])
def test_a_pdf_holds_its_fonts_as_truetype(name):
    buffer = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42, "pdf.compression": 0}):
        PICTURES[name]().figure.savefig(buffer, format="pdf")
    found = re.findall(rb"/Subtype /(Type3|CIDFontType2|TrueType)\b", buffer.getvalue())
    assert found
    assert b"Type3" not in found


def test_a_notebook_shows_text_as_text():
    svg = notebook_svg(head())
    written = ["".join(node.itertext()) for node in ET.fromstring(svg).iter(SVG)]
    assert set(TOKENS) <= set(written)


def test_a_notebook_picture_does_not_depend_on_layout_engines():
    plain = notebook_svg(head())
    with mpl.rc_context({"figure.constrained_layout.use": True}):
        assert notebook_svg(head()) == plain


@pytest.mark.parametrize("size", [6, 20])
def test_labels_follow_the_font_size(size, picture):
    with mpl.rc_context({"font.size": size}):
        ax = picture()
        ax.figure.draw_without_rendering()
    written = [text for text in ax.texts if text.get_gid() == "gattn-label" and text.get_text()]
    written += [label for label in ax.get_yticklabels() if label.get_text()]
    assert written
    assert max(text.get_fontsize() for text in written) <= size
    assert ax.title.get_fontsize() == pytest.approx(1.2 * size)


def test_fonts_that_are_not_installed_are_passed_over_in_silence(caplog):
    with mpl.rc_context({"font.family": ["No such font", "DejaVu Serif"]}):
        ax = head().draw("arcs")
    families = {tuple(text.get_fontfamily()) for text in ax.texts}
    assert families == {("DejaVu Serif", "DejaVu Sans")}


def test_a_transparent_picture_leaves_the_paper_as_it_is():
    buffer = io.BytesIO()
    with mpl.rc_context({"savefig.transparent": True}):
        head().draw("matrix").figure.savefig(buffer)
    buffer.seek(0)
    pixels = plt.imread(buffer)
    assert pixels[0, 0, 3] == 0


def rasters(figure, **options):
    """The widths and heights of the images in an SVG that matplotlib has turned into pixels."""
    file = io.StringIO()
    figure.savefig(file, format="svg", **options)
    sizes = re.findall(
        r'<image[^>]*translate[^>]* width="([\d.]+)" height="([\d.]+)"', file.getvalue()
    )
    return np.array(sizes, dtype=float)


@pytest.mark.parametrize(
    "draw",
    [lambda: head().draw("matrix"), lambda: head().at_times(0.5).draw_time()],
    ids=["matrix", "time"],
)
def test_pixels_of_a_tight_file_are_as_large_as_in_any_other(draw):
    plain, tight = rasters(draw().figure), rasters(draw().figure, bbox_inches="tight")
    assert len(plain) > 0
    np.testing.assert_allclose(tight, plain, atol=2 * 72 / mpl.rcParams["figure.dpi"])
