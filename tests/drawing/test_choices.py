"""What users choose of a head's picture."""

import dataclasses
import inspect
import math
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from sample_heads import bipartite_head, causal_head
from seen import axes, caption, drawn_edges, texts

import gattn
from gattn.errors import OptionError, SelectionError

HEAD = causal_head(8, tokens=["[CLS]", *"abcabc", "[SEP]"], words=(None, *range(6), None))
LINES = ["arcs", "columns", "circle"]


def labels(ax):
    return [text for text in texts(ax, "gattn-label") if text]


def widths(ax):
    found = [c for c in ax.collections if c.get_gid() == "gattn-edges"]
    return np.concatenate([collection.get_linewidths() for collection in found])


@pytest.mark.parametrize("layout", LINES)
def test_a_query_shows_all_that_it_reads(layout):
    ax = HEAD.draw(layout, query=5, ax=axes())
    assert drawn_edges(ax) == 6
    said = "what query 5 “b” reads: all 6 edges"
    assert caption(ax) == (f"{said}; arrows: key → query" if layout == "circle" else said)


def test_several_queries_and_a_threshold_show_their_edges():
    ax = HEAD.draw(query=[4, "[SEP]"], threshold=0.1, ax=axes())
    chosen = np.isin(HEAD.query, [4, 7]) & (HEAD.attention >= 0.1)
    assert drawn_edges(ax) == chosen.sum()
    share = 100 * HEAD.attention[chosen].sum() / 2
    said = "what query 4 “a” and query 7 “[SEP]” read, attention ≥ 0.1: "
    assert caption(ax) == f"{said}{chosen.sum()} of 13 edges, {share:.0f} % of the attention"


def test_a_key_shows_all_that_reads_it():
    ax = HEAD.draw(key=-2, ax=axes())
    assert drawn_edges(ax) == 2
    assert caption(ax) == "what reads key 6 “c”: 2 edges"
    both = HEAD.draw(query=7, key=6, ax=axes())
    assert drawn_edges(both) == 1
    assert caption(both) == "what query 7 “[SEP]” reads of key 6 “c”: 1 edge"


def test_a_matrix_shows_the_rows_asked_about():
    shown = HEAD.draw("matrix", query=3, ax=axes()).images[0].get_array()
    np.testing.assert_array_equal(shown[3].compressed(), HEAD.to_dense()[3, :4])
    assert shown.count() == 4


def test_of_a_key_of_a_head_with_dropped_edges_only_kept_ones_are_counted():
    head = HEAD.keep(gattn.TopK(1))
    count = int((head.key == 0).sum())
    edges = f"{count} edge{'s' * (count != 1)}"
    assert caption(head.draw(key=0, ax=axes())) == f"what reads key 0 “[CLS]”, TopK(1): {edges}"


@pytest.mark.parametrize("layout", [*LINES, "matrix"])
def test_hidden_tokens_are_left_out_and_numbers_stay(layout):
    ax = HEAD.draw(layout, hide="special", threshold=0, ax=axes(), figsize=None)
    if layout == "matrix":
        found = ax.images[0].get_array().filled(0)
        np.testing.assert_array_equal(found, HEAD.to_dense()[1:-1, 1:-1])
    else:
        assert drawn_edges(ax) == 21
        assert set(labels(ax)) == set("abc")
    share = 100 * HEAD.to_dense()[1:-1, 1:-1].sum() / 6
    said = f"21 of 27 edges, {share:.0f} % of the attention"
    assert caption(ax).startswith(said)
    assert "hidden: special tokens" in caption(ax)


@pytest.mark.parametrize(
    ("hide", "left", "said"),
    [
        ("first", 7, "hidden: the first token"),
        (["a"], 6, "hidden: “a”"),
        ([0, -1], 6, "hidden: token 0, token -1"),
        ([1, 2, 3, 4], 4, "hidden: 4 tokens"),
        (7, 7, "hidden: token 7"),
    ],
)
def test_tokens_are_hidden_by_name_position_or_text(hide, left, said):
    ax = HEAD.draw("columns", hide=hide, ax=axes())
    assert len(labels(ax)) == 2 * left
    assert caption(ax).endswith(said)


def test_no_tokens_are_hidden_without_a_word():
    assert caption(HEAD.draw(hide=[], ax=axes())) == caption(HEAD.draw(ax=axes()))


@pytest.mark.parametrize("layout", ["arcs", "matrix"])
def test_a_way_to_pool_that_there_is_not_leaves_no_figure(layout):
    before = plt.get_fignums()
    with pytest.raises(SelectionError, match="pool is 'mean' or 'max', not 'median'"):
        HEAD.draw(layout, pool="median")
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("asked", "hide"),
    [
        ({"query": 7}, 7),
        ({"query": [2, "[SEP]"]}, "special"),
        ({"key": "[CLS]"}, "first"),
        ({"key": 1, "query": 7}, ["[SEP]"]),
    ],
)
@pytest.mark.parametrize("draw", [HEAD.draw, partial(gattn.drawing.draw_overlay, [HEAD])])
def test_a_hidden_token_that_is_asked_about_is_said_to_be_hidden(draw, asked, hide):
    name = "query 7" if "query" in asked else "key 0"
    with pytest.raises(SelectionError, match=f"{name} “.*” is not in the picture: hide=.* leaves"):
        draw(hide=hide, **asked)
    with pytest.raises(SelectionError, match=r"here 1 .. 7 .*, not 9"):
        draw(hide="first", query=9)


@pytest.mark.parametrize("values", ["score", "contribution"])
def test_other_numbers_than_attention_beyond_the_end_of_their_scale_are_said(values):
    head = dataclasses.replace(HEAD, **{values: np.arange(HEAD.graph.num_edges) + 1.0})
    said = "the scale ends at 20, the largest is 36"
    assert said in caption(head.draw("matrix", values=values, vmax=20, ax=axes()))
    assert "scale" not in caption(head.draw("matrix", values=values, vmax=36, ax=axes()))
    few = head.draw("matrix", values=values, query=0, vmax=20, ax=axes())
    assert "scale" not in caption(few)


def test_no_scale_of_scores_ends_before_it_begins():
    head = dataclasses.replace(HEAD, score=np.arange(HEAD.graph.num_edges) + 5.0)
    before = plt.get_fignums()
    with pytest.raises(SelectionError, match=r"vmax=2 is no end .* the least score, 5"):
        head.draw("matrix", values="score", vmax=2)
    assert plt.get_fignums() == before


def test_of_cross_attention_keys_are_hidden():
    ax = bipartite_head().draw("columns", hide=["a"], ax=axes())
    assert labels(ax) == ["b", "c", "d", "e", "x", "y", "z"]


def test_self_loops_are_left_out_and_that_is_said():
    ax = HEAD.draw(self_loops=False, threshold=0, ax=axes())
    assert drawn_edges(ax) == 28
    assert caption(ax).startswith("no self-loops: 28 of 36 edges")


def test_the_scale_ends_where_told_and_that_is_said():
    one, half = (HEAD.draw(threshold=0, vmax=vmax, ax=axes()) for vmax in (None, 0.5))
    assert "scale ends" not in caption(one)
    assert f"the scale ends at 0.5, the largest is {HEAD.attention.max():.3g}" in caption(half)
    attention = np.sort(HEAD.attention)
    line = np.polyfit(attention, np.sort(widths(one)), 1)
    expected = np.polyval(line, np.minimum(2 * attention, 1))
    np.testing.assert_allclose(np.sort(widths(half)), expected, rtol=1e-6)
    image = HEAD.draw("matrix", vmax=0.5, ax=axes()).images[0]
    assert (image.norm.vmin, image.norm.vmax) == (0, 0.5)


def test_the_widest_line_is_as_wide_as_told_in_axes_of_any_size():
    sure = gattn.AttentionGraph.from_dense(np.eye(3))
    for size in ((2, 1.5), (8, 6)):
        ax = sure.draw(linewidth=2.5, ax=Figure(size).add_subplot())
        ax.figure.draw_without_rendering()
        np.testing.assert_allclose(widths(ax), 2.5)


def test_title_and_caption_are_the_users_or_none():
    ax = HEAD.draw(title="Mine", caption="What I see.", ax=axes())
    assert (ax.get_title(), caption(ax)) == ("Mine", "What I see.")
    bare = HEAD.draw(title="", caption="", ax=axes())
    assert bare.get_title() == ""
    assert not any(text for text in texts(bare, "gattn-caption"))


@pytest.mark.parametrize("layout", [*LINES, "matrix"])
def test_a_figure_has_the_size_told(layout):
    figure = HEAD.draw(layout, figsize=(3.3, 2.2)).figure
    figure.draw_without_rendering()
    assert figure.get_size_inches().tolist() == [3.3, 2.2]


TRACE = gattn.AttentionTrace.from_arrays(
    np.stack([causal_head(6, seed=s).to_dense() for s in range(4)]).reshape(2, 2, 6, 6),
    list("abcdef"),
)


def test_all_heads_have_the_scale_texts_and_size_told():
    figure = TRACE.draw(vmax=0.2, title="Mine", caption="Seen.", figsize=(6, 5))
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert {"Mine", "Seen."} <= set(shown)
    assert {image.norm.vmax for image in figure.axes[0].images} == {0.2}
    assert figure.get_size_inches().tolist() == [6, 5]
    figure = TRACE.draw(vmax=0.2)
    said = " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
    assert said.count("the scale ends at 0.2, the largest is") == 2  # of the graph beside, too


@pytest.mark.parametrize(
    "size", [3, (3,), (0, 2), (3, -1), (math.nan, 2), (math.inf, 2), "3x2", (3, "a")]
)
def test_a_size_that_is_none_is_refused_and_no_figure_stays_open(size):
    for drawn in (HEAD.draw, TRACE.draw, TRACE.draw_overlay):
        with pytest.raises(SelectionError, match="figsize is the width and height of the figure"):
            drawn(figsize=size)
    assert not plt.get_fignums()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"query": "nobody"}, SelectionError, "nobody"),
        ({"key": 99}, SelectionError, "99"),
        ({"hide": range(8)}, SelectionError, "leaves none of 8 tokens"),
        ({"hide": 3.5}, SelectionError, "hide names tokens by position or text"),
        ({"vmax": 0}, SelectionError, "vmax is the end of the scale, a number above 0, not 0"),
        ({"vmax": "1"}, SelectionError, "vmax is the end of the scale"),
        ({"linewidth": -1}, SelectionError, "linewidth is the width of the widest line in points"),
        ({"ax": axes(), "figsize": (1, 1)}, SelectionError, "ax= or figsize=, not both"),
        ({"tresh": 1}, OptionError, r"AttentionGraph.draw\(\) has no option tresh=; did you mean"),
    ],
)
def test_what_cannot_be_chosen_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        HEAD.draw(**options)


def test_special_tokens_that_are_not_known_are_refused():
    with pytest.raises(SelectionError, match="not known which tokens are special"):
        causal_head(4).draw(hide="special")


def test_arguments_that_do_not_fit_say_what_is_expected():
    with pytest.raises(
        OptionError, match=r"draw_image\(\) needs image first, the picture that the"
    ):
        HEAD.draw_image(query=3)
    with pytest.raises(OptionError, match=r"draw_image\(\) needs image first"):
        TRACE.draw_image(query=3)
    places = {n: (n, 0) for n in range(8)}
    twice = r"draw_graph\(\) was given query twice, as \{0: .* as query=3: .*with_layout\(places\)"
    with pytest.raises(OptionError, match=twice):
        HEAD.draw_graph(places, query=3)
    with pytest.raises(OptionError, match=r"draw_text\(\) takes query without a name"):
        HEAD.draw_text(1, 2)
    with pytest.raises(OptionError, match=r"draw_time\(\) takes query without a name.*2 is"):
        TRACE.draw_time(1, 2)


DRAWN = {
    "draw_head": gattn.AttentionGraph.draw,
    "draw_text": gattn.AttentionGraph.draw_text,
    "draw_image": gattn.AttentionGraph.draw_image,
    "draw_time": gattn.AttentionGraph.draw_time,
    "draw_graph": gattn.AttentionGraph.draw_graph,
    "draw_images": gattn.AttentionTrace.draw_image,
    "draw_overlay": gattn.AttentionTrace.draw_overlay,
}


def given(function):
    """The names of parameters and their defaults, but for what is drawn."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {one.name: (one.kind, one.default) for one in parameters}


@pytest.mark.parametrize("name", DRAWN)
def test_methods_have_the_parameters_of_what_draws_them(name):
    method, function = given(DRAWN[name]), given(getattr(gattn.drawing, name))
    if name == "draw_overlay":
        del method["heads"], method["stack"]
    assert method == function


@pytest.mark.parametrize("name", ["draw_text", "draw_time", "draw_graph"])
def test_of_a_trace_heads_are_chosen_in_addition(name):
    method = given(getattr(gattn.AttentionTrace, name))
    del method["heads"], method["stack"]
    assert method == given(getattr(gattn.drawing, name))


@pytest.mark.parametrize("name", ["draw_heads", "draw_compare"])
def test_all_heads_have_the_parameters_of_both_pictures(name):
    method, function = given(gattn.AttentionTrace.draw), given(getattr(gattn.drawing, name))
    own = {"tokens", "after"} & set(function)
    assert {key: method[key] for key in set(function) - own} == {
        key: function[key] for key in set(function) - own
    }


def test_help_shows_signature_and_parameters():
    for method in DRAWN.values():
        doc = inspect.getdoc(method)
        named = set(given(method))
        assert all(key in doc for key in named), method
        assert "Parameters" in doc
        assert "**" not in str(inspect.signature(method))


def test_edits_describe_two_runs_alone():
    with pytest.raises(SelectionError, match="pass the second, other="):
        TRACE.draw(edits="cut 1.1")


def test_a_run_with_edits_is_said_in_every_picture_of_heads():
    head = dataclasses.replace(HEAD, edits=(gattn.Cut(layer=1),))
    for ax in (
        head.draw(ax=axes()),
        head.draw_text(ax=axes()),
        gattn.drawing.draw_overlay([head, head], ax=axes()),
    ):
        assert "edited by Cut(layer=1)" in caption(ax)
        assert "edited" in ax.get_title()
