"""The page in Firefox, if there is one: it opens, is used, asks for nothing, says no error."""

from importlib.util import find_spec
from urllib.parse import parse_qsl

import numpy as np
import pytest
from firefox import Firefox, executable
from looking import LAMP, VIEWS
from samples import HOSTILE, trace_of, words

import gattn
from gattn.drawing.page import to_html

pytestmark = pytest.mark.slow

IMAGE = np.random.default_rng(0).random((32, 48, 3))
SCROLLS_UPWARDS = """["grid", "view"].filter(id => {
  const { scrollHeight, clientHeight } = document.getElementById(id);
  return scrollHeight > clientHeight;
})"""

HEIGHTS = """new Set(
  [...document.querySelectorAll("#views button:not([hidden])")].map(e => e.offsetHeight)
).size"""
OUTSIDE = """[...document.querySelectorAll(".controls select")].filter(e =>
  e.getBoundingClientRect().right > document.getElementById("one").getBoundingClientRect().right
).map(e => e.id)"""


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    if executable() is None or find_spec("websocket") is None:
        pytest.skip("no Firefox: install one, or name it in GATTN_FIREFOX; and websocket-client")
    found = Firefox(executable(), tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def look(firefox, tmp_path):
    """Open pages; in the end there were no requests but for them, no errors and no violations."""
    firefox.complaints.clear()
    firefox.requests.clear()
    page = tmp_path / "page.html"

    def open_page(shown, fragment="", size=(1280, 800), **options):
        to_html(shown, page, **options)
        firefox.open(page, fragment, size)
        firefox.settle()
        return firefox

    yield open_page
    assert firefox.evaluate("window.violations") == []
    assert firefox.evaluate("window.pwned") is None
    assert firefox.complaints == []
    allowed = (page.absolute().as_uri(), "data:", "blob:", "about:")
    assert not [url for url in firefox.requests if not url.startswith(allowed)]


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP)


def patches():
    attention = np.random.default_rng(0).dirichlet(np.ones(25), (2, 2, 25))
    return gattn.AttentionTrace.from_arrays(attention).on_grid(4, 6, image_size=(32, 48))


def state(firefox):
    return dict(parse_qsl(firefox.evaluate("location.hash.slice(1)")))


def text(firefox, identity):
    return firefox.evaluate(f"document.getElementById('{identity}').textContent")


@pytest.mark.parametrize("size", [(320, 700), (1280, 800), (1920, 1000)])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_without_a_scroll_bar_beside_it(view, size, look, lamp):
    page = look(lamp, f"view={view}&token=9", size)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate(SCROLLS_UPWARDS) == []
    assert text(page, "head-title")


def test_heads_tokens_and_views_are_chosen(look, lamp):
    page = look(lamp)
    page.click("#views [value=matrix]")
    assert state(page)["view"] == "matrix"
    page.click("#grid canvas", (0.15, 0.1))
    assert {name: state(page)[name] for name in ("layer", "head")} == {"layer": "0", "head": "0"}
    page.click("#view canvas", (0.3, 0.5))
    token = int(state(page)["token"])
    assert " reads" in text(page, "numbers")
    assert " predicts the next token" in text(page, "numbers")
    page.evaluate("document.getElementById('view').focus()")
    page.press("\ue014")  # the right arrow
    assert state(page)["token"] == str(token + 1)
    page.press("p", "d")
    assert (state(page)["pins"], state(page)["theme"]) == ("0.0", "dark")


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_tokens_are_plain_text(view, look):
    page = look(trace_of(HOSTILE), f"view={view}&token=3")
    page.evaluate("document.getElementById('view').focus()")
    page.press(*["\ue014"] * len(HOSTILE))
    assert state(page)["token"] == str(len(HOSTILE) - 1)
    assert page.evaluate("document.querySelectorAll('main iframe, main img').length") == 0


def test_many_heads_several_texts_circuits_why_and_images_open(look, lamp):
    page = look(trace_of(words(20), layers=24, heads=16), "sort=induction")
    assert text(page, "heads-shown").endswith(" of 384")
    page = look({"one": lamp, "head": lamp[2, 1]})
    page.press("]")
    assert state(page)["text"] == "1"
    found = gattn.circuit(LAMP, target=" lamp", progress=False, random=2)
    page = look(found.trace, "edge=0", circuit=found)
    assert "lost without it" in text(page, "pair")
    why = gattn.why(LAMP, layer=2, head=0)
    page = look(lamp, "layer=2&head=0&why=12-9&apart=elements", why=why)
    assert "products of elements" in text(page, "why")
    page = look(patches(), image=IMAGE)
    assert (
        page.evaluate("""document.querySelector("#views [aria-checked=true]").value""") == "places"
    )
    page.click("#view canvas", (0.3, 0.5))
    assert "token" in state(page)


def test_long_names_fit_the_narrowest_window(look):
    names = {"x" * 300: np.arange(12.0), "size": np.arange(12.0)}
    trace = trace_of(words(12), causal=False)
    for shown, options in ((trace, {"colour": names}), (patches(), {"image": IMAGE})):
        page = look(shown, "", (320, 700), **options)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(HEIGHTS) == 1
        assert page.evaluate(OUTSIDE) == []
