"""Many heads on the page: sorted, a page at a time; pinned, beside or over each other."""

import re

import numpy as np
import pytest
from looking import LAMP, readings, settle, state
from playwright.sync_api import expect
from samples import trace_of, words

import gattn


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP, scores=True)


@pytest.fixture(scope="module")
def large():
    return trace_of(words(12), layers=24, heads=16)


@pytest.fixture
def by_induction(look_at, large):
    """A page of 384 heads, sorted, and their places in that order."""
    page = look_at(large, "layer=20&head=5")
    page.locator("#sort").select_option("induction")
    scores = gattn.analysis.head_table(large, progress=False)["induction"]
    said = {place[-2:]: float(f"{score:.4g}") for place, score in scores.items()}
    return page, sorted(said, key=lambda place: (-said[place], place))


def shown(page):
    first, last, size = map(int, re.findall(r"\d+", page.locator("#heads-shown").text_content()))
    return first, last, size


def click_head(page, x, y, **options):
    page.locator("#grid canvas").click(position={"x": x, "y": y}, **options)


def chosen(page):
    return int(state(page)["layer"]), int(state(page)["head"])


def test_a_new_order_opens_at_its_top(by_induction):
    page, order = by_induction
    assert shown(page)[::2] == (1, 384)
    assert chosen(page) == (20, 5)
    click_head(page, 30, 30)
    assert chosen(page) == order[0]


def test_buttons_and_wheel_go_through_all_heads(by_induction):
    page, order = by_induction
    _, fits, _ = shown(page)
    page.get_by_role("button", name="heads after").click()
    assert shown(page) == (fits + 1, 2 * fits, 384)
    click_head(page, 30, 30)
    assert chosen(page) == order[fits]
    page.get_by_role("button", name="last heads").click()
    assert shown(page)[1] == 384
    expect(page.get_by_role("button", name="heads after")).to_have_attribute(
        "aria-disabled", "true"
    )
    page.get_by_role("button", name="first heads").click()
    assert shown(page)[0] == 1
    page.locator("#grid canvas").hover(position={"x": 60, "y": 60})
    page.mouse.wheel(0, 300)
    page.wait_for_timeout(100)
    first, _, _ = shown(page)
    assert 1 < first <= fits
    page.mouse.wheel(0, -3000)
    page.wait_for_timeout(100)
    assert shown(page)[0] == 1


def test_home_end_and_page_keys_choose_heads_and_show_them(by_induction):
    page, order = by_induction
    grid = page.locator("#grid")
    grid.press("End")
    assert chosen(page) == order[-1]
    assert shown(page)[1] == 384
    grid.press("Home")
    assert chosen(page) == order[0]
    assert shown(page)[0] == 1
    grid.press("PageDown")
    at = order.index(chosen(page))
    first, last, _ = shown(page)
    assert 0 < at < last
    assert first <= at + 1
    for _ in range(at):
        grid.press("ArrowLeft")
    assert chosen(page) == order[0]


def test_keys_go_far_in_the_grid_of_layers_and_over_tokens(look_at, large):
    page = look_at(large, "layer=3&head=2")
    page.locator("#grid").press("End")
    assert chosen(page) == (23, 15)
    page.locator("#grid").press("Home")
    assert chosen(page) == (0, 0)
    page.locator("#grid").press("PageDown")
    layer, head = chosen(page)
    assert (layer > 1, head) == (True, 0)
    page.locator("#view").press("End")
    assert state(page)["token"] == "11"
    page.locator("#view").press("PageUp")
    assert state(page)["token"] == "1"


def test_pinned_heads_are_shown_side_by_side_with_their_numbers(look_at, lamp):
    page = look_at(lamp, "view=matrix&layer=2&head=1&token=9")
    page.locator("#grid").press("p")
    page.locator("#grid").press("ArrowUp")
    expect(page.locator("#head-title")).to_have_text("heads 1.1, 2.1")
    for head in (lamp[1, 1], lamp[2, 1]):
        found = readings(page, re.compile(rf"reads \(head {head.layer}\.{head.head}\)"))
        row = head.to_dense()[9]
        assert max(found.values()) == f"{row.max():.3f}"
    expect(page.locator("#caption")).to_contain_text("head 2.1: all 91 edges")
    page.get_by_role("button", name="unpin head 2.1").click()
    expect(page.locator("#head-title")).to_contain_text("layer 1 · head 1")
    expect(page.locator("#pin")).to_be_focused()
    assert "pins" not in state(page)


@pytest.mark.parametrize("width", [1024, 1280, 1440])
def test_pinning_takes_no_line_of_its_own(look_at, lamp, width):
    page = look_at(lamp)
    page.set_viewport_size({"width": width, "height": 900})
    pin, slider = (page.locator(f"#{name}").bounding_box() for name in ("pin", "threshold"))
    assert pin["y"] < slider["y"] + slider["height"]
    assert slider["y"] < pin["y"] + pin["height"]


def test_control_and_a_click_pins_a_head(look_at, lamp):
    page = look_at(lamp, "layer=2&head=1")
    box = page.locator("#grid canvas").bounding_box()
    click_head(page, 0.2 * box["width"], 0.2 * box["height"], modifiers=["Control"])
    assert state(page)["pins"] == "0.0"
    assert chosen(page) == (2, 1)
    click_head(page, 0.2 * box["width"], 0.2 * box["height"], modifiers=["Control"])
    assert "pins" not in state(page)


@pytest.mark.parametrize("view", ["arcs", "columns", "matrix"])
def test_pinned_heads_are_drawn_over_each_other(view, look_at, lamp):
    page = look_at(lamp, f"view={view}&layer=2&head=1&pins=1.1-3.0&token=9")
    page.locator("#overlay").check()
    settle(page)
    expect(page.locator("#head-title")).to_have_text("heads 2.1, 1.1, 3.0 over each other")
    for name in ("2.1", "1.1", "3.0"):
        expect(page.locator("#caption")).to_contain_text(f"head {name}: ")
    page.locator("#view").press("5")
    expect(page.locator("#overlay-control")).to_be_hidden()
    expect(page.locator("#head-title")).to_have_text("heads 2.1, 1.1, 3.0")


@pytest.mark.parametrize("overlay", ["", "&overlay=1"])
def test_two_runs_of_pinned_heads_are_compared(overlay, look_at, lamp):
    fragment = f"view=matrix&layer=2&head=1&pins=1.1&show=all three&token=9{overlay}"
    page = look_at(lamp, fragment, other=lamp)
    expect(page.locator("#caption")).to_contain_text("difference")
    expect(page.locator("#numbers table:not(.predicted) caption")).to_have_count(12)
    assert set(readings(page, "difference").values()) <= {"0.000"}


def parts(lamp, places):
    """The matrices of layers in which only some heads act, and the residual stream."""
    size = len(lamp.tokens)
    found = []
    for layer in range(4):
        some = [lamp[place].to_dense() for place in places if place[0] == layer]
        mean = np.mean(some, axis=0) if some else np.zeros((size, size))
        found.append((mean + np.eye(size)) / (mean.sum(1, keepdims=True) + 1))
    return found


def test_layers_of_chosen_heads_are_rolled_out(look_at, lamp):
    places = [(2, 1), (1, 1), (2, 3)]
    page = look_at(lamp, "view=layered&layer=2&head=1&pins=1.1-2.3&token=9")
    expect(page.locator("#head-title")).to_contain_text("mean over heads 2.1, 1.1, 2.3")
    expected = np.linalg.multi_dot(parts(lamp, places)[::-1])[9]
    found = readings(page, "of the input")
    assert len(found) >= 4
    for name, value in found.items():
        place = int(re.match(r"\d+", name).group())
        assert float(value.replace("< 0.001", "0")) == pytest.approx(expected[place], abs=1.1e-3)


def test_the_sliders_choose_edges_of_the_layers(look_at, lamp):
    page = look_at(lamp, "view=layered")
    means = np.array([np.mean([lamp[at, n].to_dense() for n in range(4)], 0) for at in range(4)])
    page.locator("#threshold").fill("50")
    threshold = float(state(page)["threshold"])
    assert not np.isclose(means, threshold, atol=1e-4).any()
    expect(page.locator("#caption")).to_contain_text(f"mean attention ≥ {threshold}: ")
    expect(page.locator("#caption")).to_contain_text(f": {(means >= threshold).sum()} of ")
    page.locator("#automatic").click()
    page.locator("#top").fill("1")
    expect(page.locator("#caption")).to_contain_text("strongest per query and layer: 52 of ")


def test_while_heads_are_averaged_the_heading_is_that_of_the_picture(look_at, lamp):
    page = look_at(lamp, "layer=2&head=1")
    title = page.locator("#head-title").text_content()
    said = page.evaluate(
        """() => {
            document.querySelector("#views [value=layered]").click();
            return [document.getElementById("head-title").textContent,
                    document.getElementById("view").getAttribute("aria-busy")];
        }"""
    )
    assert said == [title, "true"]
    settle(page)
    expect(page.locator("#head-title")).to_have_text("decoder: all layers, mean over heads")
