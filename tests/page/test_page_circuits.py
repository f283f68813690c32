"""Circuits on the page: every edge with its numbers, marked in its head, by pointer and by key."""

import copy
import json
import re
from xml.etree import ElementTree

import pytest
import torch
from decoding import Decoded
from looking import LAMP, readings, settle, state
from made_circuits import made_of
from playwright.sync_api import expect
from samples import HOSTILE, trace_of, words

import gattn
from gattn.drawing.page import circuits, entries
from gattn.errors import SelectionError
from gattn.names.text import visible

EDGE = ["stack", "layer", "head", "query", "key"]
QUIET = {"progress": False, "random": 2}


@pytest.fixture(scope="module")
def lamp():
    return gattn.circuit(LAMP, target=" lamp", **QUIET)


@pytest.fixture(scope="module")
def heads():
    return gattn.circuit("red green lamp red green", units="heads", keep=0.5, **QUIET)


@pytest.fixture(scope="module")
def several():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    given = {"input_ids": [3, 4, 5, 6], "decoder_input_ids": [0, 7, 8]}
    return gattn.circuit(given, model, keep=0.7, **QUIET)


@pytest.fixture
def look_at_circuit(visit, tmp_path):
    def open_page(found, fragment="", **options):
        path = tmp_path / "circuit.html"
        found.to_html(path)
        page = visit(path, fragment=f"#{fragment}" if fragment else "", **options)
        settle(page)
        return page

    return open_page


def header(found, **options):
    return Decoded(found.to_html(**options)).header


def rows_of(page, kind="edges"):
    rows = page.locator(f"#numbers table.{kind} tbody tr").all()
    return [[cell.inner_text().strip() for cell in row.locator("td").all()] for row in rows]


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


def test_it_opens_with_the_circuit_and_lists_all_its_edges(look_at_circuit, lamp):
    page = look_at_circuit(lamp)
    expect(page.locator("#views [value=circuit]")).to_have_attribute("aria-checked", "true")
    expect(page.locator("#head-title")).to_have_text(f"circuit: {lamp}")
    rows = rows_of(page)
    table = lamp.table()
    assert len(rows) == len(table)
    for row, (name, attention, loss, _) in zip(table.itertuples(), rows, strict=True):
        said = f"{row.layer}.{row.head}: {row.key_token.strip()} {row.key} → "
        assert name == f"{said}{row.query_token.strip()} {row.query}"
        assert float(attention) == pytest.approx(row.attention, abs=6e-4)
        assert float(loss) == pytest.approx(row.loss, abs=6e-4)


def test_units_that_are_not_edges_are_listed_with_their_losses(look_at_circuit, heads):
    page = look_at_circuit(heads)
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


def saved(page, folder):
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    path = folder / "saved.svg"
    download.value.save_as(path)
    return ElementTree.parse(path).getroot()


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
    for module in (circuits, entries):
        monkeypatch.setattr(module, "MOST_EDGES", 5)
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
        assert columns == 4
        assert {row.locator("td").count() for row in table.locator("tbody tr").all()} <= {
            1,
            columns,
        }
    assert page.locator("#numbers td.bar:not([aria-hidden=true])").count() == 0
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


def test_several_stacks_lie_above_each_other_and_all_their_edges_are_listed(
    look_at_circuit, several
):
    page = look_at_circuit(several)
    names = [row[0] for row in rows_of(page)]
    expected = [
        f"{row.stack} {row.layer}.{row.head}: {row.key_token} {row.key} → "
        f"{row.query_token} {row.query}"
        for row in several.table().itertuples()
    ]
    assert names == expected
    bands = header(several)["circuit"]["bands"]
    assert [band["stack"] for band in bands] == ["encoder", "decoder"]
    assert bands[1]["base"] >= bands[0]["layers"]
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
    return made_of(trace, [(0, n % 2, n + 1, n, 0.9 - 0.02 * n) for n in range(last)])


def test_hostile_tokens_are_text_in_the_circuit(look_at_circuit, tmp_path):
    page = look_at_circuit(hostile())
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
    with pytest.raises(SelectionError, match="has no stack 'decoder'"):
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
