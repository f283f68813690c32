"""The page as a component of other pages: `<gattn-view>` and `mount`, without a server."""

import json
import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from looking import LAMP
from playwright.sync_api import expect
from samples import HOSTILE, trace_of

import gattn
from gattn.drawing import to_payload, write_component
from gattn.drawing.page.script import component_files


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP, scores=True)


def element(payload, fragment=""):
    inner = f'<script type="application/json">{payload}</script>'
    return f'<gattn-view fragment="{fragment}">{inner}</gattn-view>'


def test_two_elements_show_what_each_was_given(embedded, lamp):
    one = element(to_payload(lamp), "layer=2&head=1&token=9")
    other = element(to_payload(lamp[1, 1]), "view=matrix")
    page = embedded(one + other)
    first, second = page.locator("gattn-view").all()
    expect(first.locator("#head-title")).to_contain_text("layer 2 · head 1")
    expect(second.locator("#head-title")).to_contain_text("layer 1 · head 1")
    value = first.locator("#numbers table").first.locator(".value").first
    expect(value).to_have_text(f"{lamp[2, 1].to_dense()[9].max():.3f}")
    first.get_by_role("radio", name="columns").click()
    expect(second.get_by_role("radio", name="matrix")).to_have_attribute("aria-checked", "true")
    assert page.evaluate("location.hash") == ""


def test_mount_gives_the_view_and_tells_of_changes(embedded, lamp):
    page = embedded('<div id="here"></div>')
    page.evaluate(
        """payload => {
            const here = document.getElementById("here");
            window.told = [];
            here.addEventListener("viewchange", event => window.told.push(event.detail.fragment));
            window.view = gattnView.mount(here, payload, { fragment: "#layer=1&head=1" });
        }""",
        to_payload(lamp),
    )
    here = page.locator("#here")
    expect(here.locator("#head-title")).to_contain_text("layer 1 · head 1")
    here.locator("#grid").press("ArrowRight")
    expect(here.locator("#head-title")).to_contain_text("layer 1 · head 2")
    assert page.evaluate("window.told.at(-1)") == page.evaluate("window.view.fragment")
    assert "head=2" in page.evaluate("window.view.fragment")
    page.evaluate("window.view.fragment = 'layer=3&head=0&view=matrix'")
    expect(here.locator("#head-title")).to_contain_text("layer 3 · head 0")


def test_keys_outside_are_the_page_s_own(embedded, lamp):
    page = embedded('<input id="mine">' + element(to_payload(lamp), "layer=1&head=1"))
    view = page.locator("gattn-view")
    expect(view.locator("#head-title")).not_to_be_empty()
    page.locator("body").press("3")
    expect(view.get_by_role("radio", name="arcs")).to_have_attribute("aria-checked", "true")
    view.locator("#view").press("3")
    expect(view.get_by_role("radio", name="matrix")).to_have_attribute("aria-checked", "true")


def test_an_attribute_and_a_property_change_the_view(embedded, lamp):
    page = embedded("<gattn-view></gattn-view>")
    view = page.locator("gattn-view")
    view.evaluate("(node, payload) => { node.payload = JSON.parse(payload) }", to_payload(lamp))
    expect(view.locator("#head-title")).not_to_be_empty()
    view.evaluate("node => { node.fragment = 'layer=0&head=3' }")
    expect(view.locator("#head-title")).to_contain_text("layer 0 · head 3")


def test_hostile_tokens_stay_text(embedded):
    page = embedded(element(to_payload(trace_of(HOSTILE, heads=1)), "view=columns&token=1"))
    view = page.locator("gattn-view")
    expect(view.locator("#numbers caption").first).to_contain_text("</script>")
    assert page.evaluate("window.pwned") is None
    assert view.locator("b, img, iframe, svg").count() == 0


def test_in_a_narrow_place_nothing_is_wider(embedded, lamp):
    page = embedded(element(to_payload(lamp)), viewport={"width": 400, "height": 800})
    view = page.locator("gattn-view")
    expect(view.locator("#head-title")).not_to_be_empty()
    heads, one = (view.locator(name).bounding_box() for name in ("#heads", "#one"))
    assert heads["y"] + heads["height"] <= one["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_module_is_one_and_the_package_names_it():
    files = component_files("1.2.3")
    package = json.loads(files["package.json"])
    assert package["version"] == "1.2.3"
    assert {package["main"], *package["files"]} <= set(files)
    assert set(re.findall(r"gattn-view[\w.]*\.(?:js|d\.ts)", files["package.json"])) <= set(files)
    assert re.search(r"^export \{ GattnView, mount \};\n\Z", files["gattn-view.js"], re.MULTILINE)
    for name in ("gattn-view.js", "gattn-view.classic.js"):
        assert not re.findall(r"/\*[A-Z]+\*/|\bfetch\(|^import ", files[name], re.MULTILINE)


def test_a_payload_is_safe_within_a_script_and_the_same_numbers_as_a_page(lamp):
    text = to_payload(trace_of(HOSTILE))
    assert text.isascii()
    assert "<" not in text
    made = json.loads(to_payload(lamp))
    page = lamp.to_html()
    assert all(f">{block}</script>" in page for block in made["blocks"])


def test_it_is_written_to_files(lamp, tmp_path):
    assert to_payload(lamp, tmp_path / "lamp.json") is None
    assert (tmp_path / "lamp.json").read_text("utf-8") == to_payload(lamp)
    write_component(tmp_path / "new" / "folder")
    names = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert names == set(component_files("0"))


@pytest.mark.parametrize("width", [360, 900, 1280])
def test_of_a_single_head_there_is_no_grid(width, embedded, lamp):
    size = {"width": width, "height": 800}
    for shown, has_grid in ((lamp[1, 1], False), (lamp, True)):
        view = embedded(element(to_payload(shown)), viewport=size).locator("gattn-view")
        expect(view.locator("#head-title")).to_contain_text("layer")
        expect(view.locator("#heads")).to_be_visible(visible=has_grid)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(browser, tmp_path):
    """Open a page whose script is the ES module, from a server that gives nothing else."""
    write_component(tmp_path / "gattn-view")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=tmp_path))
    Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context(color_scheme="light")
    complaints, requests = [], []

    def open_page(body):
        text = f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><body>{body}</body></html>'
        (tmp_path / "post.html").write_text(text, encoding="utf-8")
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url.rpartition("/")[2]))
        page.goto(f"http://127.0.0.1:{server.server_port}/post.html")
        return page

    yield open_page
    context.close()
    server.shutdown()
    server.server_close()
    assert not complaints
    assert set(requests) <= {"post.html", "gattn-view.js", "lamp.json", "head.json", "favicon.ico"}


MODULE = """
<div id="first"></div><gattn-view id="second" fragment="view=matrix"></gattn-view>
<script type="module">
import { mount } from "./gattn-view/gattn-view.js";
const payloads = ["lamp.json", "head.json"].map(async (name) => (await fetch(name)).json());
const first = document.getElementById("first");
window.view = mount(first, await payloads[0], { fragment: "layer=2&head=1" });
window.two = document.getElementById("second");
two.payload = await payloads[1];
</script>
"""


def test_the_module_runs_from_a_server_and_a_removed_element_rests_until_it_is_back(
    served, lamp, tmp_path
):
    to_payload(lamp, tmp_path / "lamp.json")
    to_payload(lamp[1, 1], tmp_path / "head.json")
    page = served(MODULE)
    one, two = page.locator("#first"), page.locator("#second")
    expect(one.locator("#head-title")).to_contain_text("layer 2 · head 1")
    expect(two.locator("#head-title")).to_contain_text("layer 1 · head 1")
    two.locator("#views [value=columns]").click()
    assert "view=columns" in two.evaluate("node => node.fragment")

    two.evaluate("node => node.remove()")
    page.emulate_media(color_scheme="dark")
    expect(one).to_have_attribute("data-theme", "dark")
    assert page.evaluate("two.dataset.theme") == "light", "a removed element listens to nothing"
    assert "view=columns" in page.evaluate("two.fragment")

    page.evaluate("document.body.append(two)")
    expect(two).to_have_attribute("data-theme", "dark")
    expect(two.get_by_role("radio", name="columns")).to_have_attribute("aria-checked", "true")
    two.locator("#view").press("3")
    expect(two.get_by_role("radio", name="matrix")).to_have_attribute("aria-checked", "true")
    page.emulate_media(color_scheme="light")
    expect(two).to_have_attribute("data-theme", "light")

    page.evaluate("view.stop()")
    page.emulate_media(color_scheme="dark")
    expect(two).to_have_attribute("data-theme", "dark")
    assert page.evaluate("document.getElementById('first').dataset.theme") == "light"


def test_another_payload_takes_the_place_of_the_first_which_hears_no_key(served, lamp, tmp_path):
    to_payload(lamp, tmp_path / "lamp.json")
    to_payload(lamp[1, 1], tmp_path / "head.json")
    page = served(MODULE)
    two = page.locator("#second")
    expect(two.locator("#head-title")).to_contain_text("layer 1 · head 1")
    page.evaluate("async () => { two.payload = await (await fetch('lamp.json')).json(); }")
    expect(two.locator("#head-title")).to_contain_text("layer 2 · head 1")
    page.evaluate("two.told = 0; two.addEventListener('viewchange', () => two.told++)")
    two.locator("#grid").press("ArrowRight")
    expect(two.locator("#head-title")).to_contain_text("layer 2 · head 2")
    assert page.evaluate("two.told") == 1
