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
        place = cell.locator("small").first.bounding_box()
        assert place["x"] + place["width"] <= right + 1, cell.inner_text()


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


STACKS = [
    *(f"model.encoder.backbone.stages.{stage}.blocks.attention" for stage in range(4)),
    "model.decoder.layers.self_attention",
    "model.decoder.layers.encoder_attention",
]
SEEN = """select => {
  const context = document.createElement("canvas").getContext("2d");
  context.font = getComputedStyle(select).font;
  const room = select.clientWidth - 26; // without the arrow and what is around the text
  return [...select.options].map(({ text }) => {
    const sizes = [...text].map((_, n) => context.measureText(text.slice(0, n + 1)).width);
    return text.slice(0, sizes.filter(size => size <= room).length);
  });
}"""


@pytest.mark.parametrize("width", [1280, 360])
def test_stacks_with_long_names_are_told_apart(width, look_at):
    share = np.full((1, 2, 5, 5), 1 / 5)
    stack = gattn.AttentionTrace.from_arrays(share).only_stack
    trace = AttentionTrace({name: Stack(name, dict(stack.items())) for name in STACKS}, "m")
    page = look_at(trace, viewport={"width": width, "height": 800})
    for name in STACKS:
        page.locator("#stack").select_option(name)
        settle(page)
        seen = page.locator("#stack").evaluate(SEEN)
        assert len(set(seen)) == len(STACKS), seen
        assert box(page, "#stack")[2] <= box(page, "#heads")[2]
        expect(page.locator("#facts")).to_contain_text(f"{name}: 1 layer × 2 heads")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("view", ["arcs", "matrix"])
def test_two_heads_stand_side_by_side_in_a_usual_window(view, look_at, lamp):
    page = look_at(lamp, f"view={view}&layer=2&head=1")
    alone = page.locator("#view canvas").bounding_box()["height"]
    page.locator("#pin").click()
    page.locator("#grid").press("ArrowUp")
    settle(page)
    assert page.locator("#view canvas").bounding_box()["height"] < 1.5 * alone


@pytest.mark.parametrize("width", [1280, 360])
def test_tables_have_room_for_the_names_of_special_tokens(width, look_at, lamp):
    page = look_at(lamp, "layer=2&head=1&token=9", viewport={"width": width, "height": 800})
    name = page.locator("#numbers bdi", has_text="endoftext").first
    assert name.evaluate("e => e.scrollWidth <= e.clientWidth + 1")


def test_all_heads_and_their_order_are_in_sight_at_200_percent(look_at, lamp):
    page = look_at(lamp, viewport={"width": 640, "height": 400})
    assert page.evaluate("document.getElementById('heads').scrollTop") == 0
    order, heads = box(page, "#sort"), box(page, "#heads")
    assert heads[1] <= order[1]
    assert order[3] <= heads[3]
    assert page.evaluate("document.documentElement.scrollWidth") <= 640


CORNER = """id => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  context.drawImage(document.querySelector(`#${id} canvas`), 0, 0);
  return [...context.getImageData(0, 0, 1, 1).data];
}"""


@pytest.mark.parametrize("fragment", ["token=9", "pins=1.1-3.0&overlay=1", "view=layered"])
def test_a_dark_page_is_printed_in_light_colours(fragment, look_at, lamp):
    page = look_at(lamp, fragment, color_scheme="dark")
    dark = [page.evaluate(CORNER, name) for name in ("grid", "view")]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert [page.evaluate(CORNER, name) for name in ("grid", "view")] == [[255] * 4] * 2
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert [page.evaluate(CORNER, name) for name in ("grid", "view")] == dark


@pytest.mark.parametrize("width", [794, 1280])
def test_paper_has_no_controls(width, look_at, lamp):
    page = look_at(lamp, viewport={"width": width, "height": 1000})
    page.emulate_media(media="print")
    for name in ("sort", "threshold", "copy", "views", "pair"):
        expect(page.locator(f"#{name}")).to_be_hidden()
    expect(page.get_by_text("Point at a token")).to_be_hidden()
    for name in ("grid", "view"):
        expect(page.locator(f"#{name} canvas")).to_be_visible()
