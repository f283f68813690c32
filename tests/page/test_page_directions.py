"""Tokens stand in the text view as the browser itself sets the same text."""

import json
import re

import numpy as np
import pytest
from looking import settle, state
from playwright.sync_api import expect
from samples import trace_of

import gattn
from gattn.drawing.page import to_html
from gattn.drawing.page.script import viewer_script
from gattn.heads.stack import Stack

HEBREW = "הכלב רדף אחרי החתול"
TEXTS = [
    "The river is green, and so on",
    HEBREW,
    "שלום, רחוב 123 פינת 4.5 (קטן) ok?",
    "قال peace and love ثم ذهب",
    "The words كتب عليكم mean: peace. And שלום!",
    "عام 2023, 12:30 في برلين",
    "see רחוב 17, then 18",
    "a (שלום) b",
    "123 שלום 456",
    "3.5 and 1,234.5 of 99",
    "שלום world 12 again, טוב מאד",
    "كتب؟ no",
]
ORDERS = """([tokens, wide]) => {
  const line = document.createElement("p");
  line.dir = isFromRight(tokens) ? "rtl" : "ltr";
  line.style = "white-space: pre; width: 3000px";
  line.append(...tokens.map(({ text }) => element("span", {}, text)));
  document.body.append(line);
  const order = (lefts) => [...lefts.keys()].sort((a, b) => lefts[a] - lefts[b] || a - b);
  const set = [...line.children].map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one); // of " a", which a box shows without its space, the "a" alone
    if (one.textContent.trim()) range.setStart(one.firstChild, one.textContent.search(/\\S/));
    return range.getBoundingClientRect().left;
  });
  return [order(set), order(boxesOf(tokens, wide, 0).map(({ x }) => x))];
}"""


@pytest.fixture(scope="module")
def script(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "page.html"
    text = f'<!DOCTYPE html><meta charset="utf-8"><script>{viewer_script(is_alone=False)}</script>'
    path.write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    yield page
    page.close()


def as_tokens(texts):
    parts = {"word": None, "virtual": False, "special": False, "generated": False}
    return [{"text": text, "index": n, "position": n, **parts} for n, text in enumerate(texts)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("split", [r".", r"\s?[^\W\d_]+|\s?\d+|\s?[^\w\s]|\s"])
def test_tokens_stand_where_the_browser_sets_them(text, split, script):
    tokens = as_tokens(re.findall(split, text))
    expected, found = script.evaluate(ORDERS, [tokens, 5000])
    assert found == expected, json.dumps([tokens[n]["text"] for n in found], ensure_ascii=False)


def test_lines_break_in_the_order_of_reading(script):
    tokens = as_tokens(["שלום", " one", " two", " three", " four", " עולם"])
    boxes = script.evaluate("([tokens]) => boxesOf(tokens, 200, 0)", [tokens])
    rows = sorted({box["y"] for box in boxes})
    assert len(rows) == 2
    assert [rows.index(box["y"]) for box in boxes] == sorted(rows.index(box["y"]) for box in boxes)
    assert all(box["x"] >= 0 and box["x"] + box["wide"] <= 200 for box in boxes)


@pytest.mark.parametrize(("text", "next_key"), [(HEBREW, "ArrowLeft"), ("a b c d", "ArrowRight")])
def test_arrow_keys_go_the_way_that_the_text_runs(text, next_key, look_at):
    page = look_at(trace_of(text.split()), "view=text&token=1")
    page.locator("#view").focus()
    page.keyboard.press(next_key)
    settle(page)
    assert state(page)["token"] == "2"
    page.locator("#views [value=arcs]").click()
    settle(page)
    page.locator("#view").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert state(page)["token"] == "3"


def test_tokens_from_right_to_left_do_not_turn_the_words_around_them(look_at):
    page = look_at(trace_of(["הכלב", "רדף", "הכלב", "a"]), "token=2")
    page.locator("#numbers td button").first.focus()
    said = page.locator("#pair").text_content()
    assert "2 \u2068הכלב\u2069" in said


def test_the_parts_of_a_text_run_each_in_its_own_direction(visit, tmp_path):
    words = [*HEBREW.split(), "the", "dog"]
    path = tmp_path / "page.html"
    path.write_text(to_html(trace_of(words), spans=[(0, 4), (4, 6)]), encoding="utf-8")
    page = visit(path)
    settle(page)
    said = page.locator("#parts-text").text_content()
    assert said == f"A: \u2068{HEBREW}\u2069 · B: the dog"


def test_the_arrow_of_a_translation_goes_from_keys_to_queries(look_at):
    share = np.full((2, 4), 1 / 4)
    graph = gattn.TokenGraph.bipartite(2, 4)
    names = {"tokens": HEBREW.split(), "query_tokens": ["the", "dog"]}
    head = gattn.AttentionGraph.from_dense(share, graph, layer=0, head=0, **names)
    page = look_at(gattn.AttentionTrace({"cross": Stack("cross", {(0, 0): head})}, "m"))
    expect(page.locator("#title")).to_have_text(f"\u2068{HEBREW}\u2069 → the dog")
    assert page.evaluate("getComputedStyle(document.getElementById('title')).direction") == "ltr"
