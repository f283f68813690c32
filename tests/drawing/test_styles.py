"""Style sheets, and fonts in the files of figures."""

import io
import os
import re
import stat
import zlib
from threading import Thread

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from sample_heads import causal_head

import gattn
from gattn.drawing.many_heads.notebook import apart, notebook_picture
from gattn.drawing.page.still import still
from gattn.drawing.styles import figures
from gattn.drawing.styles.figures import TextFigure
from gattn.errors import FileError, SelectionError
from gattn.heads.stack import Stack

TRACE = gattn.AttentionTrace.from_arrays(np.tril(np.full((2, 2, 4, 4), 0.25)))
PICTURES = {
    "arcs": lambda: causal_head(5).draw("arcs").figure,
    "matrix": lambda: causal_head(5).draw("matrix").figure,
    "text": lambda: causal_head(5).draw_text().figure,
    "token graph": lambda: gattn.TokenGraph.causal(4).draw().figure,
    "all heads": TRACE.draw,
    "comparison": lambda: TRACE.draw(other=TRACE),
    "table": lambda: TRACE.summary().draw().figure,
}


def written(figure, kind):
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def font_kinds(pdf):
    """Read the kinds of fonts from a PDF, whose streams may be compressed."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    inflated = [zlib.decompress(one) for one in streams if one[:1] == b"x"]
    return set(re.findall(rb"/Subtype\s*/(Type\w+|CIDFont\w+)", b"\n".join([pdf, *inflated])))


@pytest.mark.parametrize("picture", PICTURES)
def test_fonts_of_files_are_those_that_journals_accept(picture):
    figure = PICTURES[picture]()
    assert font_kinds(written(figure, "pdf")) == {b"Type0", b"CIDFontType2"}
    assert set(re.findall(rb"/FontType (\d+)", written(figure, "eps"))) == {b"42"}
    assert b"<text" in written(figure, "svg")


def test_matplotlib_itself_writes_fonts_that_journals_refuse():
    figure = Figure()
    figure.text(0.5, 0.5, "text")
    assert b"Type3" in font_kinds(written(figure, "pdf"))


def test_settings_are_as_before_after_a_figure_is_saved():
    before = mpl.rcParams.copy()
    written(causal_head(3).draw().figure, "pdf")
    assert mpl.rcParams == before


@pytest.mark.parametrize("name", ["paper", "talk", "dark"])
def test_a_style_holds_in_its_block_alone_and_for_good_if_used(name):
    before = mpl.rcParams.copy()
    sheet = gattn.style(name)
    with sheet as inside:
        assert inside is sheet
        assert {key: mpl.rcParams[key] for key in sheet} == dict(sheet)
        figure = Figure()
        figure.text(0.5, 0.5, "text")
        assert b"Type3" not in font_kinds(written(figure, "pdf"))
    assert mpl.rcParams == before
    with plt.style.context(f"gattn.drawing.styles.{name}"):
        assert {key: mpl.rcParams[key] for key in sheet} == dict(sheet)
    with mpl.rc_context():
        plt.style.use(gattn.style(name))
        assert mpl.rcParams["pdf.fonttype"] == 42


def test_styles_of_sizes_and_of_colours_go_together_in_either_order():
    with gattn.style("paper"), gattn.style("dark"):
        one = mpl.rcParams.copy()
    with gattn.style("dark"), gattn.style("paper"):
        assert mpl.rcParams == one
        face, ink = (mpl.colors.to_rgb(one[name]) for name in ("figure.facecolor", "text.color"))
        assert max(face) < 0.2 < 0.8 < min(ink)


def test_one_style_may_be_entered_twice():
    before, sheet = mpl.rcParams.copy(), gattn.style("talk")
    with sheet, sheet:
        pass
    assert mpl.rcParams == before


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle", "matrix"])
def test_a_picture_keeps_its_style_when_its_figure_is_saved_after_the_block(layout):
    def saved(figure):
        figure.set_size_inches(3.5, 3)
        return written(figure, "png")

    head = causal_head(8, tokens=tuple("abcdefgh"))
    with gattn.style("dark"), gattn.style("paper"):
        expected = saved(head.draw(layout).figure)
        figure = head.draw(layout).figure
        dpi = mpl.rcParams["savefig.dpi"]
    with mpl.rc_context({"savefig.dpi": dpi}):
        assert saved(figure) == expected


def test_an_unknown_style_is_refused_with_those_that_there_are():
    with pytest.raises(
        SelectionError, match="no style 'poster'; there are 'paper', 'talk', 'dark'"
    ):
        gattn.style("poster")


def test_a_notebook_shows_a_figure_once(monkeypatch):
    """If pyplot shows its figures at the end of a cell, the cell's value is not shown again."""
    figure = TRACE.draw()
    assert isinstance(figure, TextFigure)
    with pytest.raises(NotImplementedError):  # IPython then shows it
        figure._ipython_display_()
    plt.ion()
    try:
        figure._ipython_display_()
        plt.close(figure)
        with pytest.raises(NotImplementedError):
            figure._ipython_display_()
    finally:
        plt.ioff()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_where_pyplot_displays_figures_below_cells_it_has_no_figure_that_was_displayed(monkeypatch):
    monkeypatch.setattr(figures, "_is_inline", lambda: True)
    figure = TRACE.draw()
    with plt.ion(), pytest.raises(NotImplementedError):
        figure._ipython_display_()
    assert not plt.fignum_exists(figure.number)


@pytest.mark.parametrize(
    "shown",
    [
        lambda: notebook_picture(TRACE[0, 0]),
        lambda: notebook_picture(TRACE[0, 0].graph),
        lambda: apart(TRACE.draw),
        lambda: still([TRACE], None),
        lambda: gattn.style("paper").__enter__().__exit__(),
    ],
)
def test_a_backend_that_turns_drawing_on_when_it_is_loaded_is_loaded_outside_of_contexts(
    shown, monkeypatch
):
    """As matplotlib-inline does: what turns it off again would hide all figures of a notebook."""
    monkeypatch.setattr(figures, "_is_inline", lambda: True)
    monkeypatch.setattr(plt, "draw_if_interactive", plt.ion)
    try:
        shown()
        assert plt.isinteractive()
    finally:
        plt.ioff()


def test_a_plain_script_shows_the_figure_of_a_trace():
    figure = TRACE.draw(figsize=(4, 3))
    assert plt.gcf() is figure
    assert figure.get_size_inches().tolist() == [4, 3]


@pytest.mark.parametrize("dpi", [50, 300])
def test_a_file_of_pixels_leaves_no_mark_in_the_file_of_vectors_after_it(dpi, tmp_path):
    """Texts of matplotlib remember what they were last drawn by, at its dots per inch."""

    def drawn():
        head = causal_head(9, tokens=list("abcdefghi"), layer=0, head=0)
        trace = gattn.AttentionTrace({"decoder": Stack("decoder", {(0, 0): head})}, "a-model")
        return gattn.analysis.rollout(trace).draw().figure

    def caption_of(figure):
        figure.savefig(tmp_path / "after.svg")
        (caption,) = [x for x in figure.axes[0].texts if x.get_gid() == "gattn-caption"]
        return caption.get_text(), caption.get_position()

    figure = drawn()
    figure.savefig(tmp_path / "before.png", dpi=dpi)
    found, wanted = caption_of(figure), caption_of(drawn())
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1], wanted[1], atol=1)


@pytest.mark.skipif(os.name != "posix", reason="there are devices and pipes")
def test_a_figure_is_written_to_a_device_and_through_a_pipe(tmp_path):
    figure = causal_head(4).draw().figure
    for place in ("/dev/null", tmp_path / "null.png"):
        if place != "/dev/null":
            place.symlink_to("/dev/null")
        figure.savefig(place)
        figure.savefig(place, format="pdf")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    figure.savefig(pipe, format="png")
    reader.join(timeout=10)
    assert read[0].startswith(b"\x89PNG")
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null.png", "pipe"]
    with pytest.raises(FileError, match="/dev/full cannot be written: No space left"):
        figure.savefig("/dev/full")
