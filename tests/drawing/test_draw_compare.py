import dataclasses
import io
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from meeting import problems
from paper import FONT
from sample_heads import SHAPES, causal_head, signed_head
from test_draw_heads import box, images, lines, overlaps, said, words

import gattn
from gattn.analysis.heads.compare import compare, compare_head
from gattn.analysis.heads.divergences import FARTHEST
from gattn.analysis.reading.heads import by_place
from gattn.drawing.canvas import fonts
from gattn.drawing.many_heads.compare import distance_text, draw_compare
from gattn.drawing.styles.style import style
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Threshold, TopK
from gattn.names.text import wrapped


def trace(seed, *, layers=2, heads=3, size=6, stacks=("decoder",), **fields):
    """Heads that are those of any seed where layer and head are equal."""
    found = {
        (layer, head): causal_head(
            size, seed=0 if layer == head else seed + 10 * layer + head, layer=layer, head=head
        )
        for layer in range(layers)
        for head in range(heads)
    }
    return AttentionTrace({name: Stack(name, found) for name in stacks}, "tiny", **fields)


def blocks(figure, number=3):
    """The matrices before, after and of the change."""
    return np.array(images(figure), dtype=object).reshape(number, -1)


def changes(figure):
    return list(blocks(figure)[2])


def test_each_head_is_drawn_before_and_after_with_its_change():
    before, after = trace(1), trace(2)
    figure = draw_compare(before, after, edits="cut 1.1")
    assert isinstance(figure, Figure)
    places = [(layer, head) for layer in range(2) for head in range(3)]
    wholes, bars = lines(figure, "whole-bars"), lines(figure, "bars")
    assert len(bars) == 6
    for place, drawn, whole, bar in zip(places, blocks(figure).T, wholes, bars, strict=True):
        change = after[place].to_dense() - before[place].to_dense()
        for image, expected in zip(
            drawn, (before[place].to_dense(), after[place].to_dense(), change), strict=True
        ):
            np.testing.assert_allclose(image.get_array().filled(0), expected, atol=1e-12)
            np.testing.assert_array_equal(
                ~image.get_array().mask, np.tril(np.ones((6, 6), dtype=bool))
            )
        left, _, right, high = box(drawn[2])
        assert tuple(whole[:, 0]) == pytest.approx((left, right))
        distance = compare_head(before[place], after[place])["distance"]
        share = (bar[1, 0] - bar[0, 0]) / (right - left)
        assert share == pytest.approx(distance / FARTHEST)
        assert whole[0, 1] == bar[0, 1] > high
        assert distance_text(distance) in words(figure)
    found = words(figure)
    for name in ("layer 0", "layer 1", "before", "after", "after − before", "change in attention"):
        assert found.count(name) == 1
    assert found.count("head 2") == 3
    assert "tiny · 6 tokens" in found
    assert "cut 1.1; rows are queries, columns keys; the bar above a change" in said(figure)
    assert "edges" not in said(figure)


def test_blocks_stand_side_by_side_with_their_heads_in_the_same_places():
    figure = draw_compare(trace(1), trace(2))
    edges = [[box(image) for image in block] for block in blocks(figure)]
    assert max(right for _, _, right, _ in edges[0]) < min(left for left, *_ in edges[1])
    apart = edges[1][0][0] - edges[0][0][0]
    for one, other in zip(edges[0], edges[1], strict=True):
        np.testing.assert_allclose(np.subtract(other, one), (apart, 0, apart, 0), atol=1e-9)


def test_few_layers_of_many_heads_stand_one_below_the_other():
    before, after = (trace(seed, layers=1, heads=8) for seed in (1, 2))
    figure = draw_compare(before, after)
    highs = [{round(box(image)[3], 6) for image in block} for block in blocks(figure)]
    assert list(map(len, highs)) == [1, 1, 1]
    assert sorted(highs, reverse=True, key=max) == highs
    assert len(set.union(*highs)) == 3
    found = words(figure)
    assert [found.count(name) for name in ("before", "after", "tiny · 6 tokens")] == [1, 1, 1]
    assert "after − before" in found


def test_equal_heads_are_marked_by_a_plain_zero():
    figure = draw_compare(trace(1), trace(1))
    assert words(figure).count("0") >= 6
    for bar, change in zip(lines(figure, "bars"), changes(figure), strict=True):
        assert bar[0, 0] == bar[1, 0]
        assert not change.get_array().compressed().any()


def test_distances_as_text():
    assert distance_text(0) == "0"
    assert distance_text(1e-6) == "< 0.001"
    assert distance_text(0.12345) == "0.123"
    assert distance_text(FARTHEST) == "0.833"


def test_the_scale_is_centred_on_zero():
    figure = draw_compare(trace(1), trace(2))
    norms = [block[0].norm for block in blocks(figure)]
    assert (norms[2].vmin, norms[2].vmax, norms[2](0.0)) == (-1, 1, 0.5)
    assert (norms[0].vmin, norms[0].vmax) == (norms[1].vmin, norms[1].vmax) == (0, 1)


def test_attention_beyond_one_widens_the_scale_on_both_sides():
    double = dataclasses.replace(causal_head(4), attention=2 * causal_head(4).attention)
    image = changes(draw_compare(causal_head(4), double))[0]
    top = double.attention.max()
    assert (image.norm.vmin, image.norm.vmax) == (-top, top)


@pytest.mark.parametrize("size", [6, 20])
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 4), (3, 12), (1, 24), (1, 40)])
def test_texts_of_a_comparison_do_not_overlap_or_leave_the_figure(layers, heads, size):
    with mpl.rc_context({"font.size": size}):
        before, after = (trace(seed, layers=layers, heads=heads) for seed in (1, 2))
        figure = draw_compare(before, after, edits="cut 1.1, " * 12)
        assert list(overlaps(figure)) == []


def test_each_stack_is_drawn_in_the_order_of_the_trace():
    before, after = (trace(seed, stacks=("encoder", "decoder")) for seed in (1, 2))
    figure = draw_compare(before, after)
    assert len(images(figure)) == 36
    titles = [text for text in words(figure) if "tiny" in text]
    assert titles == ["tiny · encoder · 6 tokens", "tiny · decoder · 6 tokens"]
    assert len(images(draw_compare(before, after, stack="encoder"))) == 18


def test_edges_that_were_not_kept_are_told():
    before, after = (
        AttentionTrace(
            {"decoder": Stack("decoder", {(0, 0): causal_head(6, seed=s).keep(TopK(2))})}
        )
        for s in (1, 2)
    )
    for shown in (
        said(draw_compare(before, after)),
        said(draw_compare(before[0, 0], after[0, 0])),
    ):
        assert re.search(
            r"before TopK\(2\): 11 of 21 edges, \d+ % of the attention; after TopK\(2\): 11", shown
        )
    assert "count as 0" in said(draw_compare(before, after))


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_changes_of_long_texts_are_pooled_as_asked(pool):
    before, after = (
        AttentionTrace({"decoder": Stack("decoder", {(0, 0): causal_head(400, seed=s)})})
        for s in (1, 2)
    )
    figure = draw_compare(before, after, pool=pool)
    shown = changes(figure)[0]
    figure.savefig(io.BytesIO(), dpi=100 * figure.dpi / shown.get_window_extent().width)
    change = (after[0, 0].to_dense() - before[0, 0].to_dense())[-4:, :4]
    pooled = change.mean() if pool == "mean" else change.flat[np.abs(change).argmax()]
    assert shown.get_array().shape == (100, 100)
    assert shown.get_array()[-1, 0] == pytest.approx(pooled)
    assert "cells smaller than a pixel" in said(figure)


def test_one_head_is_three_large_matrices_with_tokens():
    before, after = causal_head(5), causal_head(5, seed=4)
    figure = draw_compare(before, after, edits="cut 1.3:4<-0")
    matrices = [image.get_array().filled(0) for image in images(figure)]
    np.testing.assert_array_equal(matrices[0], before.to_dense())
    np.testing.assert_array_equal(matrices[1], after.to_dense())
    np.testing.assert_allclose(matrices[2], after.to_dense() - before.to_dense())
    found = words(figure)
    assert [text for text in found if text.startswith("word")] == 4 * before.labels()
    distance = compare_head(before, after)["distance"]
    assert {
        f"1.3: {distance_text(distance)}",
        "layer 1 · head 3",
        "attention",
        "change in attention",
    } <= set(found)
    assert "cut 1.3:4<-0; rows are queries" in said(figure)


def test_chosen_heads_are_rows():
    before, after = trace(1), trace(2)
    figure = before.draw(other=after, heads=[(1, 0), (0, 2)])
    rows = [[round(box(image)[3], 6) for image in block] for block in blocks(figure)]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][0] > rows[0][1]
    np.testing.assert_array_equal(images(figure)[0].get_array().filled(0), before[1, 0].to_dense())
    assert {"layer 1 · head 0", "layer 0 · head 2"} <= set(words(figure))


def test_heads_are_sorted_by_their_distance():
    before, after = trace(1), trace(2)
    distances = compare(before, after).distance.droplevel("stack").sort_values(ascending=False)
    figure = draw_compare(before, after, sort="distance")
    for place, drawn in zip(distances.index[:4], blocks(figure).T[:4], strict=True):
        np.testing.assert_array_equal(drawn[1].get_array().filled(0), after[place].to_dense())
    layer, head = distances.index[0]
    largest = f"{distances.iloc[0]:.2f}"
    found = words(figure)
    assert f"{layer}.{head}: distance {largest}" in found
    assert {f"{layer}.{head}", f"{layer}.{head}: {distances.iloc[0]:.3f}"} <= set(found)
    assert "sorted by distance, written above, from the largest on" in said(figure)
    by_entropy = draw_compare(before, after, sort="entropy", within_layers=True)
    assert "sorted by entropy, written above, in each layer" in said(by_entropy)


@pytest.mark.parametrize("size", [(9, 7), (9, 14)])
def test_scores_are_said_to_be_written_only_where_they_are(size):
    before, after = (
        [causal_head(12, head=head, seed=12 * seed + head) for head in range(144)]
        for seed in (0, 99)
    )
    figure = draw_compare(before, after, sort="distance", figsize=size)
    scores = [text for text in words(figure) if re.fullmatch(r"(\d+\.)?\d+:\s0\.\d+", text)]
    assert ("written above" in said(figure)) == bool(scores)
    assert ("no room to write each head's distance" in said(figure)) == (not scores)


def test_two_weight_functions_are_named():
    one = [causal_head(5, head=head, weight_function="Dot()") for head in range(3)]
    other = [causal_head(5, head=head, seed=3, weight_function="Near()") for head in range(3)]
    figure = draw_compare(one, other)
    found = words(figure)
    assert {"Dot()", "Near()", "difference"} <= set(found)
    assert "before" not in found
    assert "difference: Near() − Dot(); rows are queries" in said(figure)
    assert "before" in words(draw_compare(one, [other[0], *one[1:]]))


def test_two_models_are_named():
    one, other = (causal_head(5, seed=seed, model=name) for seed, name in ((0, "a"), (1, "b")))
    found = words(draw_compare(one, other))
    assert {"a", "b", "difference"} <= set(found)
    assert "5 tokens" in found  # the title names neither model, as it is of both


@pytest.mark.parametrize("size", [6, 18])
@pytest.mark.parametrize("head", SHAPES.values(), ids=SHAPES)
def test_the_texts_of_one_head_do_not_overlap_or_leave_the_figure(head, size):
    with mpl.rc_context({"font.size": size}):
        other = dataclasses.replace(head, attention=head.attention[::-1].copy())
        figure = draw_compare(head, other, edits="cut 1.1, " * 9)
        assert list(overlaps(figure)) == []


def test_a_sink_is_one_more_column():
    sink = np.array([0.9, 0.5, 0.4, 0.3])
    one, other = causal_head(4), dataclasses.replace(causal_head(4), sink=sink)
    for shown in (
        draw_compare(one, other),
        draw_compare(*(AttentionTrace({"a": Stack("a", {(0, 0): h})}) for h in (one, other))),
    ):
        assert changes(shown)[0].get_array()[:, -1].tolist() == sink.tolist()
        assert "the last one the sink" in said(shown)


def test_a_comparison_is_drawn_on_a_given_figure():
    figure = plt.figure()
    assert draw_compare(trace(1), trace(2), figure=figure) is figure
    assert trace(1).only_stack.draw(other=trace(2).only_stack, figure=figure) is figure


def test_nothing_of_edits_is_read_as_mathematics():
    edits = 'cut 1:"$\\frac$"<-*'
    figure = draw_compare(trace(1), trace(2), edits=edits)
    figure.draw_without_rendering()
    assert edits in said(figure)


def test_what_cannot_be_compared_is_refused():
    empty = AttentionTrace({"decoder": Stack("decoder", {})})
    with pytest.raises(SelectionError, match="no heads"):
        draw_compare(empty, empty)
    with pytest.raises(SelectionError, match="tokens"):
        draw_compare(causal_head(3), causal_head(4))
    with pytest.raises(ShapeError, match=">= 0"):
        draw_compare(signed_head(), signed_head())


@pytest.mark.parametrize(
    ("layers", "size", "inches", "least"),
    [(2, 6, (3.3, 3.0), 0.12), (2, 6, (3.3, 4.5), 0.2), (3, 49, (6.75, 5.0), 0.36)],
)
def test_matrices_fill_a_narrow_figure_and_all_texts_lie_on_it(layers, size, inches, least):
    with style("paper"):
        before, after = (trace(n, layers=layers, heads=4, size=size) for n in (1, 2))
        figure = draw_compare(before, after, edits="cut 1.1", figsize=inches)
        figure.canvas.draw()
    assert min(box(image)[2] - box(image)[0] for image in images(figure)) > least
    assert not list(overlaps(figure))
    whole = figure.bbox.padded(1)
    for text in figure.findobj(mpl.text.Text):
        if text.get_visible() and text.get_text():
            (left, low), (right, high) = text.get_window_extent().get_points()
            assert whole.contains(left, low), text.get_text()
            assert whole.contains(right, high), text.get_text()


def test_a_distance_that_is_nearly_zero_stays_on_one_line():
    assert wrapped("< 0.001", 3.0) == "< 0.001"


def test_fonts_are_looked_up_a_few_times_and_not_for_every_text_that_is_measured(monkeypatch):
    looked_up = []
    plain = fonts.findfont
    monkeypatch.setattr(fonts, "findfont", lambda *a, **b: looked_up.append(a) or plain(*a, **b))
    before, after = trace(1), trace(2)
    draw_compare(before, after, heads=[(0, 0), (1, 1)], figsize=(6.75, 3.3))
    assert len(looked_up) < 50


def test_fonts_are_looked_up_again_where_settings_change():
    text = ["The dog"]
    usual = fonts.families(text)
    with mpl.rc_context({"font.family": "DejaVu Serif"}):
        assert fonts.families(text) == ["DejaVu Serif", "DejaVu Sans"]
    with mpl.rc_context({"font.family": ["serif"], "font.serif": ["STIXGeneral"]}):
        assert fonts.families(text)[-2:] == ["serif", "DejaVu Sans"]
    assert fonts.families(text) == usual


@pytest.mark.parametrize(
    ("inches", "least"),
    [((6.75, 4), 0.55), ((6.75, 3), 0.45), ((3.3, 3), 0.25), ((3.3, 2.4), 0.18)],
)
def test_three_heads_fill_a_figure_and_are_named(inches, least):
    with style("paper"):
        before, after = (trace(n, layers=2, heads=3, size=13) for n in (1, 2))
        chosen = [(0, 1), (1, 0), (1, 2)]
        figure = draw_compare(before, after, heads=chosen, figsize=inches)
        assert not problems(figure)
    assert min(box(image)[2] - box(image)[0] for image in images(figure)) > least
    assert "have room" not in said(figure)
    names = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))
    assert all(name in names for name in ("0.1", "1.0", "1.2"))


def test_no_token_is_named_rather_than_one_and_matrices_have_its_room():
    with style("paper"):
        before, after = (trace(n, layers=2, heads=3, size=13) for n in (1, 2))
        figure = draw_compare(before, after, heads=[(0, 1), (1, 0), (1, 2)], figsize=(3.3, 2.4))
    tokens = {f"{n} {text}" for n, text in enumerate(before[0, 0].labels())}
    assert not tokens & {text.get_text() for text in figure.findobj(mpl.text.Text)}


@pytest.mark.parametrize("size", [(6.75, 3.0), (6.75, 3.6)])
@pytest.mark.parametrize("shape", [(1, 16), (16, 1), (8, 2), (2, 8), (3, 4), (4, 4)])
def test_matrices_of_few_or_many_layers_fill_the_width_of_a_paper(shape, size):
    def run(seed):
        heads = {
            (n, h): causal_head(9, seed=seed + 31 * n + h, layer=n, head=h)
            for n in range(shape[0])
            for h in range(shape[1])
        }
        return AttentionTrace({"decoder": Stack("decoder", heads)})

    with mpl.rc_context(FONT):
        figure = run(0).draw(other=run(500), figsize=size)
        assert not problems(figure)
    boxes = [image.get_window_extent() for image in figure.axes[0].images]
    assert len(boxes) == 48 if shape != (3, 4) else 36
    sides = [min(box.width, box.height) / figure.dpi for box in boxes]
    assert min(sides) > 0.25
    is_named = "heads are named layer.head" in said(figure)
    has_rows = "layer 0" in words(figure)
    assert is_named != has_rows
    plt.close(figure)


def test_a_head_of_which_no_edge_was_kept_is_not_said_to_have_none():
    before, after = trace(1), trace(2)
    heads = {place[1:]: head for place, head in by_place(after).items()}
    with pytest.warns(UserWarning, match="keeps no edge"):
        heads[1, 0] = heads[1, 0].keep(Threshold(2.0))
    dropped = AttentionTrace({"decoder": Stack("decoder", heads)}, "tiny")
    assert "an empty matrix: none of its edges were kept" in said(draw_compare(before, dropped))
    assert "empty matrix" not in said(draw_compare(before, after))
    plt.close("all")


@pytest.mark.parametrize("size", [None, (6.75, 3.0), (3.3, 2.4)])
def test_a_head_without_edges_after_a_cut_is_said_to_have_none_left(size):
    model, tokenizer = gattn.load_model()
    before = gattn.capture("a b a b a", model, tokenizer)
    with gattn.edited(model, gattn.Cut(layer=2, head=0)):
        after = gattn.capture("a b a b a", model, tokenizer)
    with mpl.rc_context(FONT if size else {}):
        figures = before.draw(other=after, figsize=size), after.draw(figsize=size)
    for figure in figures:
        assert "an empty matrix has no edges left" in said(figure)
    plt.close("all")


def test_the_caption_says_what_a_full_bar_is():
    figure = draw_compare(trace(1), trace(2))
    assert "mean over queries; a full bar is 0.833, no attention in common" in said(figure)
    plt.close(figure)
