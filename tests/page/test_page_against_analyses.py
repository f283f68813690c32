"""What the page computes in the browser is what gattn computes in Python."""

import re

import numpy as np
import pytest
import torch
from looking import LAMP, VIEWS, readings, settle
from playwright.sync_api import expect

import gattn
from gattn.graph.token_graph import TokenGraph


def read(page, which):
    """The values of a table of numbers by position, or by the number that is a token's name."""
    found = {}
    for name, value in readings(page, which).items():
        place = int(re.match(r"\d+", name).group())
        written = value.replace("−", "-").replace("< 0.001", "0").replace(",", "")
        found[place] = float(written) if re.fullmatch(r"-?[\d.]+(e-?\d+)?", written) else value
    return found


@pytest.mark.parametrize("keep", [gattn.TopK(1), gattn.TopK(3), gattn.keep.All()])
def test_rollout_in_the_page_is_the_analysis(keep, look_at):
    trace = gattn.capture(LAMP, keep=keep)
    page = look_at(trace, "view=layered&token=12&level=4")
    expected = gattn.analysis.rollout(trace).sel(layer=3, query=12).to_numpy()
    found = read(page, "may have read of the input")
    assert set(found) == set(np.argsort(-expected)[: len(found)].tolist())
    for place, share in found.items():
        assert share == pytest.approx(expected[place], abs=2e-3)


def test_rollout_in_the_page_is_the_analysis_where_a_sink_takes_part(look_at):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Swap(normalizer=gattn.Softmax(sink=3.0))):
        trace = gattn.capture(LAMP, model, tokenizer)
    page = look_at(trace, "view=layered&token=12&level=4")
    expected = gattn.analysis.rollout(trace).sel(layer=3, query=12).to_numpy()
    for place, share in read(page, "may have read of the input").items():
        assert share == pytest.approx(expected[place], abs=2e-3)
    expect(page.locator("#caption")).not_to_contain_text("lost")


def test_scores_of_0_are_read(look_at):
    q = torch.zeros(1, 6, 8)
    (head,) = gattn.attention_graphs(q, q, TokenGraph.causal(6), weight=gattn.ALiBi(1), scores=True)
    page = look_at(head, "weight=score&token=4")
    assert read(page, "reads")[4] == 0
    assert "attention shown" not in page.locator("#numbers caption").first.text_content()
    assert "reads 4: 0," in page.locator("#view-option").text_content()


def cut_run(**options):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        return gattn.capture(LAMP, model, tokenizer, **options)


def test_changes_of_edges_that_one_run_dropped_are_not_numbers(look_at):
    few = gattn.TopK(1)
    page = look_at(
        gattn.capture(LAMP, keep=few), "layer=2&head=1&token=12", other=cut_run(keep=few)
    )
    found = read(page, "reads")
    assert "not kept" in found.values()
    assert "100 % of the change" not in page.locator("#caption").text_content()
    expect(page.locator("#caption")).to_contain_text("kept in only one run")
    whole = cut_run()[2, 1].to_dense() - gattn.capture(LAMP)[2, 1].to_dense()
    for place, change in found.items():
        assert change == "not kept" or change == pytest.approx(whole[12, place], abs=1e-3)


def test_a_cut_edge_has_no_change_of_score(look_at):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=2, head=1, query=12, key=5)):
        after = gattn.capture(LAMP, model, tokenizer, scores=True)
    before = gattn.capture(LAMP, scores=True)
    page = look_at(before, "layer=2&head=1&token=5&weight=score", other=after)
    changes = read(page, "is read by")
    assert changes.pop(12) == "no edge"
    # What is left of two runs' scores is rounding.
    assert max(map(abs, changes.values()), default=0) < 1e-5
    page.evaluate("location.hash = '#layer=2&head=1&token=5'")
    settle(page)
    expect(page.locator("#numbers caption", has_text="is read by")).to_be_visible()
    change = read(page, "is read by")[12]
    assert change == pytest.approx(-before[2, 1].to_dense()[12, 5], abs=1e-3)


def test_a_sink_of_one_run_alone_is_compared(look_at):
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Swap(normalizer=gattn.Softmax(sink=0.0))):
        after = gattn.capture(LAMP, model, tokenizer)
    for view in VIEWS:
        page = look_at(gattn.capture(LAMP), f"view={view}&token=5&show=all three", other=after)
        expect(page.locator("#caption")).to_contain_text("difference")
    page.locator("#sinks").check()
    settle(page)
    expect(page.locator("#caption")).to_contain_text("<sink>")


@pytest.mark.parametrize("is_before", [True, False])
def test_kinds_of_values_of_one_run_alone_are_not_compared(is_before, look_at):
    runs = [gattn.capture(LAMP, scores=is_before), cut_run(scores=not is_before)]
    page = look_at(runs[0], "weight=score&show=all three&token=3", other=runs[1])
    expect(page.locator("#weight-control")).to_be_hidden()
    page.locator("#show").select_option("before")
    settle(page)
    page.keyboard.press("w")
    settle(page)


@pytest.mark.parametrize("layers", [[1, 3], [1, 2]])
def test_only_consecutive_layers_roll_out_and_the_input_is_what_comes_before(layers, look_at):
    page = look_at(gattn.capture(LAMP, layers=layers), "view=layered&token=12&level=2")
    tables = page.locator("#numbers caption")
    if layers == [1, 2]:
        expect(tables.first).to_contain_text("the tokens before layer 1 (rollout)")
    else:
        expect(tables).to_have_count(0)
        expect(page.locator("#numbers")).to_contain_text("no rollout")
