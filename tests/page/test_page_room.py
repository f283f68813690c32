"""On a small screen and on a phone, controls stay whole and beside what they are of."""

import numpy as np
import pytest
from looking import LAMP, settle
from playwright.sync_api import expect

import gattn
from gattn import AttentionGraph, AttentionTrace
from gattn.heads.stack import Stack

SIZES = {1024: {"width": 1024, "height": 800}, 390: {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP, scores=True)


def box(page, selector):
    found = page.locator(selector).bounding_box()
    return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]


def is_beside(one, other):
    return one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("width", SIZES)
def test_auto_stays_beside_its_slider_and_the_tools_in_a_line(width, look_at, lamp):
    page = look_at(lamp, "show=all three", other=lamp, viewport=SIZES[width])
    assert is_beside(box(page, "#threshold"), box(page, "#automatic"))
    assert is_beside(box(page, "#copy"), box(page, "#help"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", SIZES)
def test_the_tables_of_heads_that_can_be_asked_why_keep_positions(width, visit, lamp, tmp_path):
    lamp.to_html(tmp_path / "page.html", why=gattn.why(LAMP, layer=2, head=0))
    page = visit(tmp_path / "page.html", fragment="#layer=2&head=0&token=12", viewport=SIZES[width])
    settle(page)
    cells = page.locator("#numbers td:has(bdi)").all()
    assert len(cells) >= 8
    for cell in cells:
        right = cell.bounding_box()["x"] + cell.bounding_box()["width"]
        place = cell.locator("small").bounding_box()
        assert place is None or place["x"] + place["width"] <= right + 1, cell.inner_text()


def test_the_view_of_a_circuit_has_no_controls_that_do_nothing_there(visit, tmp_path):
    gattn.circuit(LAMP, target=" lamp", progress=False).to_html(tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    settle(page)
    for name in ("threshold", "automatic", "top", "words", "special", "sinks"):
        expect(page.locator(f"#{name}")).to_be_hidden()
    expect(page.locator("#search")).to_be_visible()
    page.locator("#views [value=arcs]").click()
    settle(page)
    expect(page.locator("#threshold")).to_be_visible()
    expect(page.locator("#sinks")).to_be_visible()


def wide_trace():
    rng, graph = np.random.default_rng(0), gattn.TokenGraph.causal(13)
    heads = {
        (n, h): AttentionGraph.from_dense(uneven(rng), graph, layer=n, head=h)
        for n in range(24)
        for h in range(16)
    }
    return AttentionTrace({"decoder": Stack("decoder", heads)})


def uneven(rng):
    rows = np.tril(rng.exponential(size=(13, 13)) ** 3)
    return rows / rows.sum(1, keepdims=True)


@pytest.mark.parametrize("fragment", ["", "sort=induction"])
@pytest.mark.parametrize("is_large", [False, True])
def test_the_chosen_head_is_in_sight_on_a_phone(is_large, fragment, look_at, lamp):
    page = look_at(wide_trace() if is_large else lamp, fragment, viewport=SIZES[390])
    top, bottom = box(page, "#view")[1::2]
    assert top + 0.7 * (bottom - top) < SIZES[390]["height"]
    assert box(page, "#caption")[3] <= box(page, "#threshold")[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_head_far_down_is_in_sight_among_all_on_a_phone(look_at):
    page = look_at(wide_trace(), "layer=23&head=3", viewport=SIZES[390])
    assert page.evaluate("document.getElementById('heads').scrollTop") > 0
    assert page.evaluate("scrollY") == 0
