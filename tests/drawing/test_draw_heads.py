import base64
import dataclasses
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sample_heads import bipartite_head, causal_head, decoding_step, signed_head, small_trace

from gattn.drawing import draw_heads, notebook_svg
from gattn.errors import SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace


def one_stack(head, **places):
    return AttentionTrace({"decoder": Stack("decoder", {(0, 0): head} | places)}, "m")


def words(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def said(figure):
    return " ".join(" ".join(words(figure)).split())


def images(figure):
    return figure.axes[0].images


def lines(figure, gid):
    """The ends of lines, in inches from the left lower corner, where x0 <= x1."""
    found = [one for one in figure.axes[0].collections if one.get_gid() == f"gattn-{gid}"]
    return [segment for one in found for segment in one.get_segments()]


def box(image):
    left, right, low, high = image.get_extent()
    return left, low, right, high


def test_layers_are_rows_and_heads_columns():
    figure = draw_heads(small_trace())
    assert isinstance(figure, Figure)
    found = words(figure)
    for name in ("layer 0", "layer 2", "head 1", "head 3", "head 4"):
        assert found.count(name) == 1
    assert "attention" in found
    assert "layer 1" not in found
    assert "tiny-model · 6 tokens" in found
    assert len(images(figure)) == 6
    boxes = [box(image) for image in images(figure)]
    assert boxes[0][0] == boxes[3][0] < boxes[1][0] < boxes[2][0]
    assert boxes[0][1] == boxes[2][1] > boxes[3][1] == boxes[5][1]
    corner = small_trace()[2, 4]
    np.testing.assert_allclose(images(figure)[5].get_array().compressed(), corner.attention)


def grouped_trace(groups, *, layers=2, stacks=("decoder",), **fields):
    """Heads that read the key-value heads ``groups[layer % len(groups)]``."""
    heads = {
        (layer, head): causal_head(6, layer=layer, head=head, key_value_head=number)
        for layer in range(layers)
        for head, number in enumerate(groups[layer % len(groups)])
    }
    return AttentionTrace({name: Stack(name, heads) for name in stacks}, "m", **fields)


@pytest.mark.parametrize("stacks", [("decoder",), ("encoder", "decoder")])
def test_a_line_spans_the_heads_that_share_a_key_value_head(stacks):
    figure = draw_heads(grouped_trace([(0, 0, 0, 1, 1, 2)], stacks=stacks))
    spans = lines(figure, "key-value-heads")
    assert len(spans) == 3 * len(stacks)
    names = [text for text in figure.axes[0].texts if text.get_text().startswith("key-value")]
    for place in range(len(stacks)):
        drawn = images(figure)[12 * place : 12 * place + 6]
        for number, (first, last) in enumerate([(0, 2), (3, 4), (5, 5)]):
            (left, y), (right, _) = spans[3 * place + number]
            assert (left, right) == pytest.approx((box(drawn[first])[0], box(drawn[last])[2]))
            name = names[3 * place + number]
            assert name.get_text() == f"key-value head {number}"
            assert name.get_position()[0] == pytest.approx((left + right) / 2)
            assert y < name.get_position()[1] < y + 0.1


def test_heads_of_their_own_keys_have_no_lines():
    assert lines(draw_heads(small_trace()), "key-value-heads") == []


def test_groups_that_differ_between_layers_are_told_in_words():
    figure = draw_heads(grouped_trace([(0, 0, 1, 1), (0, 0, 0, 0)]))
    assert lines(figure, "key-value-heads") == []
    assert any("key-value heads differ between layers" in text for text in words(figure))
    mixed = grouped_trace([(0, 0, 1, 1), (None,) * 4])
    assert any("key-value heads differ" in text for text in words(draw_heads(mixed)))


def test_names_that_do_not_fit_become_numbers_beside_one_name():
    found = words(draw_heads(grouped_trace([[head // 2 for head in range(32)]], layers=1)))
    assert found.count("head") == found.count("key-value") == 1
    assert {"0", "15", "31"} <= set(found)
    assert not any(text.startswith(("head ", "key-value head ")) for text in found)


def overlaps(figure):
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(mpl.text.Text) if text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_visible()]
    for place, (name, one) in enumerate(boxes):
        for other, another in boxes[place + 1 :]:
            if one.overlaps(another):
                yield name, other
        inside = one.x0 > -1 and one.y0 > -1
        if not (inside and one.x1 < figure.bbox.width + 1 and one.y1 < figure.bbox.height + 1):
            yield name, "the edge"


@pytest.mark.slow
@pytest.mark.parametrize("size", [6, 10, 14, 20])
@pytest.mark.parametrize("label", [None, "label", "mean_distance"])
def test_texts_above_the_heads_do_not_overlap_or_leave_the_figure(size, label):
    with mpl.rc_context({"font.size": size}):
        for count, group in [(1, 1), (4, 2), (8, 4), (20, 1), (32, 4), (32, 2), (40, 2)]:
            numbers = [head // group for head in range(count)]
            figure = draw_heads(grouped_trace([numbers], layers=2), label=label)
            assert list(overlaps(figure)) == [], (count, group)


def test_a_title_counts_one_token_as_one():
    (title,) = [text for text in words(draw_heads(causal_head(1))) if "token" in text]
    assert title == "1 token"
    step = AttentionGraph.from_dense(
        np.full((1, 4), 0.25), TokenGraph.causal(1, num_keys=4, query_offset=3)
    )
    assert "1 query, 4 keys" in words(draw_heads(step))


def generated_head(head, number):
    return dataclasses.replace(head, generated=number)


def test_generated_tokens_are_counted_and_marked():
    stack = Stack("decoder", {(0, 0): causal_head(8, layer=0, head=0, generated=2)})
    figure = draw_heads(AttentionTrace({"decoder": stack}, "m"))
    assert "m · 8 tokens, 2 generated" in words(figure)
    assert "lines mark generated tokens" in said(figure)
    left, low, right, high = box(images(figure)[0])
    side = (right - left) / 8
    beside, above = lines(figure, "generated")
    np.testing.assert_allclose(beside[:, 1], [low + 2 * side, low])
    np.testing.assert_allclose(above[:, 0], [right - 2 * side, right])
    assert (beside[:, 0] < left).all()
    assert (above[:, 1] > high).all()


def test_in_cross_attention_queries_are_marked_as_generated():
    figure = draw_heads(one_stack(generated_head(bipartite_head(), 1)))
    (beside,) = lines(figure, "generated")
    left, low, _, high = box(images(figure)[0])
    np.testing.assert_allclose(beside[:, 1], [low + (high - low) / 3, low])
    assert (beside[:, 0] < left).all()


def test_a_step_of_decoding_marks_the_queries_that_are_there():
    figure = draw_heads(one_stack(generated_head(decoding_step(), 3)))
    beside, above = lines(figure, "generated")
    left, low, right, high = box(images(figure)[0])
    np.testing.assert_allclose(beside[:, 1], [high, low])
    np.testing.assert_allclose(above[:, 0], [(left + right) / 2, right])


def test_nothing_is_marked_where_nothing_was_generated():
    figure = draw_heads(small_trace())
    assert lines(figure, "generated") == []
    assert "generated" not in said(figure)


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


@pytest.mark.parametrize(("kind", "dpi"), [("png", 50), ("png", 300), ("pdf", 100), ("pdf", 600)])
def test_matrices_have_as_many_cells_as_the_file_has_pixels(kind, dpi):
    figure = draw_heads(one_stack(causal_head(400)))
    inches = images(figure)[0].get_window_extent().width / figure.dpi
    figure.savefig(io.BytesIO(), format=kind, dpi=dpi)
    resolution = dpi if kind == "png" else max(dpi, 300)
    size = min(round(inches * resolution), 400)
    assert images(figure)[0].get_array().shape == pytest.approx((size, size), abs=1)
    said = " ".join(" ".join(words(figure)).split())
    assert ("cells smaller than a pixel are averaged" in said) == (size < 400)


def test_short_texts_are_drawn_cell_by_cell_and_nothing_is_said_of_pixels():
    figure = draw_heads(one_stack(causal_head(50)))
    figure.savefig(io.BytesIO(), dpi=100)
    np.testing.assert_array_equal(
        images(figure)[0].get_array().filled(0), causal_head(50).to_dense()
    )
    assert "pixel" not in " ".join(words(figure))


def test_a_sink_is_one_more_column():
    head = dataclasses.replace(causal_head(4), sink=np.array([0.9, 0.5, 0.4, 0.3]))
    image = images(draw_heads(one_stack(head)))[0].get_array()
    assert image.shape == (4, 6)
    assert image[:, -1].tolist() == [0.9, 0.5, 0.4, 0.3]


def test_draws_on_a_given_figure_or_on_one_of_pyplot():
    drawn = draw_heads(small_trace())
    assert [plt.figure(number) for number in plt.get_fignums()] == [drawn]
    figure = plt.figure()
    assert draw_heads(small_trace(), figure=figure) is figure
    assert small_trace().draw(figure=figure) is figure


def test_vector_files_hold_cells_of_several_pixels_in_their_place():
    figure = draw_heads(one_stack(causal_head(6)))
    sizes = {}
    for kind in ("svg", "pdf"):
        buffer = io.BytesIO()
        with mpl.rc_context({"pdf.compression": 0}):
            figure.savefig(buffer, format=kind)
        sizes[kind] = buffer.getvalue()
    assert b"/Width 126" in sizes["pdf"]
    assert b"/Height 126" in sizes["pdf"]
    image = ET.fromstring(sizes["svg"]).find(".//{*}image")
    encoded = image.get("{http://www.w3.org/1999/xlink}href").removeprefix("data:image/png;base64,")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGBA"))
    assert pixels.shape == (126, 126, 4)
    np.testing.assert_array_equal(pixels, pixels[::21, ::21].repeat(21, 0).repeat(21, 1))
    scale = float(re.match(r"matrix\(([\d.]+)", image.get("transform"))[1])
    left, _, right, _ = box(images(figure)[0])
    assert float(image.get("width")) * scale == pytest.approx(72 * (right - left), rel=0.01)


@pytest.mark.parametrize("layout", ["constrained", "tight", None])
def test_all_heads_fill_a_given_figure_without_overlaps(layout):
    figure = plt.figure(figsize=(7, 5), layout=layout)
    draw_heads(small_trace(), figure=figure, label="label")
    figure.savefig(io.BytesIO())
    assert list(overlaps(figure)) == []
    assert min(box(image)[1] for image in images(figure)) < -3.5


@pytest.mark.parametrize("size", [(2, 1.2), (1.2, 6), (9, 1)])
def test_a_figure_without_room_is_refused(size):
    with pytest.raises(ShapeError, match=r"no room on a figure of .* inches: give one of about"):
        draw_heads(small_trace(), figure=plt.figure(figsize=size))


def test_all_heads_are_drawn_on_a_part_of_a_figure():
    figure = plt.figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subfigures(1, 2)
    assert draw_heads(small_trace(), figure=left) is figure
    draw_heads(small_trace(), figure=right)
    figure.savefig(io.BytesIO())
    assert [len(part.axes[0].images) for part in (left, right)] == [6, 6]
    one, other = (part.axes[0].get_window_extent() for part in (left, right))
    assert one.x1 <= other.x0 + 1


def test_rc_parameters_of_layout_are_no_trouble():
    with mpl.rc_context({"figure.constrained_layout.use": True, "axes.grid": True}):
        figure = draw_heads(small_trace())
        figure.savefig(io.BytesIO())
    assert len(figure.axes[0].images) == 6


def test_a_figure_shows_itself_in_a_notebook():
    assert draw_heads(small_trace())._repr_png_().startswith(b"\x89PNG")


def test_an_empty_trace_is_an_error_and_an_empty_picture_in_a_notebook():
    trace = AttentionTrace({"decoder": Stack("decoder", {})})
    with pytest.raises(SelectionError, match="holds no heads"):
        draw_heads(trace)
    assert "<svg" in notebook_svg(trace)


def test_nothing_is_read_as_mathematics():
    trace = dataclasses.replace(small_trace(), model="a$_\\frac$\n")
    figure = draw_heads(trace)
    figure.savefig(io.BytesIO())
    shown = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))
    assert r"\$_\frac\$" in shown or r"$_\frac$" in shown


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
    svg = notebook_svg(graphs)
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


@pytest.mark.parametrize(
    "asked",
    [
        {"heads": [99]},
        {"sort": "none such"},
        {"vmax": -1},
        {"pool": "median"},
        {"cmap": "none such"},
        {"figsize": (0.1, 0.1)},
    ],
)
@pytest.mark.parametrize("other", [None, small_trace()])
def test_a_picture_refused_leaves_no_figure_of_the_users_size(asked, other):
    before = plt.get_fignums()
    with pytest.raises((SelectionError, ShapeError)):
        small_trace().draw(other=other, **{"figsize": (6, 4)} | asked)
    assert plt.get_fignums() == before
