"""The page's controls for everyone: by keyboard, by touch, for screen readers, in a frame."""

import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from looking import LAMP
from playwright.sync_api import expect

import gattn


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP, scores=True, contributions=True)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path):
    """The address of a folder, over a server on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_in_a_notebook_the_skip_link_stays_in_the_frame(browser, served, tmp_path):
    html = gattn.capture("the dog chased a cat")._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{html}", "utf-8")
    with browser.new_context() as context:
        page = context.new_page()
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{served}/notebook.html")
        frame = page.frames[1]
        expect(frame.locator("#head-title")).not_to_be_empty()
        requests.clear()
        frame.locator(".skip").press("Enter")
        page.wait_for_timeout(300)
        assert frame.evaluate("document.activeElement.id") == "view"
        assert [url for url in requests if not url.startswith(("data:", "blob:"))] == []


def test_sliders_say_what_they_mean(look_at, lamp):
    page = look_at(lamp)
    threshold, top = page.locator("#threshold"), page.locator("#top")
    expect(threshold).to_have_attribute("aria-valuetext", "auto")
    expect(top).to_have_attribute("aria-valuetext", "all")
    threshold.fill("50")
    expect(threshold).to_have_attribute("aria-valuetext", "0.25")
    top.fill("2")
    expect(top).to_have_attribute("aria-valuetext", "2")


def test_two_fingers_zoom_the_page(look_at, lamp):
    page = look_at(lamp)
    for name in ("#grid", "#view"):
        touch = page.locator(name).evaluate("node => getComputedStyle(node).touchAction")
        assert touch == "manipulation"


def test_all_numbers_of_a_token_are_reached_by_keyboard(look_at, lamp):
    page = look_at(lamp, "layer=2&head=1&token=9")
    table = page.locator("#numbers table").first
    rows = table.locator("button:has(bdi)")
    rows.first.focus()
    head = lamp[2, 1]
    edge = (head.query == 9) & (head.key == 6)
    said = page.locator("#pair")
    expect(said).to_contain_text(
        re.compile(rf"9 lamp\W+reads\W+6 river\W+attention {head.attention[edge][0]:.3f}")
    )
    expect(said).to_contain_text(f"score {head.score[edge][0]:.3g}")
    expect(rows.first).to_have_attribute("aria-describedby", "pair")
    expect(rows).to_have_count(8)
    table.get_by_role("button", name="more").press("Enter")
    expect(rows).to_have_count(10)
    expect(rows.nth(8)).to_be_focused()
    rows.nth(8).press("Enter")
    expect(page.locator("#view")).to_be_focused()
    assert "token=9&" not in page.evaluate("location.hash") + "&"
    expect(rows).not_to_have_count(10)
