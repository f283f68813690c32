import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure
from sample_heads import bipartite_head, causal_head, decoding_step
from seen import caption

from gattn.drawing import draw_head
from gattn.drawing.canvas import layouts
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

LAYOUTS = ("arcs", "columns", "circle", "matrix")


def complete_head(size):
    attention = np.random.default_rng(0).dirichlet(np.ones(size), size)
    return AttentionGraph.from_dense(attention, generated=2)


def marks(ax):
    """The ends of the lines, in data coordinates but for a few points."""
    found = [c for c in ax.collections if c.get_gid() == "gattn-generated"]
    return [np.array(segment) for c in found for segment in c.get_segments()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_lines_mean_is_said(layout):
    arrows = "; arrows: key → query" if layout == "circle" else ""
    ax = draw_head(causal_head(6, generated=2), layout, ax=Figure().add_subplot())
    assert caption(ax) == "all 21 edges; lines mark 2 generated tokens" + arrows
    ax = draw_head(causal_head(6, generated=1), layout, ax=Figure().add_subplot())
    assert caption(ax) == "all 21 edges; lines mark 1 generated token" + arrows
    ax = draw_head(causal_head(6), layout, ax=Figure().add_subplot())
    assert caption(ax) == "all 21 edges" + arrows
    assert not marks(ax)


@pytest.mark.parametrize("head", [causal_head(6, generated=2), complete_head(6)])
def test_a_line_runs_along_the_generated_tokens_of_arcs(head):
    (line,) = marks(draw_head(head, "arcs", ax=Figure().add_subplot()))
    assert line[:, 0].tolist() == pytest.approx([3.6, 5.4])


def test_lines_stand_beside_both_columns():
    left, right = marks(draw_head(causal_head(6, generated=2), "columns"))
    for line, x in ((left, 0), (right, 1)):
        assert line[:, 0].tolist() == [x, x]
        assert line[:, 1].tolist() == pytest.approx([-5.4, -3.6])


def test_a_line_runs_around_the_generated_tokens_of_a_circle():
    head = causal_head(6, generated=2)
    (line,) = marks(draw_head(head, "circle"))
    assert (np.hypot(*line.T) > 1).all()
    angles = np.arctan2(*line.T) % (2 * np.pi)
    step = 2 * np.pi / 7
    assert (angles[0], angles[-1]) == pytest.approx((4.6 * step, 6.4 * step))


def test_lines_stand_beside_the_rows_and_below_the_columns_of_a_matrix():
    rows, columns = marks(draw_head(causal_head(6, generated=2), "matrix"))
    assert rows[:, 1].tolist() == [3.5, 5.5]
    assert columns.tolist() == [[3.5, 5.5], [5.5, 5.5]]


def test_lines_of_a_matrix_with_few_pixels_count_tokens():
    ax = Figure((2, 2)).add_subplot()
    rows, columns = marks(draw_head(causal_head(300, generated=30), "matrix", ax=ax))
    assert rows[:, 1].tolist() == [269.5, 299.5]
    assert columns[:, 0].tolist() == [269.5, 299.5]


def test_of_cross_attention_the_queries_are_marked():
    head = dataclasses.replace(bipartite_head(), generated=2)
    (row,) = marks(draw_head(head, "arcs"))
    assert row[:, 0].tolist() == pytest.approx([6.6, 8.4])
    (column,) = marks(draw_head(head, "columns"))
    assert column[:, 0].tolist() == [1, 1]
    (rows,) = marks(draw_head(head, "matrix"))
    assert rows[:, 1].tolist() == [0.5, 2.5]
    assert layouts.generated(head) == [("query", 1), ("query", 2)]


def test_a_decoding_step_marks_its_rows_and_all_generated_keys():
    head = dataclasses.replace(decoding_step(), generated=3)
    rows, columns = marks(draw_head(head, "matrix"))
    assert rows[:, 1].tolist() == [-0.5, 1.5]
    assert columns[:, 0].tolist() == [2.5, 5.5]


def test_keys_and_queries_that_stand_apart_are_both_marked():
    graph = TokenGraph.causal(2, num_keys=2)
    head = AttentionGraph.from_dense(np.tril(np.ones((2, 2))), graph, generated=1)
    assert layouts.generated(head, split=True) == [("key", 1), ("query", 1)]


def test_at_positions_of_ones_own_each_generated_token_has_a_dash():
    head = causal_head(6, generated=2)
    ax = draw_head(head, {i: (i, i * i) for i in range(6)})
    (dashes,) = [line for line in ax.lines if line.get_gid() == "gattn-generated"]
    assert dashes.get_xydata().tolist() == [[4, 16], [5, 25]]


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 50})
def test_generated_tokens_are_marked_in_each_layout():
    figure = Figure((13, 9), layout="constrained")
    heads = [causal_head(7, generated=3), dataclasses.replace(bipartite_head(), generated=2)]
    for row, head in zip(figure.subplots(2, 4), heads, strict=True):
        for ax, layout in zip(row, LAYOUTS, strict=True):
            draw_head(head, layout, ax=ax)
    return figure
