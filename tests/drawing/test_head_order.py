"""Pictures of many heads, sorted and labelled by scores, and strips of chosen ones."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sample_heads import SHAPES, causal_head, signed_head
from test_draw_heads import box, images, overlaps, said, words

from gattn.analysis.heads.head_table import head_table
from gattn.drawing import draw_heads
from gattn.drawing.many_heads.scores import Score
from gattn.errors import SelectionError
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

PLACES = [(layer, head) for layer in range(2) for head in range(3)]


def heads(size=6, **fields):
    return {
        (layer, head): causal_head(size, seed=7 * layer + head, layer=layer, head=head, **fields)
        for layer, head in PLACES
    }


def trace(*names, **fields):
    names = names or ("decoder",)
    return AttentionTrace({name: Stack(name, heads(**fields)) for name in names}, "m")


def shown(figure):
    """The attention of each matrix, from the upper left one on."""
    ordered = sorted(images(figure), key=lambda image: (-box(image)[1], box(image)[0]))
    return [image.get_array().compressed() for image in ordered]


def order(figure, size=6):
    """The heads that are drawn, from the upper left one on."""
    every = heads(size)
    return [
        next(place for place, head in every.items() if np.array_equal(head.attention, found))
        for found in shown(figure)
    ]


def test_heads_are_sorted_by_a_score_of_the_head_table():
    expected = head_table(trace()).droplevel("stack").entropy.sort_values(ascending=False)
    figure = draw_heads(trace(), sort="entropy")
    assert order(figure) == list(expected.index)
    above = [f"{layer}.{head}: entropy {value:.2f}" for (layer, head), value in expected.items()]
    assert [text for text in words(figure) if ": entropy" in text] == above
    assert "sorted by entropy, written above, from the largest on" in said(figure)
    assert not any(text.startswith(("layer", "head")) for text in words(figure))


def test_heads_are_sorted_within_their_layers():
    score = {(0, 0): 1, (0, 1): 3, (0, 2): 2, (1, 0): 3, (1, 1): 2, (1, 2): 1}
    figure = draw_heads(trace(), sort=score, within_layers=True)
    assert order(figure) == [(0, 1), (0, 2), (0, 0), (1, 0), (1, 1), (1, 2)]
    found = words(figure)
    assert {"layer 0", "layer 1", "head 1: score 3", "head 2: score 2"} <= set(found)
    assert "sorted by score, written above, in each layer from the largest on" in said(figure)


@pytest.mark.parametrize(
    "score",
    [
        dict(zip(PLACES, range(6), strict=True)),
        {("decoder", *place): number for number, place in enumerate(PLACES)},
        pd.Series(range(6), pd.MultiIndex.from_tuples(PLACES)),
        xr.DataArray(np.arange(6).reshape(2, 3), coords={"layer": [0, 1], "head": [0, 1, 2]}),
    ],
    ids=["mapping", "with stack", "series", "xarray"],
)
def test_scores_come_in_any_form_by_layer_and_head(score):
    assert order(draw_heads(trace(), sort=score)) == PLACES[::-1]


def test_a_head_without_score_comes_last():
    score = {(1, 2): 0.5, (0, 1): 0.9, (0, 0): float("nan"), (0, 2): None, (1, 1): pd.NA}
    figure = draw_heads(trace(), sort=score)
    assert order(figure) == [(0, 1), (1, 2), (0, 0), (0, 2), (1, 0), (1, 1)]
    assert {"0.1: score 0.90", "1.2: score 0.50", "0.0", "1.1"} <= set(words(figure))


def test_heads_are_labelled_in_place():
    figure = draw_heads(trace(), label="label")
    assert order(figure) == PLACES
    table = head_table(trace())
    above = [text.replace("\n", " ") for text in words(figure)]
    assert [text for text in above if text in set(table.label)] == list(table.label)
    assert "above each head its label" in said(figure)


def test_heads_in_words_are_sorted_by_alphabet():
    figure = draw_heads(trace(), sort=dict(zip(PLACES, "fbecad", strict=True)))
    assert order(figure) == [(1, 1), (0, 1), (1, 0), (1, 2), (0, 2), (0, 0)]
    assert "from the largest" not in said(figure)


def test_another_label_than_what_sorts():
    figure = draw_heads(trace(), sort={place: -sum(place) for place in PLACES}, label="entropy")
    assert order(figure)[0] == (0, 0)
    assert "sorted by score from the largest on; above each head its entropy" in said(figure)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([0.754, 0.001], "0.75"),
        ([-0.12, 0.5], "−0.12"),
        ([0.001, 0.75], "0.00"),
        ([-0.001, 0.75], "0.00"),
        ([1.0, 0.5], "1.00"),
        ([13.24, 0.5], "13.24"),
        ([12345.6, 0.5], "1.23×10⁴"),
        ([2.0, 3.0], "2"),
        ([3e-5, 2e-5], "3×10⁻⁵"),
        ([float("inf"), 1.0], "inf"),
    ],
)
def test_scores_are_written_in_few_characters(value, text):
    score = Score.of(dict(zip(PLACES, value, strict=False)), trace_places())
    assert score.text(("decoder", 0, 0)) == text


def trace_places():
    return {("decoder", *place): head for place, head in heads().items()}


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("inductoin", "There is no head score 'inductoin'; there are .*induction"),
        (7, "by \\(layer, head\\).* not by 7"),
        ({3: 0.5}, "not by 3"),
        (pd.DataFrame({"entropy": [1.0]}), "not by 'entropy'"),
        ({(9, 9): 0.5}, "None of the heads"),
        ("outside_sink", "There is no head score 'outside_sink'"),
        ({(0, 0): [1, 2]}, "a number or a text"),
    ],
)
def test_what_is_no_score_is_refused(score, message):
    with pytest.raises(SelectionError, match=message):
        draw_heads(trace(), sort=score)


def test_chosen_heads_are_a_strip_with_their_tokens():
    figure = draw_heads(trace(), heads=[(1, 2), (0, 1)])
    assert order(figure) == [(1, 2), (0, 1)]
    found = words(figure)
    assert {"layer 1 · head 2", "layer 0 · head 1"} <= set(found)
    tokens = causal_head(6).tokens
    assert [text for text in found if text.startswith("word")] == [*tokens, *tokens, *tokens]
    left, low, right, high = box(images(figure)[0])
    assert right - left > 1.5 * np.subtract(*box(images(draw_heads(trace()))[0])[2::-2])
    queries = [text for text in figure.axes[0].texts if text.get_text() in tokens][:6]
    rows = [text.get_position()[1] for text in queries]
    np.testing.assert_allclose(rows, high - (np.arange(6) + 0.5) * (high - low) / 6)


def test_a_strip_is_sorted_and_labelled():
    figure = draw_heads(trace(), heads=PLACES[:3], sort={place: place[1] for place in PLACES})
    assert order(figure) == [(0, 2), (0, 1), (0, 0)]
    assert "layer 0 · head 2: score 2" in words(figure)


def test_a_strip_names_the_key_value_head():
    figure = draw_heads(trace(key_value_head=4), heads=[(0, 1)])
    assert "layer 0 · head 1 key-value head 4" in said(figure)


def test_many_chosen_heads_are_several_rows_of_nearly_as_many():
    figure = draw_heads(trace(size=30), heads=PLACES)
    rows = [round(box(image)[1], 3) for image in images(figure)]
    assert sorted(map(rows.count, set(rows))) == [3, 3]


@pytest.mark.parametrize("size", [6, 18])
@pytest.mark.parametrize(
    "head",
    [
        *SHAPES.values(),
        causal_head(500),
        causal_head(5, tokens=["$x^2$", "a\nb", "\x00", "w" * 60, "\u202eabc"], generated=2),
    ],
    ids=[*SHAPES, "very long", "hostile"],
)
def test_the_texts_of_a_strip_do_not_overlap_or_leave_the_figure(head, size):
    places = {(0, number): dataclasses.replace(head, layer=0, head=number) for number in range(2)}
    with mpl.rc_context({"font.size": size}):
        figure = draw_heads(Stack("decoder", places), heads=list(places))
        assert list(overlaps(figure)) == []


def test_a_sink_is_named():
    head = causal_head(4, layer=0, head=0, sink=np.full(4, 0.25))
    figure = draw_heads(Stack("decoder", {(0, 0): head}), heads=[(0, 0)])
    name = next(text for text in figure.axes[0].texts if text.get_text() == "<sink>")
    left, _, right, _ = box(images(figure)[0])
    assert name.get_position()[0] == pytest.approx(right - (right - left) / 12)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([(0, 7)], r"No head 0.7; there are layers"),
        ([0, 7], r"No head 0.7"),
        ([(0,)], "heads must be a number"),
        ((0, 1), "may be a place or two heads"),
        (7, r"No head 0.7"),
        (["01"], "heads must be a number"),
        ([], "heads is empty"),
    ],
)
def test_heads_that_are_not_there_are_refused(chosen, says):
    with pytest.raises(SelectionError, match=says):
        draw_heads(trace(), heads=chosen)


def test_heads_of_several_stacks_take_the_name_of_one():
    several = trace("encoder", "decoder")
    with pytest.raises(SelectionError, match=r"stack=, one of \['encoder', 'decoder'\]"):
        draw_heads(several, heads=[(0, 0)])
    figure = draw_heads(several, heads=[(0, 0)], stack="encoder")
    assert "m · encoder · 6 tokens" in words(figure)
    assert order(figure) == [(0, 0)]


def test_heads_are_named_as_text_as_on_the_command_line():
    several = trace("encoder", "decoder")
    figure = draw_heads(several, heads="encoder:1.2,0.0-1")
    assert "m · encoder · 6 tokens" in words(figure)
    assert order(figure) == [(1, 2), (0, 0), (0, 1)]
    assert order(draw_heads(trace(), heads=["1.2", (0, 1)])) == [(1, 2), (0, 1)]
    with pytest.raises(SelectionError, match="names a stack, but stack='decoder'"):
        draw_heads(several, heads="encoder:1.2", stack="decoder")
    with pytest.raises(SelectionError, match="No stack 'cross'"):
        draw_heads(several, heads="cross:1.2")
    for chosen in ("1", 1, [1]):
        assert order(draw_heads(trace(), heads=chosen)) == [(0, 1), (1, 1)]


def test_stacks_lists_of_heads_arrays_and_single_heads_are_drawn():
    assert order(draw_heads(trace().only_stack)) == PLACES
    assert order(draw_heads(list(heads().values()))) == PLACES
    array = np.stack([causal_head(6, seed=seed).to_dense() for seed in range(3)])[None]
    assert len(images(draw_heads(array))) == 3
    figure = draw_heads(causal_head(6))
    assert len(images(figure)) == 1
    assert "layer 1 · head 3" in words(figure)
    assert trace().only_stack.draw(heads=[(0, 1)]).axes[0].images


def test_heads_without_layer_are_named_without():
    many = [causal_head(6, layer=None, head=head) for head in range(3)]
    assert "layer 0" not in words(draw_heads(many))
    assert "2: score 3" in words(draw_heads(many, sort={(0, 2): 3}))
    assert "head 2" in words(draw_heads(many, heads=[(0, 2)]))


def test_layers_with_other_tokens_are_told():
    stack = Stack("vision", {(0, 0): causal_head(4), (1, 0): causal_head(9)})
    assert "4 to 9 tokens" in words(draw_heads(stack))
    figure = draw_heads(stack, heads=[(0, 0), (1, 0)])
    assert not any(text.startswith("word") for text in words(figure))


def test_kept_edges_are_told_with_their_rule():
    from gattn.keep import TopK

    few = Stack("decoder", {(0, 0): causal_head(6).keep(TopK(2))})
    assert "TopK(2): 11 of 21 edges, " in said(draw_heads(few))
    assert "% of the attention; rows are queries" in said(draw_heads(few))


def test_signed_heads_are_sorted_by_given_scores():
    stack = Stack(
        "a", {(0, head): dataclasses.replace(signed_head(), head=head) for head in (0, 1)}
    )
    figure = draw_heads(stack, sort={(0, 0): 0.1, (0, 1): 0.2})
    assert {image.norm.vmin for image in images(figure)} == {-1.6}
