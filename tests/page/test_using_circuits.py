"""A circuit on the page: by pointer, by key, on a phone; several stacks and hostile tokens."""

import json
import re

import pytest
from circuit_pages import header, rows_of, saved
from looking import readings, settle, state
from made_circuits import made_of
from playwright.sync_api import expect
from samples import HOSTILE, trace_of

import gattn
from gattn.names.text import visible

EDGE = ["stack", "layer", "head", "query", "key"]
QUIET = {"progress": False, "random": 2}


# Use


def test_edges_are_chosen_by_key(look_at_circuit, lamp):
    page = look_at_circuit(lamp)
    view, pair = page.locator("#view"), page.locator("#pair")
    assert view.get_attribute("aria-label").startswith("edges of the circuit")
    view.focus()
    seen = []
    for _ in range(len(lamp.table()) + 1):
        page.keyboard.press("ArrowRight")
        number = int(state(page)["edge"])
        row = lamp.table().iloc[number]
        said = f"head {row.layer}.{row['head']}: {visible(row.query_token)} ({row['query']}) reads "
        text = re.sub("[\u2066-\u2069]", "", pair.text_content())
        assert text.startswith(said)
        assert f"attention {row.attention:.3g}".rstrip("0") in text
        assert f"lost without it {row.loss:.3g}".rstrip("0") in text
        option = re.sub("[\u2066-\u2069]", "", page.locator("#view-option").text_content())
        assert option == f"edge {number + 1} of {len(lamp.table())}: {text}"
        assert (
            page.locator("#live")
            .text_content()
            .endswith(page.locator("#view-option").text_content())
        )
        seen.append(number)
    assert sorted(set(seen)) == list(range(len(lamp.table())))
    layers = [lamp.table().iloc[number].layer for number in seen]
    assert layers == sorted(layers)
    page.keyboard.press("Escape")
    assert "edge" not in state(page)
    expect(page.locator("#view-option")).to_have_text("no edge chosen")


def test_an_edge_is_looked_at_by_pointer_and_chosen_by_click(look_at_circuit, lamp):
    page = look_at_circuit(lamp)
    pair, box = page.locator("#pair"), page.locator("#view canvas").bounding_box()
    expect(pair).to_contain_text("Point at a curve")
    found = None
    for share in [n / 40 for n in range(40)]:
        page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + share * box["height"])
        page.wait_for_timeout(30)
        if pair.text_content().startswith("head 2."):
            found = box["y"] + share * box["height"]
            break
    assert found, "no curve of layer 2 was met on the way down"
    assert "lost without it" in pair.text_content()
    assert "edge" not in state(page)
    page.mouse.click(box["x"] + 0.75 * box["width"], found)
    row = lamp.table().iloc[int(state(page)["edge"])]
    assert row["layer"] == 2
    page.mouse.move(5, 5)
    expect(pair).to_contain_text(f"head 2.{row['head']}")
    page.reload()
    settle(page)
    expect(pair).to_contain_text(f"head 2.{row['head']}")


def test_the_table_leads_to_the_head_of_an_edge(look_at_circuit, lamp):
    page = look_at_circuit(lamp)
    row = lamp.table().iloc[4]
    button = page.locator("#numbers table.edges button").nth(4)
    ends = (
        f"\u2068{visible(row[f'{side}_token'])} ({row[side]})\u2069" for side in ("key", "query")
    )
    assert button.get_attribute("title") == f"{row.layer}.{row['head']}: {' → '.join(ends)}"
    button.focus()
    expect(page.locator("#pair")).to_contain_text(f"head {row.layer}.{row['head']}")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    settle(page)
    place = {"view": "arcs", "layer": str(row.layer), "head": str(row["head"])}
    assert place.items() <= state(page).items()
    assert state(page)["token"] == str(row["query"])
    key = f"{row.key_token.strip()} {row['key']}"
    assert float(readings(page, "reads")[key]) == pytest.approx(row.attention, abs=6e-4)
    rows = page.locator("#numbers table").first.locator("button:has(bdi)")
    names = [name.strip() for name in rows.all_text_contents()]
    for place, name in enumerate(names):
        rows.nth(place).focus()
        said = f"; in the circuit, lost without it {row.loss:.3g}"
        assert (said in page.locator("#pair").text_content()) == (name == key)


def test_everything_is_named_for_screen_readers(look_at_circuit, heads):
    page = look_at_circuit(heads)
    controls = page.locator("button, input, select, [role=listbox]").all()
    script = "n => n.ariaLabel || n.textContent.trim() || n.labels?.[0]?.textContent.trim()"
    assert all(control.evaluate(script) for control in controls if control.is_visible())
    for table in page.locator("#numbers table").all():
        assert table.locator("caption").text_content().strip()
        columns = table.locator("thead th[scope=col]").count()
        assert columns == 3
        assert {row.locator("td").count() for row in table.locator("tbody tr").all()} <= {
            1,
            columns + 1,
        }
    assert page.locator("#numbers tbody td.bar:not([aria-hidden=true])").count() == 0
    described = page.locator("#numbers table.edges button[aria-describedby=pair]")
    assert described.count() == 8
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(n => n.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("kind", ["lamp", "several", "hostile"])
def test_on_a_phone_nothing_is_wider_than_the_screen(kind, request, look_at_circuit):
    found = hostile() if kind == "hostile" else request.getfixturevalue(kind)
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = look_at_circuit(found, **phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in page.locator("#numbers table.edges button:has(bdi)").all():
        assert name.evaluate("n => n.scrollWidth <= n.clientWidth"), "the name of an edge is cut"


def test_several_stacks_lie_above_each_other_and_all_their_edges_are_listed(
    look_at_circuit, several
):
    page = look_at_circuit(several)
    names = [row[0] for row in rows_of(page)]
    expected = [
        f"{row.stack} {row.layer}.{row.head}: {row.key_token} → {row.query_token}"
        for row in several.table().itertuples()
    ]
    assert names == expected
    bands = header(several)["circuit"]["bands"]
    assert [band["stack"] for band in bands] == ["encoder", "decoder"]
    assert bands[1]["base"] >= bands[0]["rises"][-1]
    page.locator("#numbers table.edges button").first.click()
    settle(page)
    assert state(page)["stack"] == several.table().iloc[0]["stack"]


def test_a_circuit_in_one_stack_of_several_says_in_which_and_opens_there(look_at_circuit, several):
    few = several.copy()
    few.trace = several.trace
    few.remove_nodes_from([node for node in several if node[0] != "decoder"])
    rows = [row for row in json.loads(several.graph["rows"]) if row[0] == "decoder"]
    units = json.loads(several.graph["units"])
    kept = [row for row in units["rows"] if row[0] == "decoder"]
    few.graph.update(rows=json.dumps(rows), units=json.dumps(units | {"rows": kept}))
    page = look_at_circuit(few)
    assert rows
    assert all(row[0].startswith("decoder ") for row in rows_of(page))
    assert page.locator("#stack").input_value() == "decoder"


# Hostile tokens


def hostile():
    trace = trace_of(HOSTILE, heads=2)
    last = len(HOSTILE) - 1
    edges = [(0, n % 2, n + 1, n, 0.9 - 0.02 * n) for n in range(last)]
    return made_of(trace, edges, notes="computed from <b>a name</b>")


def test_hostile_tokens_are_text_in_the_circuit(look_at_circuit, tmp_path):
    page = look_at_circuit(hostile())
    expect(page.locator("#caption")).to_have_text("computed from <b>a name</b>")
    for _ in range(2):
        page.keyboard.press("/")
        page.keyboard.type("<script>")
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
    page.locator("#numbers table.edges button", has_text="more").click()
    found = [row[0] for row in rows_of(page)]
    assert len(found) == len(HOSTILE) - 1
    names = page.locator("#numbers table.edges bdi").all_text_contents()
    assert names == [
        visible(token, limit=49) for n in range(len(HOSTILE) - 1) for token in HOSTILE[n : n + 2]
    ]
    assert page.evaluate("window.pwned") is None
    assert page.locator("b, img, iframe, svg, a:not([href='#view'])").count() == 0
    text = page.locator("body").inner_text()
    assert not re.search("[\0\u202e\u2066\u2028]", text.replace("\u2069", ""))
    root = saved(page, tmp_path)
    kinds = {node.tag.rpartition("}")[2] for node in root.iter()}
    assert not kinds & {"script", "foreignObject", "a", "style"}


@pytest.mark.parametrize("edge", ["99", "-1", "1e9", "__proto__"])
def test_an_edge_that_is_not_there_is_no_edge(edge, look_at_circuit, lamp):
    page = look_at_circuit(lamp, f"edge={edge}")
    expect(page.locator("#view-option")).to_have_text("no edge chosen")


def test_without_a_circuit_the_page_is_as_it_was(visit, tmp_path):
    trace = gattn.capture("the dog chased a cat")
    trace.to_html(tmp_path / "plain.html")
    page = visit(tmp_path / "plain.html", fragment="#view=circuit&edge=0")
    settle(page)
    expect(page.locator("#views [value=arcs]")).to_have_attribute("aria-checked", "true")
    expect(page.locator("#views [value=circuit]")).to_be_hidden()
    assert "circuit" not in page.locator("#caption").text_content()
