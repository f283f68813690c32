"""What the page says of what it shows is true of it: the run, the stack, the edges, the scale."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from looking import LAMP, cut_lamp, wait_until
from playwright.sync_api import expect
from samples import trace_of, words

import gattn
from gattn.drawing.chosen.shown import readable_edges
from gattn.drawing.page import payload
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP)


@pytest.fixture(scope="module")
def cut():
    return cut_lamp()


def saved_texts(page, path):
    """Save the view as SVG; give what stands in it."""
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    download.value.save_as(path)
    root = ElementTree.parse(path).getroot()
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    return download.value.suggested_filename, ["".join(text.itertext()) for text in texts]


@pytest.mark.parametrize("show", ["before", "after", "difference", "all three"])
@pytest.mark.parametrize("view", ["arcs", "layered"])
def test_a_saved_picture_says_which_run_it_shows(view, show, look_at, lamp, cut, tmp_path):
    fragment = f"show={show}&view={view}&layer=2&head=1"
    page = look_at(lamp, fragment, other=cut, edits="cut 1.1")
    name, texts = saved_texts(page, tmp_path / "saved.svg")
    title = " ".join(texts[:2])
    parts = ["before", "after", "difference"] if show == "all three" else [show]
    assert all(part in title for part in parts)
    assert "edits: cut 1.1" in title
    assert show.replace(" ", "_") in name


def test_a_picture_of_one_run_says_nothing_of_runs(look_at, lamp, tmp_path):
    name, texts = saved_texts(look_at(lamp, "layer=2&head=1"), tmp_path / "saved.svg")
    assert not any(word in text for text in texts for word in ("before", "after", "edits"))
    assert name == "decoder-2.1-arcs.svg"


def stacked(*traces):
    return replace(traces[0], stacks={k: v for trace in traces for k, v in trace.stacks.items()})


def test_the_facts_are_those_of_the_stack_that_is_shown(look_at):
    encoder = trace_of(words(9), name="encoder", causal=False, weight_function="DotProduct()")
    decoder = trace_of(words(5), layers=1, heads=2, kept=gattn.TopK(2), weight_function="Cosine()")
    few = {place: head for place, head in trace_of(words(5)).only_stack.items() if sum(place) < 3}
    uneven = AttentionTrace({"uneven": Stack("uneven", few)})
    page = look_at(stacked(encoder, decoder, uneven), "stack=encoder")
    facts = page.locator("#facts")
    expect(facts).to_contain_text("2 layers × 3 heads · 9 tokens · DotProduct()")
    expect(facts).to_contain_text("all edges kept")
    title = page.locator("#title").text_content()
    page.locator("#stack").select_option("decoder")
    expect(facts).to_contain_text("1 layer × 2 heads · 5 tokens · Cosine()")
    expect(facts).to_contain_text("edges kept: TopK(2)")
    assert page.locator("#title").text_content() != title
    page.locator("#stack").select_option("uneven")
    expect(facts).to_contain_text("5 heads in 2 layers · 5 tokens")


def test_the_facts_are_those_of_the_run_and_head_that_are_shown(look_at):
    names = {"weight_function": "DotProduct()"}
    before, after = trace_of(words(6), **names), trace_of(words(6), **names)
    heads = dict(after["decoder"])
    heads[1, 2] = replace(heads[1, 2], weight_function="SquaredDistance()")
    after = replace(after, stacks={"decoder": Stack("decoder", heads)})
    page = look_at(before, "layer=0&head=0&show=difference", other=after)
    facts = page.locator("#facts")
    expect(facts).to_contain_text("DotProduct()")
    expect(facts).not_to_contain_text("SquaredDistance()")
    page.evaluate("location.hash = '#layer=1&head=2&show=difference'")
    expect(facts).to_contain_text("DotProduct() and SquaredDistance()")
    page.evaluate("location.hash = '#layer=1&head=2&show=after'")
    expect(facts).not_to_contain_text("DotProduct()")
    expect(facts).to_contain_text("SquaredDistance()")
    page.evaluate("location.hash = '#layer=0&head=0&show=after&view=layered'")
    expect(facts).to_contain_text("DotProduct() and SquaredDistance()")


def test_a_part_of_a_head_is_not_said_to_be_all_of_it(look_at):
    head = trace_of(words(9))[1, 2].without_self_loops()
    page = look_at(head)
    expect(page.locator("#facts")).not_to_contain_text("all edges")
    expect(page.locator("#facts")).to_contain_text("edges kept: no self-loops")
    expect(page.locator("#caption")).to_contain_text("no self-loops, 36 of 45 edges")
    part = trace_of(words(9))[1, 2].subgraph([4, 5, 6])
    page = look_at(part)
    expect(page.locator("#facts")).to_contain_text("some edges kept")
    expect(page.locator("#caption")).to_contain_text(
        f"some edges kept, 6 of {part.total_edges.sum()} edges"
    )


def test_data_of_another_format_are_refused(visit, lamp, tmp_path):
    path = tmp_path / "page.html"
    text = lamp.to_html()
    assert text.count('"format":1') == 1
    path.write_text(text.replace('"format":1', '"format":2'), "utf-8")
    problem = visit(path).locator("#problem")
    expect(problem).to_be_visible()
    expect(problem).to_contain_text("format 2")


def test_the_slider_says_what_it_cuts(look_at, lamp, cut):
    page = look_at(lamp, "show=before", other=cut)
    label = page.locator("label[for=threshold]")
    expect(label).to_have_text("attention ≥")
    page.locator("#show").select_option("difference")
    expect(label).to_have_text("change ≥")


def test_layers_of_two_runs_have_their_numbers_or_the_reason_why_not(look_at, lamp, cut):
    page = look_at(lamp, "view=layered&token=9&show=all three", other=cut)
    captions = page.locator("#numbers caption")
    expect(captions).to_have_count(2)
    expect(captions.nth(0)).to_contain_text("(before)")
    expect(captions.nth(1)).to_contain_text("(after)")
    page.locator("#show").select_option("difference")
    expect(page.locator("#numbers")).to_contain_text("no rollout")
    page.evaluate("location.hash = '#view=layered'")
    expect(page.locator("#numbers")).to_contain_text("Point at a token")


def test_a_caption_adds_nothing_where_all_edges_are_drawn(look_at):
    page = look_at(trace_of(words(5)), "threshold=0&token=3")
    expect(page.locator("#caption")).to_have_text("all 15 edges, 100 % of the attention")
    page.evaluate("location.hash = '#top=1&token=3'")
    expect(page.locator("#caption")).to_contain_text("more, the strongest of this token")


def test_a_range_beyond_the_text_is_as_usual(look_at, lamp):
    page = look_at(lamp, "keys=100-200")
    expect(page.locator("#caption")).not_to_contain_text("in view")


SATURATED = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(128, 22, 92, 92);
  const found = { blue: 0, orange: 0 };
  for (let at = 0; at < data.length; at += 4) {
    found.blue += data[at + 2] > data[at] + 60;
    found.orange += data[at] > data[at + 2] + 60;
  }
  return found;
}"""


def moved(by):
    dense = np.zeros((128, 128))
    dense[np.arange(128), np.maximum(0, np.arange(128) // 4 * 4 - by)] = 1
    head = AttentionGraph.from_dense(dense, TokenGraph.causal(128))
    return AttentionTrace({"decoder": Stack("decoder", {(0, 0): head, (0, 1): head})})


def test_a_change_within_one_cell_of_a_small_picture_is_seen_there(look_at):
    page = look_at(moved(0), other=moved(3))
    found = page.locator("#grid canvas").evaluate(SATURATED)
    assert min(found.values()) > 100


def test_the_page_has_the_colours_of_the_figures(look_at, lamp, monkeypatch, tmp_path):
    red = {"unsigned": ["#ff0000"] * 7, "signed": ["#ff0000"] * 7}
    monkeypatch.setattr(payload, "RAMPS", {"light": red, "dark": red})
    page = look_at(lamp, "view=matrix&token=9")
    page.mouse.move(5, 5)
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    download.value.save_as(tmp_path / "red.svg")
    fills = set(re.findall(r'fill="(rgb[^"]*)"', (tmp_path / "red.svg").read_text("utf-8")))
    assert fills == {"rgb(255,0,0)"}
    bar = page.locator("td.bar i").first.evaluate("node => getComputedStyle(node).backgroundColor")
    assert bar == "rgb(255, 0, 0)"


@pytest.mark.parametrize("view", ["arcs", "layered"])
def test_a_head_of_no_layer_has_none_on_the_page(view, look_at):
    page = look_at(AttentionGraph.from_dense(np.tri(4), TokenGraph.causal(4)), f"view={view}")
    texts = page.locator("body").inner_text()
    assert "layer 0" not in texts
    if view == "arcs":
        expect(page.locator("#head-title")).to_contain_text("one head")


def even(sizes):
    """A head whose queries have attention between 0.5 and 1.5 of the mean, in no order."""
    dense = 0.5 + np.random.default_rng(3).permutation(sizes[0] * sizes[1]) / (sizes[0] * sizes[1])
    dense = dense.reshape(sizes)
    return dense / dense.sum(1, keepdims=True)


def mixed():
    dense = even((90, 90))
    dense[:45] = 0.1 / 89
    dense[:45, 4] = 0.9
    return dense


@pytest.mark.parametrize(
    "head",
    [
        AttentionGraph.from_dense(np.full((120, 120), 1 / 120)),
        AttentionGraph.from_dense(even((60, 60))),
        AttentionGraph.from_dense(mixed()),
        trace_of(words(50))[0, 0],
    ],
    ids=["uniform", "even", "mixed", "peaked"],
)
def test_the_page_and_a_figure_choose_as_many_edges_by_the_same_rule(look_at, head):
    """Nearly equal edges differ: chance chooses among them."""
    said = look_at(head).locator("#caption").text_content()
    expected = readable_edges(head).caption
    assert said.split(" edges, ")[0] == expected.split(" edges, ")[0]


HEAR = """() => {
  const write = CanvasRenderingContext2D.prototype.fillText;
  window.written = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    if (this.canvas.closest("#grid")) window.written.push(text);
    return write.call(this, text, ...place);
  };
}"""


@pytest.mark.parametrize(
    ("count", "wanted"), [(8, "attention"), (40, "largest attention in a cell")]
)
def test_thumbnails_say_what_the_cells_of_a_long_text_are(count, wanted, look_at):
    attention = np.full((1, 2, count, count), 1 / count)
    page = look_at(AttentionTrace.from_arrays(attention))
    page.evaluate(HEAR)
    page.set_viewport_size({"width": 1000, "height": 700})
    wait_until(page, "written.length > 0")
    assert [text for text in page.evaluate("written") if "attention" in text] == [wanted]
