"""What the page tells of tokens: parts of the text, predictions, colours; and several texts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding import Decoded
from looking import LAMP, readings, settle, state
from playwright.sync_api import expect
from samples import HOSTILE, trace_of, words

import gattn
from gattn.drawing.page import to_html
from gattn.errors import FileError, SelectionError, ShapeError

SPANS = [(0, 5), (5, 13)]


@pytest.fixture(scope="module")
def lamp():
    return gattn.capture(LAMP)


@pytest.fixture(scope="module")
def pair():
    """A trace whose attention goes both ways, of two sentences."""
    trace = trace_of(words(12), causal=False)
    (stack,) = trace.stacks.values()
    heads = {at: replace(head, segments=(0,) * 7 + (1,) * 5) for at, head in stack.items()}
    return replace(trace, stacks={stack.name: gattn.heads.stack.Stack(stack.name, heads)})


@pytest.fixture
def look(visit, tmp_path):
    def open_page(shown, fragment="", viewport=None, **options):
        path = tmp_path / "tokens.html"
        to_html(shown, path, **options)
        window = {} if viewport is None else {"viewport": viewport}
        page = visit(path, fragment=f"#{fragment}", **window)
        settle(page)
        return page

    return open_page


def stack_of(page, text=0):
    header = Decoded(page).header
    return [header, *header.get("others", [])][text]["traces"][0]["stacks"][0]


def number(written):
    return float(written.replace("−", "-").replace("%", ""))


# What is predicted


def test_the_page_of_a_run_of_one_head_tells_predictions_and_that_of_a_head_alone_none(lamp):
    one = gattn.capture(LAMP, layers=2, heads=1)
    assert [(head.layer, head.head) for head in one.heads()] == [(2, 1)]
    known = stack_of(lamp.to_html())
    assert len(known["predictions"]["likeliest"]) == 13
    found = stack_of(one.to_html())
    assert (found["predictions"], found["colours"]) == (known["predictions"], known["colours"])
    alone = stack_of(lamp[2, 1].to_html())
    assert (alone["predictions"], alone["colours"]) == (None, {})
    several = to_html({"a text": one, "a head": lamp[2, 1]})
    assert stack_of(several, 0)["predictions"] == known["predictions"]
    assert stack_of(several, 1)["predictions"] is None


def places(page, text=0, run=0):
    header = Decoded(page).header
    header = [header, *header.get("others", [])][text]
    return [
        (stack["name"], graph["layer"], graph["head"])
        for stack in header["traces"][run]["stacks"]
        for graph in stack["graphs"]
    ]


def test_the_page_of_chosen_heads_tells_what_the_run_knows(lamp):
    chosen = lamp.to_html(heads="2.1")
    known, found = stack_of(lamp.to_html()), stack_of(chosen)
    assert places(chosen) == [("decoder", 2, 1)]
    assert found["text"] == LAMP
    assert (found["predictions"], found["colours"]) == (known["predictions"], known["colours"])
    assert places(lamp.to_html(heads=[(3, 1), (1, 2)])) == [("decoder", 1, 2), ("decoder", 3, 1)]
    assert places(lamp.to_html(heads=1)) == [("decoder", layer, 1) for layer in range(4)]
    both = to_html({"one": lamp, "other": gattn.capture("red green lamp")}, heads=(2,))
    assert places(both, 0) == places(both, 1) == [("decoder", layer, 2) for layer in range(4)]
    compared = lamp.to_html(other=lamp, heads="1.1")
    assert places(compared, 0, 0) == places(compared, 0, 1) == [("decoder", 1, 1)]


def test_chosen_heads_may_name_their_stack_and_must_exist(lamp):
    stacks = {name: trace_of(words(5), name=name).only_stack for name in ("encoder", "decoder")}
    trace = gattn.AttentionTrace(stacks)
    assert places(trace.to_html(heads="decoder:1.2")) == [("decoder", 1, 2)]
    with pytest.raises(SelectionError, match="name one"):
        trace.to_html(heads="1.2")
    with pytest.raises(SelectionError, match="no layer and head"):
        lamp.to_html(heads="9.9")
    with pytest.raises(SelectionError, match="heads= chooses among the heads of a trace"):
        lamp[2, 1].to_html(heads="2.1")


# Parts of the text


def test_the_page_knows_the_segments_of_the_run_and_spans_that_it_is_given(pair, lamp):
    assert stack_of(pair.to_html())["spans"] == [[0, 7], [7, 12]]
    assert stack_of(lamp.to_html())["spans"] == []
    assert stack_of(lamp.to_html(spans=reversed(SPANS)))["spans"] == [[0, 5], [5, 13]]
    assert stack_of(lamp[1, 1].to_html(spans=[(2, 4)]))["spans"] == [[2, 4]]


@pytest.mark.parametrize("at", [(0, 0), (1, 2)])
def test_each_pair_says_the_share_of_the_attention_that_it_holds(at, look, pair):
    page = look(pair, f"layer={at[0]}&head={at[1]}")
    options = page.locator("#parts option").all_text_contents()
    head, (a, b) = pair[at], pair[at].spans
    expected = ["all tokens"]
    for name, queries in (("A", a), ("B", b)):
        for other, keys in (("A", a), ("B", b)):
            part = head.between(queries, keys)
            share = part.kept_mass.sum() / head.total_mass[slice(*queries)].sum()
            expected.append((f"{name} reads {other}", share))
    assert options[0] == expected[0]
    for said, (name, share) in zip(options[1:], expected[1:], strict=True):
        assert said.startswith(f"{name}: ")
        assert number(said.partition(": ")[2]) / 100 == pytest.approx(share, rel=6e-3)


@pytest.mark.parametrize("view", ["arcs", "columns", "matrix", "text"])
def test_a_pair_shows_its_edges_alone(view, look, pair):
    page = look(pair, f"view={view}&layer=1&head=2")
    page.locator("#parts").select_option("0-1")
    settle(page)
    assert state(page) | {"queries": "0-7", "keys": "7-12"} == state(page)
    caption = page.locator("#caption")
    expect(caption).to_contain_text("7 of 12 queries and 5 of 12 keys are in view")
    if view in ("matrix", "text"):
        part = pair[1, 2].between((0, 7), (7, 12))
        share = 100 * part.kept_mass.sum() / part.total_mass[:7].sum()
        expect(caption).to_contain_text(f"all 35 edges, {share:.3g} % of the attention")
    page.locator("#parts").select_option("")
    settle(page)
    assert "keys" not in state(page)
    expect(caption).not_to_contain_text("in view")


def test_a_pair_stays_when_its_tokens_are_chosen(look, pair):
    page = look(pair, "view=matrix&queries=0-7&keys=7-12")
    expect(page.locator("#parts")).to_have_value("0-1")
    page.locator("#view").press("ArrowRight")
    settle(page)
    assert state(page)["keys"] == "7-12"
    page.locator("#views [value=arcs]").click()
    settle(page)
    for _ in range(3):
        page.locator("#view").press("ArrowRight")
    assert (state(page)["keys"], state(page)["queries"]) == ("7-12", "0-7")
    page.evaluate("location.hash = '#queries=1-7&keys=7-12'")
    expect(page.locator("#parts option").first).to_have_text("other tokens")


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([(0, 5), (4, 8)], "do not overlap"),
        ([(0, 99)], "there are 13 tokens"),
        ([(3, 3)], "half-open"),
        ([(-2, 3)], "half-open"),
        ("AB", "pairs"),
        ([], "1 to 26"),
        ([(n, n + 1) for n in range(27)], "1 to 26"),
    ],
)
def test_spans_that_are_none_are_refused(lamp, spans, words):
    with pytest.raises(SelectionError, match=words):
        lamp.to_html(spans=spans)


# Predictions


def test_the_page_holds_the_softmax_of_the_logits(lamp):
    told = stack_of(lamp.to_html())["predictions"]
    shares = lamp.logits.double().softmax(-1)
    ids = torch.tensor(lamp.predictions.ids)
    assert told["shift"] == 1
    assert told["probability"][0] is None
    expected = shares[range(12), ids[1:]].tolist()
    assert told["probability"][1:] == pytest.approx(expected, rel=1e-3)
    assert np.array([[x for _, x in row] for row in told["likeliest"]]) == pytest.approx(
        shares.topk(5).values.numpy(), rel=1e-3
    )


def test_a_token_says_its_probability_and_what_it_predicts(look, lamp):
    page = look(lamp, "token=8")
    table = page.locator("table.predicted")
    told = lamp.predictions
    expect(table.locator("caption")).to_contain_text("8 green predicts the next token")
    own = table.locator(".own").text_content()
    assert own.startswith("its own probability ")
    assert own.endswith(", predicted at position 7")
    assert number(own.split()[3].rstrip(",")) == pytest.approx(told.probability[8], rel=6e-3)
    rows = [row.locator("td").all_text_contents()[:2] for row in table.locator("tr").all()]
    for (name, share), (token, expected) in zip(rows[:5], told.likeliest(5)[8], strict=True):
        assert name == token.replace(" ", "␣")
        assert number(share) == pytest.approx(expected, rel=6e-3)
    assert rows[5][0] == "9 lamp · in the text"
    assert number(rows[5][1]) == pytest.approx(told.probability[9], rel=6e-3)
    page.locator("#view").hover(position={"x": 60, "y": 300})
    expect(table).to_have_count(1)


def test_a_masked_model_predicts_one_token_of_a_merged_word(look, tmp_path):
    transformers = pytest.importorskip("transformers")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##believ", "##able", "dog"]
    (tmp_path / "vocab.txt").write_text("\n".join(names), encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(names), intermediate_size=16, **sizes)
    model = transformers.BertForMaskedLM(config).eval()
    trace = gattn.capture("the unbelievable dog", model, tokenizer)
    page = look(trace, "token=3")
    caption = page.locator("table.predicted caption")
    expect(caption).to_contain_text("believ: what the model predicts in its place")
    page.locator("#words").check()
    settle(page)
    said = "unbelievable: what the model predicts in the place of \u2068able\u2069"
    expect(caption).to_have_text(said)
    first = page.locator("table.predicted td.value").first.text_content()
    assert number(first) == pytest.approx(trace.predictions.likeliest(1)[4][0][1], rel=6e-3)


def test_a_table_says_which_share_of_a_token_s_attention_it_has(look, lamp):
    page = look(lamp, "layer=2&head=1&token=9", keep=gattn.Threshold(0.1))
    row = lamp[2, 1].to_dense()[9]
    kept = row[row >= 0.1].sum() / row.sum()
    said = page.locator("#numbers caption").first.text_content()
    assert number(said.split("; ")[1].split()[0]) == pytest.approx(100 * kept, abs=0.06)
    assert said.endswith(" % of its attention shown")


def test_the_first_token_is_not_predicted_and_the_last_predicts_what_follows(look, lamp):
    page = look(lamp, "token=0")
    expect(page.locator("table.predicted .own")).to_have_count(0)
    page = look(lamp, "token=12")
    expect(page.locator("table.predicted tr")).to_have_count(5)


def test_before_and_after_predict_by_themselves(look, lamp):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        after = gattn.capture(LAMP, model, tokenizer)
    page = look(lamp, "token=8", other=after)
    captions = page.locator("table.predicted caption")
    expect(captions).to_have_count(2)
    for n, (name, trace) in enumerate((("before", lamp), ("after", after))):
        expect(captions.nth(n)).to_contain_text(f"next token ({name})")
        first = page.locator("table.predicted").nth(n).locator("td.value").first
        share = trace.predictions.likeliest(1)[8][0][1]
        assert number(first.text_content()) == pytest.approx(share, rel=6e-3)


def test_without_logits_nothing_is_said(look):
    page = look(trace_of(words(5)), "token=3")
    expect(page.locator("table.predicted")).to_have_count(0)
    expect(page.locator("#colour-control")).to_be_hidden()


def test_other_tokens_than_those_of_the_run_are_not_predicted(lamp):
    (stack,) = lamp.stacks.values()
    heads = {at: head.subgraph(range(1, 13)) for at, head in stack.items()}
    part = replace(lamp, stacks={stack.name: gattn.heads.stack.Stack(stack.name, heads)})
    assert stack_of(part.to_html())["predictions"] is None


def test_hostile_names_in_a_vocabulary_are_text(look, lamp):
    told = lamp.predictions

    class Hostile:
        likeliest = staticmethod(lambda most: [[(name, 0.1) for name in HOSTILE]] * 13)
        ids, shift, stack, probability = told.ids, 1, told.stack, told.probability

    page = look(replace(lamp, predictions=Hostile()), "token=3")
    assert page.evaluate("window.pwned") is None
    rows = page.locator("table.predicted tr")
    expect(rows).to_have_count(len(HOSTILE) + 1)
    expect(rows.first).to_contain_text("<script>window.pwned=1</script>")


# Colours


def test_tokens_are_coloured_by_any_numbers(look, lamp):
    surprisal = -np.log(lamp.predictions.probability)
    colour = {"surprisal": surprisal, "<b>": torch.arange(13)}
    page = look(lamp, "view=text", colour=colour)
    names = page.locator("#colour option").all_text_contents()
    assert names == ["none", "probability", "surprisal", "<b>"]
    page.locator("#colour").select_option("surprisal")
    settle(page)
    assert state(page)["colour"] == "surprisal"
    page.locator("#views [value=arcs]").click()
    low, high = np.nanmin(surprisal), np.nanmax(surprisal)
    said = page.locator("#caption").text_content().rpartition("labels coloured by surprisal, ")[2]
    found = [number(one) for one in said.split(" to ")]
    assert found == pytest.approx([min(low, 0) if high <= 1 else low, high], rel=6e-3)


def test_what_colours_hold_is_what_was_given(lamp):
    values = [0.123456, math.nan, math.inf, *range(10)]
    told = stack_of(lamp.to_html(colour=values))["colours"]
    assert told["colour"] == [0.1235, None, None, *range(10)]
    assert stack_of(lamp.to_html())["colours"].keys() == {"probability"}


@pytest.mark.parametrize(
    ("colour", "words"),
    [
        ([1.0], r"has 1 numbers of 'colour', but there are 13 tokens"),
        ({"x": np.ones((13, 2))}, r"by name, not \(13, 2\) as 'x'"),
        ("red", "one number for each token"),
        ([["a"]], "one number for each token"),
    ],
)
def test_colours_that_do_not_fit_are_refused(lamp, colour, words):
    with pytest.raises(ShapeError, match=words):
        lamp.to_html(colour=colour)


def test_cross_attention_alone_has_no_tokens_of_one_text(lamp):
    cross = gattn.AttentionGraph.from_dense(np.full((2, 4), 0.25), query_tokens=("x", "y"))
    with pytest.raises(SelectionError, match="tokens of self-attention"):
        cross.to_html(spans=[(0, 2)])


# Several texts


@pytest.fixture(scope="module")
def texts():
    some = ["The dog chased the cat", "red green lamp red green", HOSTILE[0]]
    return dict(
        zip(["one", "two", "<i>three"], gattn.capture_many(some, progress=False), strict=True)
    )


def test_several_texts_are_the_pages_of_each(texts):
    page = Decoded(to_html(texts))
    headers = [page.header, *page.header["others"]]
    assert [header["name"] for header in headers] == list(texts)
    for header, trace in zip(headers, texts.values(), strict=True):
        (stack,) = header["traces"][0]["stacks"]
        for entry in stack["graphs"]:
            size = len(trace.tokens)
            page.header = header
            head = trace[entry["layer"], entry["head"]]
            numbers = page.numbers(entry, size, size, 0)
            assert numbers["attention"] == pytest.approx(head.attention, abs=1e-5)


def test_a_text_is_chosen_by_list_button_key_and_address(look, texts):
    page = look(texts, "layer=1&head=1&token=2")
    title, chooser = page.locator("#title"), page.locator("#text")
    expect(title).to_have_text("The dog chased the cat")
    assert chooser.locator("option").all_text_contents()[2].startswith("3 of 3 · <i>three · ")
    expect(page.locator("#text-before")).to_be_disabled()
    chooser.select_option("1")
    settle(page)
    expect(title).to_have_text("red green lamp red green")
    assert state(page) == {"text": "1", "layer": "1", "head": "1"}
    page.locator("#text-after").click()
    settle(page)
    assert page.evaluate("window.pwned") is None
    expect(page.locator("#text-after")).to_be_disabled()
    page.locator("#view").press("[")
    settle(page)
    expect(title).to_have_text("red green lamp red green")
    page = look(texts, "text=1&layer=2&head=0&token=4&view=matrix")
    expect(page.locator("#title")).to_have_text("red green lamp red green")
    head = texts["two"][2, 0]
    row = head.to_dense()[4]
    found = [number(x) for x in readings(page, "reads").values()]
    assert found == pytest.approx(sorted(row)[: -len(found) - 1 : -1], abs=6e-4, rel=0.006)
    assert look(texts, "text=99").locator("#text").input_value() == "2"


def test_one_text_has_no_chooser(look, lamp):
    expect(look(lamp).locator("#text-control")).to_be_hidden()


def test_what_is_of_one_text_is_refused_of_several(lamp, texts):
    for name, value in {"other": lamp, "spans": [(0, 2)], "colour": [1.0], "why": []}.items():
        with pytest.raises(SelectionError, match=f"{name}= is of one text"):
            to_html(texts, **{name: value})
    with pytest.raises(SelectionError, match="nothing to show"):
        to_html([])
    with pytest.raises(SelectionError, match="not str"):
        to_html(["a text"])


def test_texts_share_the_room_of_a_page(texts, monkeypatch):
    from gattn.drawing.page import payload

    monkeypatch.setattr(payload, "_MOST_VALUES", sum(map(payload._values, texts["one"].heads())))
    texts["one"].to_html()
    with pytest.raises(FileError, match="too large"):
        to_html(texts)


def test_it_fits_on_a_phone(look, pair, lamp):
    viewport = {"width": 390, "height": 844}
    page = look(pair, "theme=dark", viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page = look(lamp, "token=8&colour=probability&theme=dark", viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
