"""Circuits on the page: every edge with its numbers, marked in its head, by pointer and by key."""

import copy
import json
import re

import numpy as np
import pytest
from circuit_pages import header, rows_of, saved
from decoding import Decoded
from looking import LAMP, settle
from made_circuits import made_of
from playwright.sync_api import expect
from samples import trace_of, words

import gattn
from gattn.drawing.layers.circuits import said_of
from gattn.drawing.page import circuits
from gattn.errors import SelectionError

EDGE = ["stack", "layer", "head", "query", "key"]
QUIET = {"progress": False, "random": 2}


# The numbers


def test_the_page_holds_every_edge_of_the_circuit_with_its_numbers(lamp):
    entry = header(lamp)["circuit"]
    table = lamp.table().set_index(EDGE)
    found = {tuple(edge[name] for name in EDGE): edge for edge in entry["edges"]}
    assert set(found) == set(table.index)
    for place, edge in found.items():
        assert edge["attention"] == table.loc[place, "attention"]
        assert edge["loss"] == table.loc[place, "loss"]
        (_, *source), (_, *target) = edge["from"], edge["to"]
        assert lamp.has_edge(tuple(source), tuple(target))
    streams = {(tuple(a[1:]), tuple(b[1:])) for a, b in entry["streams"]}
    kinds = lamp.edges(data="kind")
    assert streams == {(a, b) for a, b, kind in kinds if kind == "residual"}


@pytest.mark.parametrize("kind", ["heads", "several"])
def test_each_edge_joins_two_nodes_of_the_graph_and_has_the_loss_of_its_unit(kind, request):
    found = request.getfixturevalue(kind)
    entry = header(found)["circuit"]
    assert len(entry["edges"]) == found.graph["edges"]
    bands = [(band["stack"], band["isKeySide"]) for band in entry["bands"]]
    for edge in entry["edges"]:
        ends = [tuple(edge[name]) for name in ("from", "to")]
        if len(found.stacks) > 1:
            ends = [(bands[band][0], *rest) for band, *rest in ends]
        else:
            ends = [tuple(rest) for _, *rest in ends]
        assert found.has_edge(*ends)
    units = found.units()
    fields = [name for name in EDGE if name in units]
    losses = units.set_index(fields)["loss"]
    assert all(e["loss"] == losses.loc[tuple(e[n] for n in fields)] for e in entry["edges"])


def test_a_loss_that_time_did_not_allow_is_none(lamp):
    trace = trace_of(words(5))
    found = made_of(trace, [(0, 1, 3, 2, float("nan")), (1, 0, 4, 3, 0.5)])
    assert [edge["loss"] for edge in header(found)["circuit"]["edges"]] == [0.5, None]


def test_what_is_left_without_it_is_said_once_and_as_in_its_picture(lamp):
    entry = header(lamp)["circuit"]
    left = f"without them {100 * (1 - lamp.completeness):.1f} % is left"
    assert entry["title"].endswith(left)
    assert "is left" not in entry["caption"]
    random = f"as many edges chosen at random keep {100 * abs(np.mean(lamp.random)):.1f} %"
    assert random in entry["caption"]
    assert said_of(lamp) == f"{left}; {random}"


def test_it_opens_with_the_circuit_and_lists_all_its_edges(look_at_circuit, lamp):
    page = look_at_circuit(lamp)
    expect(page.locator("#views [value=circuit]")).to_have_attribute("aria-checked", "true")
    expect(page.locator("#head-title")).to_have_text(f"circuit: {lamp}")
    rows = rows_of(page)
    table = lamp.table()
    assert len(rows) == len(table)
    for row, (name, attention, loss, _) in zip(table.itertuples(), rows, strict=True):
        said = f"{row.layer}.{row.head}: {row.key} {row.key_token.strip()} → "
        assert name == f"{said}{row.query} {row.query_token.strip()}"
        assert float(attention) == pytest.approx(row.attention, abs=6e-4)
        assert float(loss) == pytest.approx(row.loss, abs=6e-4)


def test_units_that_are_not_edges_are_listed_with_their_losses(look_at_circuit, heads):
    page = look_at_circuit(heads)
    kind = page.locator("#numbers table.units th").first
    expect(kind).to_have_text("head")
    units = heads.units()
    expected = [
        [f"{row.layer}.{row.head}", str(row.edges), pytest.approx(row.loss, abs=6e-4)]
        for row in units.itertuples()
    ]
    found = [[name, size, float(loss)] for name, size, loss, _ in rows_of(page, "units")]
    assert found == expected
    expect(page.locator("#numbers table.edges th").nth(2)).to_have_text("lost without its head")
    more = page.locator("#numbers table.edges button", has_text="more")
    more.focus()
    page.keyboard.press("Enter")
    assert len(rows_of(page)) == min(len(heads.table()), 108) + (len(heads.table()) > 108)
    focus = page.evaluate("[...document.querySelectorAll('table.edges button')]"
                          ".indexOf(document.activeElement)")  # fmt: skip
    assert focus == 8


def test_losses_that_were_not_measured_are_no_bars_and_stay_in_their_column(look_at_circuit):
    trace = trace_of(words(5))
    found = made_of(trace, [(0, 1, 3, 2, float("nan")), (1, 0, 4, 3, 0.5)])
    page = look_at_circuit(found, viewport={"width": 390, "height": 844})
    expect(page.locator("#caption")).to_contain_text("1 of 2 losses not measured (thinnest lines)")
    assert [row[2] for row in rows_of(page)] == ["0.500", "not measured"]
    assert page.locator("#numbers td.bar i").count() == 1
    cell = page.locator("#numbers td.missing")
    assert cell.evaluate("n => n.scrollWidth <= n.clientWidth")
    word = "n => { const r = document.createRange(); r.setStart(n.firstChild, 4);"
    word += " r.setEnd(n.firstChild, 12); return r.getClientRects().length; }"
    assert cell.evaluate(word) == 1, "'measured' is broken in two"


def test_one_unit_is_not_several(look_at_circuit, heads):
    found = heads.copy()
    units = json.loads(heads.graph["units"])
    found.graph["units"] = json.dumps(units | {"rows": units["rows"][:1]})
    found.trace = heads.trace
    page = look_at_circuit(found)
    expect(page.locator("#numbers table.units caption")).to_have_text("1 head of the circuit")


def test_the_heads_of_the_circuit_are_told_and_no_others(look_at_circuit, lamp):
    page = look_at_circuit(lamp)
    counts = lamp.table().groupby(["layer", "head"]).size()
    for layer in range(4):
        for head in range(4):
            page.evaluate(f"location.hash = '#view=arcs&layer={layer}&head={head}'")
            expect(page.locator("#head-title")).to_contain_text(f"layer {layer} · head {head}")
            size = int(counts.get((layer, head), 0))
            said = f"{size} edge{'' if size == 1 else 's'} in the circuit"
            expect(page.locator("#grid-option")).to_have_text(
                re.compile(f"· {said}$" if size else r"^(?!.*circuit)")
            )
            expect(page.locator("#caption")).to_contain_text(said if size else "no edge of it")


def test_a_view_that_marks_no_edges_says_so(look_at_circuit, lamp):
    page = look_at_circuit(lamp, "view=text&layer=0&head=1")
    said = "3 edges in the circuit, 3 of them not marked here"
    expect(page.locator("#caption")).to_contain_text(said)


@pytest.mark.parametrize("view", ["arcs", "columns"])
@pytest.mark.parametrize("threshold", ["", "&threshold=0.999", "&token=3"])
def test_edges_of_the_circuit_are_marked_whatever_else_is_shown(
    view, threshold, look_at_circuit, lamp, tmp_path
):
    page = look_at_circuit(lamp, f"view={view}&layer=0&head=1{threshold}")
    root = saved(page, tmp_path)
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("in the circuit") == 3


def test_cells_of_the_circuit_are_framed(look_at_circuit, lamp, tmp_path):
    page = look_at_circuit(lamp, "view=matrix&layer=0&head=1")
    root = saved(page, tmp_path)
    boxes = [node.attrib for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    framed = [box for box in boxes if box.get("stroke") == "#f3c13a"]
    assert len(framed) == 3
    corners = {(float(box["x"]), float(box["y"])) for box in framed}
    side = float(framed[0]["width"])
    steps = {
        (round((x - min(corners)[0]) / side), round((y - min(corners)[1]) / side))
        for x, y in corners
    }
    assert steps == {(0, 0), (1, 1), (8, 8)}  # the tokens 4, 5 and 12 read themselves


def test_edges_that_a_page_does_not_keep_are_told(lamp, visit, tmp_path):
    least = lamp.table().sort_values("attention").iloc[0]
    keep = gattn.Threshold(float(least["attention"]) + 1e-3)
    lamp.to_html(tmp_path / "few.html", keep=keep)
    page = visit(
        tmp_path / "few.html", fragment=f"#view=arcs&layer={least.layer}&head={least.head}"
    )
    settle(page)
    said = "1 edge in the circuit, 1 of them not marked here"
    expect(page.locator("#caption")).to_contain_text(said)
    page.locator("#views [value=circuit]").click()
    assert len(rows_of(page)) == len(lamp.table())


def test_of_a_large_circuit_the_largest_edges_are_listed_and_it_is_said(
    heads, look_at_circuit, monkeypatch
):
    monkeypatch.setattr(circuits, "MOST_EDGES", 5)
    listed = header(heads)["circuit"]["edges"]
    largest = heads.table()["attention"].sort_values(ascending=False)[:5]
    assert sorted(e["attention"] for e in listed) == sorted(largest)
    row = heads.heads().iloc[0]
    page = look_at_circuit(heads, "edge=5")
    said = f"the 5 largest of {heads.graph['edges']} edges"
    expect(page.locator("#caption")).to_contain_text(said)
    expect(page.locator("#view-option")).to_have_text("no edge chosen")
    assert len(rows_of(page)) == 5
    page.evaluate(f"location.hash = '#view=arcs&layer={row.layer}&head={row['head']}'")
    here = sum((e["layer"], e["head"]) == (row.layer, row["head"]) for e in listed)
    said = f"{row.edges} edges in the circuit, {row.edges - here} of them not marked here"
    expect(page.locator("#caption")).to_contain_text(said)


# Where it comes from


def test_a_circuit_from_a_file_is_shown_on_its_trace(lamp, tmp_path):
    gattn.save(lamp, tmp_path / "circuit.json")
    again = gattn.load(tmp_path / "circuit.json")
    with pytest.raises(SelectionError, match=r"trace.to_html\(path, circuit=found\)"):
        again.to_html(tmp_path / "circuit.html")
    trace = gattn.capture(LAMP)
    made = Decoded(trace.to_html(circuit=again)).header
    assert made["circuit"] == header(lamp)["circuit"]


def test_what_is_no_circuit_of_the_trace_is_refused(lamp):
    trace = gattn.capture("the dog chased a cat")
    with pytest.raises(SelectionError, match="other tokens in the decoder stack"):
        trace.to_html(circuit=lamp)
    with pytest.raises(SelectionError, match="not DiGraph"):
        trace.to_html(circuit=copy.deepcopy(trace[0, 0].to_networkx()))
    with pytest.raises(SelectionError, match="take that of a text"):
        trace.to_html(circuit=gattn.circuit(["red red red"], target=" red", **QUIET))
    other = gattn.AttentionTrace({"vision": trace["decoder"]})
    with pytest.raises(SelectionError, match="'decoder', which the trace does not have"):
        other.to_html(circuit=lamp)


def test_a_circuit_of_a_run_with_other_attention_is_refused(lamp):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Scale(0.5, layer=2)):
        edited = gattn.capture(LAMP, model, tokenizer)
    with pytest.raises(
        SelectionError, match=r"of another run: query 12 of head 2\.[01] gives key 5"
    ):
        edited.to_html(circuit=lamp)
    some = gattn.capture(LAMP, model, tokenizer, layers=[0, 1], keep=gattn.TopK(1))
    assert Decoded(some.to_html(circuit=lamp)).header["circuit"] == header(lamp)["circuit"]
