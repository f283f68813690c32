"""What a notebook shows of heads and traces: the page in a sandboxed frame over a picture."""

import base64
import io
import re

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from playwright.sync_api import expect

import gattn
from gattn.drawing.notebooks import bundle
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.steps import OtherStep
from gattn.heads.trace import AttentionTrace

TEXT = "The dog chased the cat, and the cat chased the dog"


@pytest.fixture
def notebook(visit, tmp_path):
    """Open a document with the outputs of cells."""

    def show(*outputs):
        path = tmp_path / "notebook.html"
        cells = "".join(f"<div>{output}</div>" for output in outputs)
        path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{cells}", encoding="utf-8")
        return visit(path)

    return show


def test_two_cells_show_two_pages_at_once(notebook):
    trace = gattn.capture(TEXT)
    page = notebook(trace._repr_html_(), trace[1, 1]._repr_html_())
    whole, one = page.frames[1:]
    expect(whole.locator("#facts")).to_contain_text("4 layers × 4 heads")
    expect(one.locator("#head-title")).to_contain_text(re.compile("layer 1", re.IGNORECASE))


def test_the_frame_reaches_nothing_outside(notebook):
    page = notebook(gattn.capture(TEXT)._repr_html_())
    frame = page.frames[1]
    expect(frame.locator("#head-title")).not_to_be_empty()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts allow-downloads"
    for reach in ("parent.document.title", "top.location.href", "localStorage.length"):
        found = frame.evaluate(
            f"() => {{ try {{ return {reach} }} catch (e) {{ return e.name }} }}"
        )
        assert found == "SecurityError", reach


def test_where_frames_are_dropped_a_picture_is_left(notebook):
    html = gattn.capture(TEXT)[1, 1]._repr_html_()
    page = notebook(re.sub("<iframe.*</iframe>", "", html, flags=re.DOTALL))
    picture = page.locator("img")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    assert "layer 1" in picture.get_attribute("alt")


def test_the_frame_covers_the_picture(notebook):
    page = notebook(gattn.capture(TEXT)._repr_html_())
    frame, cell = page.locator("iframe").bounding_box(), page.locator(".gattn").bounding_box()
    assert frame == cell
    assert frame["height"] > 600


def test_what_is_too_large_for_a_notebook_says_how_to_write_a_page(monkeypatch):
    head = AttentionGraph.from_dense(np.tri(30) / 30, TokenGraph.causal(30))
    assert "<iframe" in head._repr_html_()
    monkeypatch.setattr(bundle, "_LARGEST_FRAME", 400)
    html = head._repr_html_()
    assert "<iframe" not in html
    assert "<img" in html
    assert ".to_html(" in html


def test_what_will_be_too_large_is_not_written_first(monkeypatch):
    head = AttentionGraph.from_dense(np.random.default_rng(0).random((60, 60)))
    monkeypatch.setattr(bundle, "_LARGEST_FRAME", 4000)
    monkeypatch.setattr(bundle, "page_in_frame", None)
    assert ".to_html(" in head._repr_html_()


def test_heads_of_other_tokens_show_a_picture_and_why_no_page():
    heads = {(0, n): AttentionGraph.from_dense(np.ones((n, n)) / n) for n in (3, 4)}
    html = AttentionTrace({"decoder": Stack("decoder", heads)})._repr_html_()
    assert "<iframe" not in html
    assert "<img" in html
    assert "different tokens" in html


def test_an_empty_trace_shows_no_page():
    assert AttentionTrace({})._repr_html_() is None
    assert AttentionTrace({})._repr_mimebundle_() == {}


def test_hostile_names_stay_within_their_attributes():
    head = AttentionGraph.from_dense(
        np.ones((2, 2)), kept_by=(OtherStep('"><script>alert(1)</script>\0\u202e'),)
    )
    html = head._repr_html_()
    assert "<script" not in html
    assert "\0" not in html
    assert "\u202e" not in html  # which would turn what a reader is told
    assert html.count('"') % 2 == 0


# Themes

PLAIN = "null"
"""Playwright forces any other color scheme onto frames, whatever contains them."""
DARK = {
    "JupyterLab": 'data-jp-theme-light="false"',
    "VS Code": 'class="vscode-dark" data-vscode-theme-kind="vscode-dark"',
    "VS Code, high contrast": 'class="vscode-high-contrast"',
    "Colab": 'theme="dark"',
    "a site": 'data-theme="dark"',
}
LIGHT = {
    "JupyterLab": 'data-jp-theme-light="true"',
    "VS Code": 'class="vscode-light"',
    "VS Code, high contrast": 'class="vscode-high-contrast vscode-high-contrast-light"',
    "Colab": 'theme="light"',
    "a site": 'data-theme="light"',
}


@pytest.fixture(scope="module")
def shown():
    """A head as a page, and without its frame as the picture behind it."""
    html = gattn.capture(TEXT)[1, 1]._repr_html_()
    return html, re.sub("<iframe.*</iframe>", "", html, flags=re.DOTALL)


def lightness(element):
    """The lightness of what is left above in an element."""
    return plt.imread(io.BytesIO(element.screenshot()))[2:4, 2:4, :3].mean()


@pytest.mark.parametrize("place", DARK)
def test_page_and_picture_follow_the_theme_of_the_notebook(
    place, shown, browser, dark_browser, tmp_path
):
    path = tmp_path / "notebook.html"
    for system, marks, theme in ((browser, DARK, "dark"), (dark_browser, LIGHT, "light")):
        path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body {marks[place]}>{shown[0]}")
        page = system.new_page(color_scheme=PLAIN)
        page.goto(path.as_uri())
        expect(page.frame_locator("iframe").locator(f'html[data-theme="{theme}"]')).to_have_count(1)
        page.evaluate("document.querySelector('iframe').remove()")
        assert (lightness(page.locator("img")) > 0.5) == (theme == "light")
        page.close()


def test_a_change_of_theme_changes_what_is_shown(notebook, shown):
    page = notebook(*shown)
    page.emulate_media(color_scheme=PLAIN)
    for is_light in (True, False, True):
        page.evaluate(f"document.body.dataset.jpThemeLight = '{str(is_light).lower()}'")
        name = "light" if is_light else "dark"
        expect(page.frame_locator("iframe").locator(f'html[data-theme="{name}"]')).to_have_count(1)
        assert (lightness(page.locator("img").nth(1)) > 0.5) == is_light


@pytest.mark.parametrize("system", ["light", "dark"])
def test_where_no_theme_is_known_the_system_decides(system, shown, visit, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{shown[1]}")
    picture = visit(path, color_scheme=system).locator("img")
    assert (lightness(picture) > 0.5) == (system == "light")


# Pictures of everything else


def unrolled():
    return gattn.capture(TEXT).unroll()


PICTURED = {
    "Stack": lambda: gattn.capture(TEXT)["decoder"],
    "TokenGraph": lambda: TokenGraph.longformer(12, 2, [0]),
    "Unrolled": unrolled,
    "Unrolled with rollout": lambda: unrolled().rollout(query=-1),
    "Routes": lambda: gattn.analysis.routes(TEXT, progress=False),
    "Circuit": lambda: gattn.circuit("a b a b a", progress=False, random=1),
    "Circuits": lambda: gattn.circuit(["a b a b a", "c d c d c"], progress=False, random=1),
    "Why": lambda: gattn.why(TEXT, layer=1, head=1),
    "Array": lambda: gattn.analysis.rollout(gattn.capture(TEXT)),
    "OverTexts": lambda: gattn.analysis.over_texts([gattn.capture(TEXT).summary()] * 2),
}
TABLES = {
    "HeadTable": lambda: gattn.capture(TEXT).summary(),
    "Effects": lambda: gattn.effect(TEXT, [gattn.Cut(layer=1, head=1)], progress=False),
    "Composition": lambda: gattn.compose(progress=False),
}


@pytest.mark.parametrize("make", [*PICTURED.values(), *TABLES.values()], ids=[*PICTURED, *TABLES])
def test_everything_that_draws_itself_is_a_picture_in_a_notebook(make, notebook):
    thing = make()
    before = plt.get_fignums()
    made = thing._repr_mimebundle_()
    assert plt.get_fignums() == before
    picture = notebook(made["text/html"]).locator("img")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    assert picture.get_attribute("alt").startswith(type(thing).__name__)
    assert len(picture.get_attribute("alt")) > len(type(thing).__name__) + 10
    if make in TABLES.values():  # their numbers are not to be lost on paper
        assert "image/png" not in made
        assert thing.to_html(notebook=True)[:80] in made["text/html"]
    else:
        assert plt.imread(io.BytesIO(base64.b64decode(made["image/png"]))).std() > 0.01


@pytest.mark.parametrize("kind", [AttentionTrace, AttentionGraph])
def test_page_and_picture_for_paper_are_beside_each_other(kind):
    trace = gattn.capture(TEXT)
    made = (trace if kind is AttentionTrace else trace[1, 1])._repr_mimebundle_()
    assert set(made) == {"text/html", "image/png"}
    assert "<iframe" in made["text/html"]
    assert plt.imread(io.BytesIO(base64.b64decode(made["image/png"]))).std() > 0.01


def test_a_table_without_the_columns_of_its_picture_shows_its_numbers():
    table = gattn.capture(TEXT).summary()[["label"]]
    assert "<table" in table._repr_html_()


def test_what_takes_long_to_draw_is_not_drawn_unasked():
    large = nx.gnm_random_graph(300, 30_000, directed=True)
    assert type(unrolled())(large)._repr_mimebundle_() == {}
    assert TokenGraph.causal(1_000_000)._repr_mimebundle_() == {}
