"""Edges that are asked why: the page's tables against those of Python, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding import Decoded
from looking import LAMP, settle, state
from playwright.sync_api import expect
from samples import HOSTILE

import gattn
from gattn.drawing.page import page_bytes, why
from gattn.errors import FileError, SelectionError


@pytest.fixture(scope="module")
def trace():
    return gattn.capture(LAMP, scores=True)


@pytest.fixture(scope="module")
def found():
    return gattn.why(LAMP, layer=2, head=0)


def decoded(entry, page):
    """Read the vectors of a head back: parts × tokens × dim, of queries and keys."""
    page.data, page.at = page.block(entry["block"]), 0
    sides = []
    for name in ("queries", "keys"):
        shape = len(entry["parts"]), len(entry[name])
        steps = page.take("<f4", np.prod(shape)).reshape(shape)
        codes = page.take("<u2", np.prod(shape) * entry["dim"]).reshape(*shape, entry["dim"])
        sides.append((codes.astype(float) - 32767) * steps[..., None])
    added = None
    if entry["added"]:
        shape = len(entry["queries"]), len(entry["keys"])
        added = page.take("<f4", np.prod(shape)).reshape(shape)
    assert page.at == len(page.data)
    return *sides, added


def pairs(page, which=None):
    """The rows of the table: [query part, key part, score, share]."""
    rows = page.locator("#why table.pairs tbody tr").all()
    return [row.locator("td").all_text_contents()[:4] for row in rows]


def number(written):
    return float(written.replace("−", "-").replace("%", "").replace(",", ""))


# The numbers


def test_the_page_holds_the_parts_within_the_error_that_it_states(trace, found):
    page = Decoded(trace.to_html(why=found))
    (entry,) = page.header["why"]
    query, key, added = decoded(entry, page)
    assert added is None
    assert entry["parts"] == [str(one) for one in found.writers]
    stated = float(re.search(r"within ([\d.e-]+)", entry["notes"][-1]).group(1))
    exact = np.einsum("aid,bjd->abij", found.queries, found.keys)
    error = abs(np.einsum("aid,bjd->abij", query, key) - exact).max()
    assert 0 < error <= stated
    scores = np.einsum("aid,bjd->ij", query, key)
    edges = np.tri(len(found.tokens), dtype=bool)
    assert scores[edges] == pytest.approx(trace[2, 0].score, abs=1e-3)


def test_only_what_was_asked_about_is_held(trace, found):
    some = gattn.why(LAMP, layer=2, head=0, query=-1, key=" lamp")
    page = Decoded(trace.to_html(why=[some]))
    (entry,) = page.header["why"]
    assert (entry["queries"], entry["keys"]) == ([12], [5, 9])
    query, key, _ = decoded(entry, page)
    assert query == pytest.approx(found.queries[:, [12]].numpy(), abs=1e-4)
    assert key == pytest.approx(found.keys[:, [5, 9]].numpy(), abs=1e-4)


def test_its_size_is_told_beforehand(trace, found):
    several = [gattn.why(LAMP, layer=2, head=1, query=-1), found]
    page, plain = Decoded(trace.to_html(why=several)), Decoded(trace.to_html())
    assert set(plain.blocks) < set(page.blocks)
    for entry, one in zip(page.header["why"], several, strict=True):
        raw = len(page.block(entry["block"])) * 4 / 3
        assert page_bytes(one) == pytest.approx(raw, abs=1)
        assert len(page.blocks[entry["block"]]) <= 1.01 * raw + 20


def test_what_the_model_adds_to_scores_is_held_too(trace, found):
    added = torch.randn(13, 13, dtype=torch.double)
    biased = replace(found, bias=added, key=(0, 4))
    page = Decoded(trace.to_html(why=biased))
    *_, held = decoded(page.header["why"][0], page)
    assert held == pytest.approx(added[:, [0, 4]].numpy(), abs=1e-6)
    raw = len(page.block(page.header["why"][0]["block"]))
    assert page_bytes(biased) == pytest.approx(raw * 4 / 3, abs=1)


def test_of_many_features_those_that_are_active_are_held(trace):
    torch.manual_seed(0)
    active = torch.zeros(13, 2000)
    active[12, [3, 70]], active[9, 1500], active[2, 800] = torch.rand(2), 2.0, 3.0
    features = gattn.Features(torch.randn(2000, 128), active.to_sparse())
    some = gattn.why(LAMP, layer=2, head=0, query=12, key=9, parts=features)
    page = Decoded(trace.to_html(why=some))
    (entry,) = page.header["why"]
    known = some.table()
    known = known[known.score != 0]
    assert set(entry["parts"]) == set(known.query_part) | set(known.key_part)
    assert {"feature 3", "feature 70", "feature 1500", "error", "bias"} == set(entry["parts"])
    query, key, _ = decoded(entry, page)
    scores = np.einsum("ad,bd->ab", query[:, 0], key[:, 0])
    for row in known.itertuples():
        at = entry["parts"].index(row.query_part), entry["parts"].index(row.key_part)
        assert scores[at] == pytest.approx(row.score, abs=2e-3)
    assert page_bytes(some) < 5 * 2 * 70 * 4 / 3 + 10


# In a browser


@pytest.fixture
def look(visit, tmp_path):
    def open_page(trace, fragment="", **options):
        path = tmp_path / "why.html"
        shown = {name: options.pop(name) for name in ("viewport",) if name in options}
        trace.to_html(path, **options)
        page = visit(path, fragment=f"#{fragment}", **shown)
        settle(page)
        return page

    return open_page


def test_the_table_of_an_edge_is_that_of_python(look, trace, found):
    page = look(trace, "token=12&why=12-9", why=found)
    expected = gattn.why(LAMP, layer=2, head=0, query=12, key=9).table()
    caption = page.locator("#why caption")
    expect(caption).to_have_text(
        "why 12 green reads 9 lamp in head 2.0: score 5.63, the sum of 196 pairs of parts"
    )
    head = trace[2, 0]
    assert head.score[(head.query == 12) & (head.key == 9)] == pytest.approx(5.63, abs=5e-3)
    page.locator("#why button").click()
    page.locator("#why button").click()
    rows = pairs(page)
    assert len(rows) == len(expected) == 196
    assert {tuple(row[:2]) for row in rows} == set(
        zip(expected.query_part, expected.key_part, strict=True)
    )
    known = expected.set_index(["query_part", "key_part"])
    for query, key, score, share in rows:
        row = known.loc[query, key]
        assert number(score) == pytest.approx(row["score"], rel=6e-3, abs=5e-4)
        assert number(share) / 100 == pytest.approx(row["share"], rel=6e-3, abs=2e-4)
    assert sum(number(row[2]) for row in rows) == pytest.approx(5.63, abs=0.02)


def test_an_edge_is_asked_from_a_table_and_in_the_matrix(look, trace, found):
    page = look(trace, "token=12", why=found)
    assert page.locator("#head-title").text_content().startswith("layer 2 · head 0")
    expect(page.locator("#why")).to_contain_text("To ask why")
    page.get_by_role("button", name="why 12 green reads 5 lamp").press("Enter")
    expect(page.locator("#why caption")).to_contain_text("why 12 green reads 5 lamp in head 2.0")
    expect(page.locator("#why")).to_be_focused()
    assert state(page)["why"] == "12-5"
    page.keyboard.press("Escape")
    expect(page.locator("#why table")).to_have_count(0)
    page.locator("#views [value=matrix]").click()
    settle(page)
    seen = set()
    box = page.locator("#view canvas").bounding_box()
    for at in range(12):
        share = (at + 0.5) / 12
        page.mouse.click(box["x"] + 0.35 * box["width"], box["y"] + share * box["height"])
        if "why" in state(page):
            query, key = map(int, state(page)["why"].split("-"))
            seen.add((query, key))
            assert state(page)["token"] == str(query)
            name = f"why {query} {trace.tokens[query]} reads {key} {trace.tokens[key]} in head 2.0"
            expected = page.locator("#why caption") if key <= query else page.locator("#why .note")
            expect(expected).to_contain_text(name if key <= query else "To ask why")
    assert len({key for _, key in seen}) == 1
    assert len(seen) > 5


def test_an_edge_that_is_not_there_or_not_held_is_not_asked(look, trace, found):
    page = look(trace, "token=3&why=3-9", why=found)
    expect(page.locator("#why table")).to_have_count(0)
    some = gattn.why(LAMP, layer=2, head=0, query=-1, key=9)
    page = look(trace, "layer=2&head=0&token=12&why=12-5", why=some)
    assert "why" not in state(page) or page.locator("#why table").count() == 0
    expect(page.get_by_role("button", name="why 12 green reads 9 lamp")).to_have_count(1)
    expect(page.get_by_role("button", name="reads")).to_have_count(1)
    page = look(trace, "layer=2&head=1&token=12", why=found)
    expect(page.locator("#why")).to_be_hidden()
    expect(page.get_by_role("button", name="reads")).to_have_count(0)
    page = look(trace, "layer=2&head=0&token=12&view=layered", why=found)
    expect(page.locator("#why")).to_be_hidden()


def test_of_two_runs_the_first_is_asked(look, trace, found):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        after = gattn.capture(LAMP, model, tokenizer, scores=True)
    page = look(trace, "token=12&why=12-9", why=found, other=after)
    expect(page.locator("#why caption")).to_contain_text("in head 2.0 (before): score 5.63")
    page.locator("#show").select_option("after")
    expect(page.locator("#why")).to_be_hidden()
    with pytest.raises(SelectionError, match="of another run"):
        after.to_html(why=found)


def test_edges_of_a_circuit_are_asked_too(look, lamp, found):
    table = lamp.table()
    at = table.index[(table["layer"] == 2) & (table["head"] == 0)][0]
    row = table.loc[at]
    page = look(lamp, f"edge={at}", why=found)
    name = f"why {row['query']} {row.query_token} reads {row['key']} {row.key_token} in head 2.0"
    expect(page.locator("#why caption")).to_contain_text(name)
    score = gattn.why(LAMP, layer=2, head=0, query=int(row["query"]), key=int(row["key"])).table()
    expect(page.locator("#why caption")).to_contain_text(f"score {score.attrs['total']:.3g}")
    other = table.index[table["layer"] == 0][0]
    page.evaluate(f"location.hash = '#edge={other}'")
    expect(page.locator("#why table")).to_have_count(0)


def test_edges_of_a_circuit_say_why_if_they_know_it(look, lamp):
    told = gattn.analysis.why_edges(lamp, LAMP, progress=False)
    row = told.table().loc[4]
    page = look(told, "edge=4")
    expect(page.locator("#pair")).to_contain_text(f"; why: {row['why']}")
    assert "×" in row["why"]
    page = look(lamp, "edge=4")
    expect(page.locator("#pair")).not_to_contain_text("why")


def test_words_of_several_tokens_are_not_asked(look):
    text = "unbelievable dog"
    found, trace = gattn.why(text, layer=2, head=0), gattn.capture(text)
    counts = [list(trace[2, 0].words).count(word) for word in trace[2, 0].words]
    whole = [n for n, count in enumerate(counts) if count == 1]
    assert len(whole) < len(counts)
    last = len(trace.tokens) - 1
    page = look(trace, f"layer=2&head=0&token={last}", why=found)
    expect(page.locator("#numbers table").first.locator("td.ask button")).to_have_count(last + 1)
    page.locator("#words").check()
    expect(page.locator("#numbers table").first.locator("td.ask button")).to_have_count(len(whole))


def test_hostile_names_of_parts_are_text_and_nothing_else(look, trace):
    torch.manual_seed(0)
    parts = {name: torch.randn(13, 128) for name in HOSTILE if name not in ("", "bias")}
    parts["<script>window.pwned=1</script>"] *= 10  # Large enough to be among the rows shown.
    own = gattn.why(LAMP, layer=2, head=0, query=-1, parts=parts)
    page = look(trace, "token=12&why=12-9", why=own)
    page.locator("#why button").click()
    assert page.evaluate("window.pwned") is None
    names = {row[0] for row in pairs(page)}
    assert "<script>window.pwned=1</script>" in names
    assert page.locator("#why script, #why img, #why iframe").count() == 0


def test_it_fits_on_a_phone_and_is_dark(look, trace, found):
    viewport = {"width": 390, "height": 844}
    page = look(trace, "token=12&why=12-9&theme=dark", why=found, viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cells = page.locator("#why td, #why th")
    assert cells.count() > 50
    assert not cells.evaluate_all("some => some.some(n => n.scrollWidth > n.clientWidth)")


# What is refused


def test_one_head_by_itself_can_be_asked_why(trace, found):
    assert '"stack":"heads","layer":2,"head":0' in trace[2, 0].to_html(why=found)
    with pytest.raises(SelectionError, match=r"head 2\.0 of the heads stack"):
        trace[2, 1].to_html(why=found)


def test_what_is_not_of_this_run_is_refused(trace, found, monkeypatch):
    with pytest.raises(SelectionError, match=r"takes what gattn\.why returns.*not '2\.0'"):
        trace.to_html(why="2.0")
    with pytest.raises(SelectionError, match=r"has head 2\.0 twice"):
        trace.to_html(why=[found, gattn.why(LAMP, layer=2, head=0, query=3)])
    with pytest.raises(SelectionError, match=r"of other tokens than head 2\.0"):
        trace.to_html(why=gattn.why("the dog", layer=2, head=0))
    some = gattn.capture(LAMP, layers=[0, 1])
    with pytest.raises(
        SelectionError, match=r"head 2\.0 of the decoder stack, which the trace does"
    ):
        some.to_html(why=found)
    monkeypatch.setattr(why, "_MOST_BYTES", page_bytes(found) - 1)
    with pytest.raises(FileError, match="takes 0 MB, and a page has room for 0 MB: pass fewer"):
        trace.to_html(why=found)
    monkeypatch.setattr(why, "_MOST_BYTES", page_bytes(found))
    trace.to_html(why=found)


def test_the_elements_of_an_edge_are_those_of_python(look, trace, found):
    page = look(trace, "token=12&why=12-9", why=found)
    page.locator("#apart").select_option("elements")
    expect(page.locator("#why caption")).to_have_text(
        "why 12 green reads 9 lamp in head 2.0: score 5.63, the sum of 32 products of elements"
    )
    assert state(page)["apart"] == "elements"
    page.locator("#why button").click()
    known = gattn.why(LAMP, layer=2, head=0, query=12, key=9).elements()
    rows = pairs(page)
    assert len(rows) == len(known) == 32
    table = known.set_index("element")
    for name, product, score, _ in rows:
        row = table.loc[int(name.removeprefix("element "))]
        query, key = map(number, product.split(" × "))
        assert (query, key) == pytest.approx((row["query"], row["key"]), rel=6e-3, abs=1e-3)
        assert number(score) == pytest.approx(row["score"], rel=6e-3, abs=1e-3)
    assert coloured(page) > 300
    page.locator("#theme").click()
    settle(page)
    assert coloured(page) > 300
    page.evaluate("location.hash = '#token=12'")
    expect(page.locator("#apart-control")).to_be_hidden()
    expect(page.locator("#why canvas")).to_have_count(0)


def coloured(page):
    """Count the pixels of bars: colours in which blue and red differ."""
    pixels = page.locator("#why canvas").evaluate(
        """({ width, height }) =>
            [...document.querySelector("#why canvas").getContext("2d")
                .getImageData(0, 0, width, height).data]"""
    )
    red, _, blue, _ = np.array(pixels).reshape(-1, 4).T
    return int((abs(red - blue) > 60).sum())


def test_products_of_elements_are_read_in_a_narrow_window(look, trace, found):
    page = look(trace, "token=12&why=12-9&apart=elements", why=found)
    page.set_viewport_size({"width": 320, "height": 700})
    settle(page)
    lines = page.evaluate("""() => [...document.querySelectorAll("#why td.part bdi")].map(one => {
        const range = document.createRange();
        range.selectNodeContents(one);
        const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
        return [one.textContent, tops.size];
    })""")
    assert len(lines) > 20
    assert max(count for _, count in lines) <= 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_a_head_that_was_asked_about_writes_its_own_page(trace, found):
    asked = gattn.why(LAMP, layer=2, head=0, query=[7, 12], key=5)
    page = Decoded(asked.to_html())
    (entry,) = page.header["why"]
    assert (entry["queries"], len(entry["keys"])) == ([7, 12], len(found.tokens))
    graph, known = asked.graph(), trace[2, 0]
    np.testing.assert_array_equal(graph.key, known.key)
    np.testing.assert_allclose(graph.attention, known.attention, atol=1e-6)
    np.testing.assert_allclose(graph.score, known.score, atol=1e-4)
    with pytest.raises(SelectionError, match="why= is what this page shows already"):
        asked.to_html(why=found)
