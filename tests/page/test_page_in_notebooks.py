"""What a notebook shows of heads and traces: the page in a sandboxed frame over a picture."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import gattn
from gattn.drawing.page import page
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
    frame, cell = page.locator("iframe").bounding_box(), page.locator("div > div").bounding_box()
    assert frame == cell
    assert frame["height"] > 600


def test_what_is_too_large_for_a_notebook_says_how_to_write_a_page(monkeypatch):
    head = AttentionGraph.from_dense(np.tri(30) / 30, TokenGraph.causal(30))
    assert "<iframe" in head._repr_html_()
    monkeypatch.setattr(page, "_LARGEST_FRAME", 400)
    html = head._repr_html_()
    assert "<iframe" not in html
    assert "<img" in html
    assert ".to_html(" in html


def test_what_will_be_too_large_is_not_written_first(monkeypatch):
    head = AttentionGraph.from_dense(np.random.default_rng(0).random((60, 60)))
    monkeypatch.setattr(page, "_LARGEST_FRAME", 4000)
    monkeypatch.setattr(page, "to_html", None)
    assert ".to_html(" in head._repr_html_()


def test_heads_of_other_tokens_show_a_picture_and_why_no_page():
    heads = {(0, n): AttentionGraph.from_dense(np.ones((n, n)) / n) for n in (3, 4)}
    html = AttentionTrace({"decoder": Stack("decoder", heads)})._repr_html_()
    assert "<iframe" not in html
    assert "<img" in html
    assert "different tokens" in html


def test_a_cell_holds_one_picture():
    """A picture of its own beside the page would be drawn twice, and stored twice."""
    assert not hasattr(AttentionTrace, "_repr_svg_")
    assert not hasattr(AttentionGraph, "_repr_svg_")


def test_an_empty_trace_shows_no_page():
    assert AttentionTrace({})._repr_html_() is None


def test_hostile_names_stay_within_their_attributes():
    head = AttentionGraph.from_dense(
        np.ones((2, 2)), kept_by=(OtherStep('"><script>alert(1)</script>\0'),)
    )
    html = head._repr_html_()
    assert "<script" not in html
    assert "\0" not in html
    assert html.count('"') % 2 == 0
