"""The page of tokens that lie somewhere: patches over an image, nodes on a layout."""

import base64
import hashlib
import json
import re
import zlib

import networkx as nx
import numpy as np
import pytest
import torch
from looking import readings, settle, state, wait_until
from playwright.sync_api import expect
from samples import trace_of, words
from torch_geometric.nn import GATConv

import gattn
from gattn import AttentionGraph, AttentionTrace
from gattn.errors import SelectionError, ShapeError

IMAGE = np.random.default_rng(1).random((32, 48, 3))


def patches(*, layers=2):
    attention = np.random.default_rng(0).dirichlet(np.ones(25), (layers, 2, 25))
    return AttentionTrace.from_arrays(attention).on_grid(4, 6, image_size=(32, 48))


def network():
    graph = nx.DiGraph(nx.karate_club_graph().to_directed())
    for source, target in graph.edges:
        graph.edges[source, target]["weight"] = 1 / graph.in_degree(target)
    places = nx.spring_layout(graph, seed=0)
    return AttentionGraph.from_networkx(graph).with_layout(places)


def header_of(text):
    found = re.search(r'id="gattn-header">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def block_of(text, number):
    found = re.search(rf'id="gattn-block-{number}">(.*?)</script>', text, re.DOTALL)
    return zlib.decompress(base64.b64decode(found[1]), wbits=-15)


def test_the_page_holds_the_image_in_grey_and_where_patches_lie():
    text = patches().to_html(image=IMAGE)
    header = header_of(text)
    image = header["image"]
    grey = np.frombuffer(block_of(text, image["block"]), np.uint8)
    expected = np.rint(255 * IMAGE @ [0.299, 0.587, 0.114])
    np.testing.assert_array_equal(grey.reshape(image["rows"], image["columns"]), expected)
    (stack,) = header["traces"][0]["stacks"]
    places = stack["keys"]["places"]
    assert places["kind"] == "grid"
    assert places["at"][:3] == [None, [0, 0], [1, 0]]
    assert places["at"][-1] == [5, 3]
    assert (places["size"], places["ratio"]) == ([6, 4], 1)
    assert stack["text"] == "4 × 6 patches"


def test_the_policy_stays_as_it_is_with_an_image():
    with_image, without = patches().to_html(image=IMAGE), patches().to_html()
    policies = [re.search(r'content="(default-src.*?)"', text)[1] for text in (with_image, without)]
    assert policies[0] == policies[1]
    style, script = (
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in re.search(
            r"<style>(.*?)</style>.*<script type=\"module\">(.*)</script>", without, re.DOTALL
        ).groups()
    )
    assert policies[0].split("; ") == [
        "default-src 'none'",
        f"script-src {script}",
        f"style-src {style}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]


def test_large_images_are_made_smaller():
    text = patches().to_html(image=np.zeros((640, 960)))
    assert header_of(text)["image"] | {"block": 0} == {"block": 0, "rows": 214, "columns": 320}


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(SelectionError, match="say where they lie"):
        AttentionTrace.from_arrays(np.full((1, 1, 2, 2), 0.5)).to_html(image=IMAGE)
    with pytest.raises(ShapeError, match="fit='stretch'"):
        patches().to_html(image=np.zeros((30, 30)))
    assert header_of(patches().to_html(image=np.zeros((30, 30)), fit="stretch"))["image"]


def test_runs_on_other_patches_are_not_compared():
    before = patches()
    moved = before.on_grid(4, 6, cells=[-1, *range(23, -1, -1)], image_size=(32, 48))
    with pytest.raises(SelectionError, match="different tokens"):
        before.to_html(other=moved)


# In a browser


@pytest.fixture
def look_at_places(visit, tmp_path):
    def open_page(thing, fragment="", **options):
        path = tmp_path / "page.html"
        thing.to_html(path, **options)
        page = visit(path, fragment=f"#view=places&{fragment}")
        settle(page)
        return page

    return open_page


@pytest.mark.parametrize("image", [IMAGE, None])
def test_a_page_with_an_image_opens_over_it(image, visit, tmp_path):
    path = tmp_path / "page.html"
    patches().to_html(path, image=image)
    page = visit(path)
    settle(page)
    first, other = ("arcs", "places") if image is None else ("places", "arcs")
    expect(page.locator(f"#views [value={first}]")).to_have_attribute("aria-checked", "true")
    for view in (other, first):
        page.locator(f"#views [value={view}]").click()
        settle(page)
        assert state(page).get("view") == (view if view == other else None)
    page.reload()
    settle(page)
    expect(page.locator(f"#views [value={first}]")).to_have_attribute("aria-checked", "true")


def test_a_patch_shows_in_numbers_what_it_reads(look_at_places):
    trace = patches()
    page = look_at_places(trace, "layer=1&head=0&token=11", image=IMAGE)
    expect(page.locator("#views [value=places]")).to_have_attribute("aria-checked", "true")
    row = trace[1, 0].to_dense()[11]
    found = sorted((float(value) for value in readings(page, "reads").values()), reverse=True)
    assert found == pytest.approx(sorted(row)[: -len(found) - 1 : -1], abs=6e-4)


def test_pointing_at_the_image_reads_a_patch_and_keys_go_to_the_next(look_at_places):
    page = look_at_places(patches(), "layer=0&head=1", image=IMAGE)
    canvas = page.locator("#view canvas")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 110)
    expect(page.locator("#numbers caption").first).to_contain_text("reads")
    page.mouse.move(0, 0)
    page.locator("#view").focus()
    steps = [("ArrowRight", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowDown", 8)]
    steps += [("ArrowLeft", 7), ("ArrowLeft", 7), ("ArrowUp", 1), ("ArrowUp", 1)]
    for key, token in steps:
        page.keyboard.press(key)
        assert state(page)["token"] == str(token), key


def test_what_is_under_the_pointer_is_drawn(look_at_places):
    page = look_at_places(patches(), "layer=0&head=1", image=IMAGE)
    shown = "document.querySelector('#view canvas').toDataURL()"
    before = page.evaluate(shown)
    box = page.locator("#view canvas").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 110)
    wait_until(page, f"{shown} !== {json.dumps(before)}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_saved_as_svg_with_its_image(look_at_places, theme):
    page = look_at_places(patches(), f"token=11&theme={theme}", image=IMAGE)
    with page.expect_download() as saved:
        page.locator("#save-svg").click()
    svg = saved.value.path().read_text(encoding="utf-8")
    assert svg.count("rgba(") == 24


def test_a_graph_has_the_view_with_its_edges(look_at_places):
    head = network()
    page = look_at_places(head, "token=33")
    row = head.to_dense()[33]
    assert len(readings(page, "reads")) == min(8, np.count_nonzero(row))
    expect(page.locator("#threshold")).to_be_enabled()
    page.keyboard.press("3")
    assert state(page)["view"] == "matrix"
    page.keyboard.press("6")
    assert "view" not in state(page), "a graph with a layout opens there"
    expect(page.locator("#views [value=places]")).to_have_attribute("aria-checked", "true")


def test_the_view_is_there_only_where_tokens_lie_somewhere(look_at_places):
    trace = AttentionTrace.from_arrays(np.full((1, 1, 3, 3), 1 / 3), tokens=["a", "b", "c"])
    page = look_at_places(trace)
    expect(page.locator("#views [value=places]")).to_be_hidden()
    expect(page.locator("#views [value=arcs]")).to_have_attribute("aria-checked", "true")
    page.keyboard.press("3")
    page.keyboard.press("6")
    assert state(page)["view"] == "matrix"


def test_thresholds_do_not_count_over_an_image(look_at_places):
    page = look_at_places(patches(), image=IMAGE)
    expect(page.locator("#threshold")).to_be_disabled()
    expect(page.locator("#caption")).to_contain_text("all 625 edges")
    page.locator("#theme").click()
    expect(page.locator("#problem")).to_be_hidden()


def test_words_read_patches_in_cross_attention(look_at_places):
    attention = np.random.default_rng(0).dirichlet(np.ones(24), 3)
    head = AttentionGraph.from_dense(
        attention, gattn.TokenGraph.bipartite(3, 24), query_tokens=["a", "red", "house"]
    ).on_grid(4, 6)
    page = look_at_places(head, "stack=cross&side=query&token=2", image=IMAGE)
    found = readings(page, "reads")
    assert float(next(iter(found.values()))) == pytest.approx(attention[2].max(), abs=6e-4)


def graph_layer():
    torch.manual_seed(0)
    layer = GATConv(3, 4, heads=2).eval()
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    with gattn.capturing(layer) as run:
        layer(torch.randn(4, 3), edges)
    return run.trace


@pytest.mark.parametrize(
    ("make", "noun", "said"),
    [
        (graph_layer, "node", "4 nodes"),
        (lambda: graph_layer()[0, 1], "node", "4 nodes"),
        (network, "node", "34 nodes"),
        (lambda: trace_of(words(9)), "token", "9 tokens"),
        (lambda: patches().on_grid(5, 5), "patch", "25 patches"),
        (patches, "token", "25 tokens"),  # a class token is no patch
    ],
)
def test_one_word_for_what_the_points_are(make, noun, said, look_at):
    page = look_at(make())
    expect(page.locator("#facts")).to_contain_text(f" {said} ")
    expect(page.locator("#search")).to_have_attribute("placeholder", f"Search a {noun}")
    expect(page.locator("#numbers")).to_contain_text(f"Point at a {noun},")
    label = page.locator("#view").get_attribute("aria-label")
    assert label == f"{said.split()[1]}: choose one with the arrow keys"
    assert page.locator("dialog").text_content().count(noun) >= 5
