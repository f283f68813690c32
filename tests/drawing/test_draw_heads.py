import dataclasses
import io
import xml.etree.ElementTree as ET

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from sample_heads import bipartite_head, causal_head, signed_head, small_trace

from gattn.drawing import draw_heads, notebook_svg
from gattn.errors import SelectionError
from gattn.trace import AttentionTrace, Stack


def one_stack(head, **places):
    return AttentionTrace({"decoder": Stack("decoder", {(0, 0): head} | places)}, "m")


def words(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def images(figure):
    return [ax.images[0] for ax in figure.axes if ax.images]


def test_layers_are_rows_and_heads_columns():
    figure = draw_heads(small_trace())
    assert isinstance(figure, Figure)
    found = words(figure)
    for name in ("layer 0", "layer 2", "head 1", "head 3", "head 4", "attention"):
        assert found.count(name) == 1
    assert "layer 1" not in found
    assert "tiny-model · 6 tokens" in found
    assert len(images(figure)) == 6
    corner = small_trace()[2, 4]
    last = next(ax for ax in figure.axes if ax.images and ax.get_subplotspec().num1 == 5)
    np.testing.assert_allclose(last.images[0].get_array().compressed(), corner.attention)


def grouped_trace(groups, *, layers=2, stacks=("decoder",), **fields):
    """Heads that read the key-value heads ``groups[layer % len(groups)]``."""
    heads = {
        (layer, head): causal_head(6, layer=layer, head=head, key_value_head=number)
        for layer in range(layers)
        for head, number in enumerate(groups[layer % len(groups)])
    }
    return AttentionTrace({name: Stack(name, heads) for name in stacks}, "m", **fields)


def group_lines(figure):
    """The ends of each line above columns, in pixels, and the text in the middle above it."""
    found = []
    for part in [figure, *figure.subfigs]:
        for line in part.artists:
            (left, y), (right, _) = line.get_transform().transform(line.get_xydata())
            above = [
                text.get_text()
                for text in part.texts
                if text.get_transform().transform(text.get_position())
                == pytest.approx(((left + right) / 2, y), abs=10)
            ]
            found.append((left, right, *above))
    return found


@pytest.mark.parametrize("stacks", [("decoder",), ("encoder", "decoder")])
def test_a_line_spans_the_heads_that_share_a_key_value_head(stacks):
    figure = draw_heads(grouped_trace([(0, 0, 0, 1, 1, 2)], stacks=stacks))
    tops = [ax for ax in figure.axes if ax.get_title()]
    for place, lines in enumerate(np.split(np.array(group_lines(figure), object), len(stacks))):
        boxes = [ax.get_window_extent() for ax in tops[6 * place : 6 * place + 6]]
        assert [ax.get_title() for ax in tops[:6]] == [f"head {head}" for head in range(6)]
        for number, (first, last) in enumerate([(0, 2), (3, 4), (5, 5)]):
            left, right, name = lines[number]
            assert (left, right) == pytest.approx((boxes[first].x0, boxes[last].x1), abs=0.1)
            assert name == f"key-value head {number}"


def test_heads_of_their_own_keys_have_no_lines():
    assert group_lines(draw_heads(small_trace())) == []


def test_groups_that_differ_between_layers_are_told_in_words():
    figure = draw_heads(grouped_trace([(0, 0, 1, 1), (0, 0, 0, 0)]))
    assert group_lines(figure) == []
    assert any("key-value heads differ between layers" in text for text in words(figure))
    mixed = grouped_trace([(0, 0, 1, 1), (None,) * 4])
    assert any("key-value heads differ" in text for text in words(draw_heads(mixed)))


def test_names_that_do_not_fit_become_numbers_beside_one_name():
    found = words(draw_heads(grouped_trace([[head // 2 for head in range(32)]], layers=1)))
    assert found.count("head") == found.count("key-value") == 1
    assert {"0", "15", "31"} <= set(found)
    assert not any(text.startswith(("head ", "key-value head ")) for text in found)


def test_texts_above_the_heads_do_not_overlap():
    for count, group in [(4, 2), (8, 4), (20, 1), (32, 4), (32, 2), (40, 2)]:
        numbers = [head // group for head in range(count)]
        figure = draw_heads(grouped_trace([numbers], layers=1))
        figure.draw_without_rendering()
        texts = [text for ax in figure.axes for text in (ax.title, *ax.texts)] + figure.texts
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        for place, one in enumerate(boxes):
            assert not any(one.overlaps(other) for other in boxes[place + 1 :]), (count, group)


def test_the_title_counts_what_was_generated():
    trace = grouped_trace([(0, 0)], stacks=("encoder", "decoder"), generated=2)
    assert {"m · encoder · 6 tokens", "m · decoder · 6 tokens, 2 generated"} <= set(
        words(draw_heads(trace))
    )


def test_one_scale_is_shared():
    trace = AttentionTrace({"a": Stack("a", {(0, 0): causal_head(3), (0, 1): signed_head()})}, "m")
    assert {(image.norm.vmin, image.norm.vmax) for image in images(draw_heads(trace))} == {
        (-1.6, 1.6)
    }


def test_every_stack_is_drawn_or_the_one_asked_for():
    trace = small_trace(stacks=("encoder", "decoder"))
    found = words(draw_heads(trace))
    assert "tiny-model · encoder · 6 tokens" in found
    assert "tiny-model · decoder · 6 tokens" in found
    figure = draw_heads(trace, stack="decoder")
    assert len(images(figure)) == 6
    with pytest.raises(SelectionError, match="cross"):
        draw_heads(trace, stack="cross")


def test_a_missing_head_leaves_its_place_empty():
    stack = Stack("decoder", {(0, 0): causal_head(4), (1, 1): causal_head(4)})
    figure = draw_heads(AttentionTrace({"decoder": stack}))
    assert len(images(figure)) == 2
    assert {"head 0", "head 1", "layer 0", "layer 1"} <= set(words(figure))


def test_cross_attention_counts_queries_and_keys():
    found = words(draw_heads(one_stack(bipartite_head())))
    assert "m · 3 queries, 5 keys" in found


def test_long_texts_are_drawn_in_blocks_by_their_largest_attention():
    head = causal_head(200)
    figure = draw_heads(one_stack(head))
    image = images(figure)[0].get_array()
    assert max(image.shape) <= 100
    assert image[0, 0] == head.attention.max()
    block = -(-200 // len(image))
    said = [" ".join(text.split()) for text in words(figure)]
    assert any(text.endswith(f"a cell is the largest of {block} × {block}") for text in said)


def test_a_sink_is_one_more_column():
    head = dataclasses.replace(causal_head(4), sink=np.array([0.9, 0.5, 0.4, 0.3]))
    image = images(draw_heads(one_stack(head)))[0].get_array()
    assert image.shape == (4, 6)
    assert image[:, -1].tolist() == [0.9, 0.5, 0.4, 0.3]


def test_draws_on_a_given_figure_and_knows_nothing_of_pyplot_otherwise():
    draw_heads(small_trace())
    assert plt.get_fignums() == []
    figure = plt.figure()
    assert draw_heads(small_trace(), figure=figure) is figure
    assert small_trace().draw(figure=figure) is figure


def test_a_figure_shows_itself_in_a_notebook():
    assert draw_heads(small_trace())._repr_png_().startswith(b"\x89PNG")


def test_an_empty_trace_is_an_error_and_an_empty_picture_in_a_notebook():
    trace = AttentionTrace({"decoder": Stack("decoder", {})})
    with pytest.raises(SelectionError, match="holds no heads"):
        draw_heads(trace)
    assert "<svg" in notebook_svg(trace)


def test_nothing_is_read_as_mathematics():
    trace = dataclasses.replace(small_trace(), model="a$_\\frac$\n")
    draw_heads(trace).savefig(io.BytesIO())


def test_names_that_svg_cannot_hold_are_shown():
    trace = small_trace(stacks=("a\x00", "b\x01"))
    svg = notebook_svg(dataclasses.replace(trace, model="<m>\x02"))
    ET.fromstring(svg)
    assert "&lt;m&gt;\\x02 · a\\x00 · 6 tokens" in svg


@pytest.mark.parametrize(
    "graphs",
    [causal_head(8), causal_head(150), bipartite_head(), small_trace(), signed_head()],
    ids=["short", "long", "bipartite", "trace", "signed"],
)
def test_notebooks_get_the_same_svg_each_time_and_nothing_stays_open(graphs):
    before = dict(mpl.rcParams)
    svg = graphs._repr_svg_()
    assert svg == notebook_svg(graphs)
    assert "<svg" in svg
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


def test_notebooks_get_text_as_text():
    assert ">word3</text>" in notebook_svg(causal_head(8))
    assert "layer 1 · head 3" in notebook_svg(causal_head(8))


def test_a_long_text_is_a_matrix_in_a_notebook():
    assert ">key</text>" in notebook_svg(causal_head(80))
    assert len(notebook_svg(causal_head(500))) < 2_000_000
