import dataclasses
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure
from pairs import in_turn
from sample_heads import (
    bipartite_head,
    causal_head,
    decoding_step,
    signed_head,
    uniform_head,
)
from seen import axes, bars, caption, drawn_edges, texts

from gattn.drawing import draw_head, draw_overlay
from gattn.errors import SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.steps import OtherStep

LINKS = ("arcs", "columns", "circle")
LAYOUTS = (*LINKS, "matrix")
HOSTILE = [
    "$x_1$",
    "a\nb",
    "tab\there",
    "\0",
    "中文",
    "مرحبا",
    "🙂\u200d👧",
    "antidisestablishmentarianism",
    "",
    " the",
    "   ",
    "e\u0301",
    "\u202eevil",
    "\u0301x",
    "<b>&amp;",
    "%d{}\\frac{1}",
]


def svg_texts(ax):
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        ax.figure.savefig(buffer, format="svg")
    root = ET.fromstring(buffer.getvalue())
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def labels(ax, layout):
    if layout == "matrix":
        return [label.get_text() for label in ax.get_yticklabels()]
    return texts(ax, "gattn-label")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_on_the_given_axes_and_returns_them(layout):
    ax = axes()
    assert draw_head(causal_head(6), layout, ax=ax) is ax
    assert causal_head(6).draw(layout, ax=ax) is ax
    assert plt.get_fignums() == []


def test_without_axes_a_figure_of_pyplot_grows_with_the_text():
    few, many = draw_head(causal_head(4)), draw_head(causal_head(24))
    assert plt.get_fignums() == [1, 2]
    assert many.figure.get_figwidth() > few.figure.get_figwidth()


@pytest.mark.parametrize("layout", LINKS)
@pytest.mark.parametrize("threshold", [None, 0.0, 0.1, 0.5])
def test_as_many_edges_are_drawn_as_the_caption_says(layout, threshold):
    ax = draw_head(causal_head(20), layout, ax=axes(), threshold=threshold)
    said = re.search(r"(\d+) of 210 edges|all (210) edges", caption(ax))
    assert drawn_edges(ax) == int(said[1] or said[2])


def test_a_matrix_shows_what_the_caption_says():
    head = causal_head(20)
    ax = draw_head(head, "matrix", ax=axes(), threshold=0.1)
    image = ax.images[0].get_array()
    strong = head.attention >= 0.1
    assert image.count() == strong.sum()
    np.testing.assert_allclose(image.compressed(), head.attention[strong])
    assert f"{strong.sum()} of 210 edges" in caption(ax)


def test_a_matrix_has_queries_as_rows():
    attention = np.array([[1.0, 0.0], [0.8, 0.2]])
    head = AttentionGraph.from_dense(attention, TokenGraph.causal(2), tokens=["a", "b"])
    ax = draw_head(head, "matrix", ax=axes())
    assert ax.images[0].get_array()[1, 0] == 0.8
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert "attention" in [other.get_ylabel() for other in bars(ax)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_do_not_depend_on_the_head(layout):
    weak, strong = uniform_head(8), causal_head(8)
    for head in (weak, strong):
        ax = draw_head(head, layout, ax=axes())
        if layout == "matrix":
            assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0, 1)
        else:
            key = [text.get_text() for text in ax.get_legend().get_texts()]
            assert key == ["1", "0.5", "0.25", "0.05"]


def test_width_and_colour_follow_attention():
    head = AttentionGraph.from_dense(np.array([[1.0, 0, 0], [0.7, 0.3, 0], [0.1, 0, 0.9]]))
    ax = draw_head(head, "columns", ax=axes(), threshold=0)
    widths = ax.collections[0].get_linewidths()
    lightness = ax.collections[0].get_edgecolors()[:, :3].sum(1)
    assert (np.diff(widths) > 0).all()
    assert (np.diff(lightness) < 0).all()


def test_arcs_run_above_to_the_right_and_below_to_the_left():
    attention = np.array([[0.0, 0.6, 0.0], [0.0, 0.5, 0.0], [0.9, 0.0, 0.0]])
    ax = draw_head(AttentionGraph.from_dense(attention), ax=axes(), threshold=0)
    above, loops, below = ax.collections
    assert above.get_paths()[0].vertices[[0, -1], 0].tolist() == [0, 2]
    assert above.get_paths()[0].vertices[:, 1].max() == 1
    assert len(loops.get_paths()) == 1
    assert below.get_paths()[0].vertices[[0, -1], 0].tolist() == [1, 0]
    assert below.get_paths()[0].vertices[:, 1].min() == -0.5
    notes = [text.get_text() for text in ax.texts]
    assert "key → query" in notes
    assert "query ← key" in notes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hostile_tokens_are_drawn_as_text(layout):
    size = len(HOSTILE)
    attention = np.tril(np.random.default_rng(0).dirichlet(np.ones(size), size))
    head = AttentionGraph.from_dense(attention, tokens=HOSTILE, model="$\\frac$", layer=0, head=0)
    ax = draw_head(head, layout, ax=Figure((9, 9)).add_subplot())
    ax.figure.savefig(io.BytesIO(), format="png")
    ax.figure.savefig(io.BytesIO(), format="pdf")
    found = svg_texts(ax)
    for shown in ("$x_1$", "a↵b", "tab\\there", "\\x00", "مرحبا", '""', "the", "␣␣␣"):
        assert shown in found
    assert "<b>&amp;" in found
    assert any(text.startswith("U+202E") for text in found)
    assert any("antidis" in text and text.endswith("…") for text in found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_repeated_tokens_never_merge(layout):
    head = causal_head(6, tokens=["the"] * 6)
    found = labels(draw_head(head, layout, ax=axes()), layout)
    assert found == ["the"] * (12 if layout == "columns" else 6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_labels_no_token_is_written(layout):
    ax = draw_head(causal_head(6), layout, ax=axes(), labels=False, legend=False)
    assert not any("word" in text for text in svg_texts(ax))
    assert ax.get_legend() is None
    assert not bars(ax)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_texts_thin_labels_out_and_stay_few_artists(layout):
    ax = draw_head(causal_head(500), layout)
    assert len(ax.get_children()) < 300
    found = [text for text in labels(ax, layout) if text]
    assert 10 < len(found) < 300
    assert all(text.split()[0].isdigit() for text in found)


@pytest.mark.parametrize("layout", LINKS)
def test_labels_stay_within_the_axes(layout):
    ax = draw_head(causal_head(12), layout)
    ax.figure.draw_without_rendering()
    frame = ax.figure.bbox
    for text in ax.texts:
        box = text.get_window_extent()
        assert box.x0 >= frame.x0
        assert box.x1 <= frame.x1
        assert box.y0 >= frame.y0
        assert box.y1 <= frame.y1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bipartite_graphs(layout):
    ax = draw_head(bipartite_head(), layout, ax=axes(), threshold=0)
    assert {*"abcdexyz"} <= set(svg_texts(ax))
    if layout != "matrix":
        assert drawn_edges(ax) == 15


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("arcs", "; keys on the left, queries on the right"),
        ("circle", "; keys on the left, queries on the right; arrows: key → query"),
        (nx.circular_layout, "; arrows: key → query"),
        ("columns", ""),
        ("matrix", ""),
    ],
)
def test_cross_attention_says_so_and_which_tokens_are_keys(layout, said):
    head = dataclasses.replace(bipartite_head(), layer=1, head=3)
    ax = draw_head(head, layout, ax=axes(), threshold=0)
    assert ax.get_title() == "cross-attention · layer 1 · head 3"
    assert caption(ax) == f"all 15 edges{said}"


@pytest.mark.parametrize("layout", ["circle", nx.circular_layout])
def test_a_caption_says_which_way_arrows_run(layout):
    said = "arrows: key → query"
    assert caption(draw_head(causal_head(6), layout, ax=axes())).endswith(f"; {said}")
    assert said not in caption(draw_head(causal_head(1), layout, ax=axes()))  # one loop
    assert said in caption(draw_overlay([causal_head(6), causal_head(6, seed=1)], layout))
    assert said in caption(TokenGraph.causal(5).draw(layout, ax=axes()))
    assert caption(draw_head(causal_head(6), layout, ax=axes(), caption="mine")) == "mine"
    plt.close("all")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding_steps(layout):
    ax = draw_head(decoding_step(), layout, ax=axes(), threshold=0)
    if layout == "matrix":
        assert ax.images[0].get_array().shape == (2, 6)
        assert labels(ax, layout) == ["e", "f"]
    else:
        assert drawn_edges(ax) == decoding_step().graph.num_edges


@pytest.mark.parametrize("layout", LAYOUTS)
def test_signed_attention_has_two_colours_and_a_key_that_says_so(layout):
    ax = draw_head(signed_head(), layout, ax=axes())
    if layout == "matrix":
        assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (-1.6, 1.6)
    else:
        key = [text.get_text() for text in ax.get_legend().get_texts()]
        assert key[0] == "1.6"
        assert key[-1] == "−1.6"


@pytest.mark.parametrize("layout", LINKS)
def test_negative_attention_is_dashed(layout):
    ax = draw_head(signed_head(), layout, ax=axes(), threshold=0)
    found = [c for c in ax.collections if c.get_gid() == "gattn-edges"]
    dashed = [style[1] is not None for c in found for style in c.get_linestyles()]
    assert sum(dashed[: drawn_edges(ax)]) == 2
    key = [line.get_linestyle() for line in ax.get_legend().get_lines()]
    assert key == ["-"] * 4 + ["--"] * 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sink_is_one_more_node(layout):
    head = dataclasses.replace(causal_head(4), sink=np.array([0.9, 0.5, 0.4, 0.3]))
    ax = draw_head(head, layout, ax=axes(), threshold=0)
    assert svg_texts(ax).count("<sink>") == 1
    assert "4 of 4 from the sink" in caption(ax)
    if layout == "matrix":
        assert ax.images[0].get_array()[:, -1].tolist() == [0.9, 0.5, 0.4, 0.3]
    else:
        assert drawn_edges(ax) == 14


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 3])
def test_no_edges_and_one_token(layout, size):
    empty = AttentionGraph.from_dense(np.zeros((size, size)), tokens=["a"] * size)
    ax = draw_head(empty, layout)
    ax.figure.savefig(io.BytesIO())
    assert caption(ax) == "no edges"
    ax = draw_head(causal_head(1), layout)
    ax.figure.savefig(io.BytesIO())
    assert caption(ax) == "1 edge"


def test_positions_of_networkx_are_a_layout():
    head = causal_head(5)
    graph = head.to_networkx()
    ax = draw_head(head, nx.circular_layout(graph), ax=axes(), threshold=0)
    assert drawn_edges(ax) == 15
    assert len(labels(ax, "free")) == 5
    with pytest.raises(SelectionError, match="no position for the node 4"):
        draw_head(head, {i: (i, i) for i in range(4)})
    assert plt.get_fignums() == []


def test_more_tokens_than_pixels_are_averaged_and_the_caption_says_so():
    head = causal_head(300)
    ax = draw_head(head, "matrix", ax=Figure((2, 2)).add_subplot())
    ax.figure.savefig(io.BytesIO(), dpi=100)
    image = ax.images[0].get_array()
    assert image.shape == tuple(ax.images[0].get_window_extent().size.round()[::-1])
    assert max(image.shape) < 200
    assert image.filled(0).sum() * (300 * 300 / image.size) == pytest.approx(300)
    assert caption(ax) == "all 45,150 edges; cells smaller than a pixel are averaged"


def test_positions_may_name_the_nodes_of_a_bipartite_graph():
    head = dataclasses.replace(bipartite_head(), sink=np.full(3, 0.5))
    ax = draw_head(head, nx.spring_layout(head.to_networkx(), seed=0), ax=axes(), threshold=0)
    assert drawn_edges(ax) == 18


def test_scores_are_drawn_as_a_matrix_alone():
    head = causal_head(4)
    for layout in ("matrix", "arcs"):
        with pytest.raises(SelectionError, match=r"gattn\.capture\(text, model, scores=True\)"):
            draw_head(head, layout, values="score")
    head = dataclasses.replace(head, score=np.log(head.attention))
    ax = draw_head(head, "matrix", ax=axes(), values="score")
    np.testing.assert_allclose(ax.images[0].get_array().compressed(), head.score)
    assert "score" in [other.get_ylabel() for other in bars(ax)]
    with pytest.raises(SelectionError, match="layout='matrix'"):
        draw_head(head, "arcs", values="score")
    with pytest.raises(SelectionError, match="one of 'attention', 'score', 'contribution'"):
        draw_head(head, "matrix", values="weight")


@pytest.mark.parametrize("values", ["contribution", "value_norm"])
def test_lengths_are_drawn_as_a_matrix_from_zero(values):
    head = signed_head()
    with pytest.raises(SelectionError, match=f"no {values}; .* contributions="):
        draw_head(head, "matrix", values=values)
    head = dataclasses.replace(head, **{values: 2 + np.abs(head.attention)})
    ax = draw_head(head, "matrix", ax=axes(), values=values)
    image = ax.images[0]
    np.testing.assert_allclose(image.get_array().compressed(), 2 + np.abs(head.attention))
    assert (image.norm.vmin, image.norm.vmax) == (0, 3.6)
    assert image.cmap(0.0) == draw_head(causal_head(3), "matrix", ax=axes()).images[0].cmap(0.0)
    assert values.replace("_", " ") in [other.get_ylabel() for other in bars(ax)]
    with pytest.raises(SelectionError, match=f"layout='matrix', values='{values}'"):
        draw_head(head, "arcs", values=values)


def test_the_title_names_the_key_value_head_of_grouped_queries():
    head = causal_head(3, head=5, key_value_head=1)
    assert draw_head(head, ax=axes()).get_title() == "layer 1 · head 5 · key-value head 1"
    assert draw_head(causal_head(3), ax=axes()).get_title() == "layer 1 · head 3"


def test_an_unknown_layout_lists_the_choices():
    with pytest.raises(SelectionError, match="arcs, columns, circle, matrix"):
        draw_head(causal_head(4), "spiral")
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cmap": "nope"}, "No colours 'nope'"),
        ({"cmap": 5}, "No colours 5"),
        ({"threshold": "x"}, "threshold is a number .* not 'x'"),
        ({"threshold": float("nan")}, "threshold is a number .* not nan"),
    ],
)
def test_wrong_options_are_refused_before_a_figure_is_open(options, message):
    with pytest.raises(SelectionError, match=message):
        draw_head(causal_head(4), **options)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle", "matrix"])
def test_a_threshold_that_no_attention_can_reach_is_refused(layout):
    with pytest.raises(
        SelectionError, match=r"threshold=3 shows nothing: .* more attention than 1"
    ):
        draw_head(causal_head(4), layout, threshold=3)
    assert plt.get_fignums() == []
    assert "1 of 10 edges" in caption(draw_head(causal_head(4, seed=1), threshold=1, ax=axes()))
    large = AttentionGraph.from_dense(np.array([[0.5, 2.5], [4.0, 1.0]]))
    assert "1 of 4 edges" in caption(draw_head(large, layout, threshold=3, ax=axes()))
    assert "0 of 4 edges" in caption(draw_head(large, layout, threshold=9, ax=axes()))


def test_scores_of_signed_attention_have_no_neutral_colour_within_their_range():
    head = signed_head()
    head = dataclasses.replace(head, score=head.attention + 4.0)
    image = draw_head(head, "matrix", ax=axes(), values="score").images[0]
    plain = draw_head(causal_head(3), "matrix", ax=axes()).images[0]
    assert image.cmap(0.5) == plain.cmap(0.5)


def test_a_title_says_where_the_head_is():
    assert draw_head(causal_head(4), ax=axes()).get_title() == "layer 1 · head 3"


def test_colours_stand_out_from_dark_styles_and_can_be_chosen():
    light = draw_head(causal_head(4), ax=axes()).collections[0].get_edgecolors()[-1]
    with plt.style.context("dark_background"):
        dark = draw_head(causal_head(4), ax=axes()).collections[0].get_edgecolors()[-1]
    assert light[:3].sum() < 1.5 < dark[:3].sum()
    ax = draw_head(causal_head(4), "matrix", ax=axes(), cmap="viridis")
    assert ax.images[0].get_cmap().name == "viridis"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_settings_of_matplotlib_stay_as_they_were(layout):
    before = dict(mpl.rcParams)
    draw_head(causal_head(6), layout, ax=axes())
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_title_of_ones_own_takes_the_place_of_ours_and_covers_nothing(layout):
    ax = draw_head(causal_head(8), layout)
    ax.set_title("mine")
    ax.figure.draw_without_rendering()
    assert ax.get_title() == "mine"
    title = ax.title.get_window_extent()
    assert not any(title.overlaps(text.get_window_extent()) for text in ax.texts)


def test_the_caption_stands_below_the_labels_of_a_matrix():
    ax = draw_head(causal_head(8), "matrix")
    ax.figure.draw_without_rendering()
    below = next(text for text in ax.texts if text.get_gid() == "gattn-caption")
    assert below.get_window_extent().y1 < ax.xaxis.label.get_window_extent().y0
    assert below.get_window_extent().y0 > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_thin_out_by_their_order_whatever_their_positions(layout):
    nodes = [position for position in range(500) if position % 5]
    ax = draw_head(causal_head(500).subgraph(nodes), layout, ax=axes())
    found = [text for text in labels(ax, layout) if text]
    assert 5 < len(found) < 200
    assert all(int(text.split()[0]) % 5 for text in found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_without_tokens_is_drawn(layout):
    ax = draw_head(AttentionGraph.from_dense(np.zeros((0, 0))), layout, ax=axes())
    assert caption(ax) == "no edges"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_captions_show_what_svg_cannot_hold(layout):
    head = dataclasses.replace(causal_head(6), kept_by=(OtherStep("<x>\x00\x01\n$"),))
    found = svg_texts(draw_head(head, layout, ax=axes(), threshold=0.3))
    assert any(text.startswith("<x>\\x00\\x01↵$, attention ≥ 0.3: ") for text in found)


def test_few_labels_of_a_circle_are_upright_and_many_point_outwards():
    for size, is_upright in ((8, True), (60, False)):
        ax = draw_head(causal_head(size), "circle")
        rotations = {text.get_rotation() for text in ax.texts if text.get_gid() == "gattn-label"}
        assert (rotations == {0.0}) == is_upright


def test_a_layout_that_is_no_name_is_refused():
    with pytest.raises(SelectionError, match=r"No layout \['arcs'\]"):
        draw_head(causal_head(3), ["arcs"])


@pytest.mark.parametrize(
    ("layout", "engine"),
    in_turn([*LAYOUTS, {i: (i % 3, i) for i in range(7)}], ["constrained", "tight", None]),
)
def test_nothing_is_logged_where_the_layout_engine_moves_the_axes(layout, engine, caplog):
    figure = Figure((7, 4), layout=engine)
    for ax in figure.subplots(1, 2):
        draw_head(causal_head(7), layout, ax=ax)
    figure.savefig(io.BytesIO(), format="png")
    assert not caplog.records


def test_labels_at_given_positions_stand_out_from_the_edges():
    ax = draw_head(causal_head(5), {i: (i, i % 2) for i in range(5)}, ax=axes())
    for text in ax.texts:
        assert bool(text.get_bbox_patch()) == (text.get_gid() == "gattn-label")


@pytest.mark.parametrize("layout", ["circle", {0: (0, 0), 1: (3, 1)}])
@pytest.mark.parametrize("strength", [1.0, 0.05])
def test_arrowheads_are_clearly_wider_than_their_line(layout, strength):
    head = AttentionGraph.from_dense(np.array([[0.0, 0.0], [strength, 0.0]]))
    ax = draw_head(head, layout, ax=axes())
    line = next(c for c in ax.collections if c.get_gid() == "gattn-edges" and len(c.get_paths()))
    arrow = next(c for c in ax.collections if c.get_gid() == "gattn-arrowheads")
    corners = arrow.get_paths()[0].vertices
    breadth = np.hypot(*(corners[1] - corners[2]))
    assert breadth > 1.8 * line.get_linewidths()[0]


def test_labels_of_a_circle_leave_room_for_loops_only_where_there_are_some():
    attention = np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    ax = draw_head(AttentionGraph.from_dense(attention), "circle", ax=axes())
    places = [text.get_position() for text in ax.texts if text.get_gid() == "gattn-label"]
    reach = np.hypot(*np.array(places).T)
    assert reach[0] > 1.05 * reach[1]
    np.testing.assert_allclose(reach[1:], reach[1])


@pytest.mark.parametrize("engine", ["constrained", None])
@pytest.mark.parametrize("width", [5, 12])
def test_labels_of_narrow_columns_do_not_reach_the_key(engine, width):
    head = causal_head(5, tokens=["antidisestab", "remarkable", "cat", "Constantinople", "hippo"])
    figure = Figure((width, 3), layout=engine)
    for ax in figure.subplots(1, 2):
        draw_head(head, "columns", ax=ax)
    figure.draw_without_rendering()
    for ax in figure.axes:
        found = [text for text in ax.texts if text.get_gid() == "gattn-label"]
        end = max(text.get_window_extent().x1 for text in found)
        assert end < ax.get_legend().get_window_extent().x0


@pytest.mark.parametrize("width", [5, 12])
def test_the_heads_of_columns_do_not_meet(width):
    figure = Figure((width, 3))
    for ax in figure.subplots(1, 2):
        draw_head(causal_head(2, tokens=["antidisestab", "b"]), "columns", ax=ax)
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
        assert not boxes["key →"].overlaps(boxes["query"])
