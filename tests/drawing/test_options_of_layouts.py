"""Each option of a head's picture keeps what it promises, on every layout that has it."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from sample_heads import causal_head
from seen import axes, bars, caption, drawn_edges, texts

from gattn.errors import SelectionError

HEAD = causal_head(8, tokens=["[CLS]", *"abcabc", "[SEP]"], words=(None, *range(6), None))
LAYOUTS = {
    "arcs": "arcs",
    "columns": "columns",
    "circle": "circle",
    "positions": {n: (n % 3, n // 3) for n in range(8)},
    "function": nx.circular_layout,
    "matrix": "matrix",
}
LINES = [name for name in LAYOUTS if name != "matrix"]
on_each_layout = pytest.mark.parametrize("layout", LAYOUTS)
with_lines = pytest.mark.parametrize("layout", LINES)


def drawn(layout, **options):
    """Draw on axes of the test's own, unless the size is told."""
    place = {} if "figsize" in options or "ax" in options else {"ax": axes()}
    ax = HEAD.draw(LAYOUTS[layout], **place, **options)
    ax.figure.draw_without_rendering()
    return ax


def found_edges(ax, layout):
    """Count the edges that are drawn: lines, or cells of the matrix."""
    return int(ax.images[0].get_array().count()) if layout == "matrix" else drawn_edges(ax)


def of_edges(ax, read):
    """Read something of all lines, in one array."""
    lines = [one for one in ax.collections if one.get_gid() == "gattn-edges"]
    return np.concatenate([read(one) for one in lines if len(one.get_paths())])


def widths(ax):
    return np.sort(of_edges(ax, lambda one: one.get_linewidths()))


def names(ax, layout):
    """The tokens that are written, without their numbers."""
    ticks = [*ax.get_xticklabels(), *ax.get_yticklabels()] if layout == "matrix" else []
    found = [*texts(ax, "gattn-label"), *(tick.get_text() for tick in ticks)]
    return {text.split(" ")[-1] for text in found if text}


def chosen(**asked):
    """Choose edges by a rule of its own for each option."""
    found = np.ones(HEAD.graph.num_edges, dtype=bool)
    if "query" in asked:
        found &= HEAD.query == asked["query"]
    if "key" in asked:
        found &= HEAD.key == asked["key"]
    if "self_loops" in asked:
        found &= HEAD.query != HEAD.key
    if "hide" in asked:
        found &= ~np.isin(HEAD.query, [0, 7]) & ~np.isin(HEAD.key, [0, 7])
    return found & (HEAD.attention >= asked.get("threshold", 0.0))


@on_each_layout
@pytest.mark.parametrize(
    "asked",
    [
        {"query": 5},
        {"key": 2},
        {"query": 6, "key": 2},
        {"threshold": 0.1},
        {"threshold": 0.05, "query": 7},
        {"self_loops": False, "threshold": 0},
        {"hide": "special", "threshold": 0},
        {"hide": "special", "query": 4},
        {"hide": "special", "self_loops": False, "threshold": 0.1},
    ],
    ids=str,
)
def test_as_many_edges_are_shown_as_were_asked_for(layout, asked):
    ax = drawn(layout, **asked)
    expected = int(chosen(**asked).sum())
    assert 0 < expected < HEAD.graph.num_edges
    assert found_edges(ax, layout) == expected
    assert f"{expected} edge" in caption(ax) or f"{expected} of " in caption(ax)


@on_each_layout
def test_hidden_tokens_have_no_name(layout):
    assert names(drawn(layout), layout) == {"[CLS]", *"abc", "[SEP]"}
    assert names(drawn(layout, hide="special"), layout) == set("abc")


@with_lines
def test_lines_are_as_wide_as_told_from_the_end_of_the_scale_on(layout):
    every = {"threshold": 0, "linewidth": 3.0}
    whole, half = (widths(drawn(layout, vmax=vmax, **every)) for vmax in (None, 0.5))
    attention = np.sort(HEAD.attention)
    beyond = attention >= 0.5
    assert beyond.any()
    np.testing.assert_allclose(half[beyond], 3.0, rtol=1e-5)
    assert (half[~beyond] < 3.0).all()
    assert whole.max() <= 3.0 + 1e-6
    assert (half[~beyond] >= whole[~beyond]).all()
    np.testing.assert_allclose(half[:-1] <= half[1:] + 1e-9, True)
    larger = widths(drawn(layout, threshold=0, linewidth=6.0))
    np.testing.assert_allclose(larger.max() / whole.max(), 2.0, rtol=0.1)


@on_each_layout
def test_where_the_scale_ends_before_the_largest_is_said(layout):
    said = f"the scale ends at 0.5, the largest is {HEAD.attention.max():.3g}"
    assert said in caption(drawn(layout, vmax=0.5))
    assert "the scale ends" not in caption(drawn(layout))


@with_lines
def test_lines_have_the_colours_of_a_map_on_a_square_root_scale(layout):
    ax = drawn(layout, cmap="magma", threshold=0)
    found = of_edges(ax, lambda one: one.get_edgecolors())[:, :3]
    expected = mpl.colormaps["magma"](np.sqrt(HEAD.attention))[:, :3]
    for colour in found:
        assert np.abs(expected - colour).max(1).min() < 0.01
    for colour in expected:
        assert np.abs(found - colour).max(1).min() < 0.01


def test_cells_have_the_colours_of_a_map_on_a_square_root_scale():
    image = drawn("matrix", cmap="magma").images[0]
    shown = image.to_rgba(image.get_array())
    for i, j in zip(HEAD.query, HEAD.key, strict=True):
        share = float(HEAD.to_dense()[i, j]) ** 0.5
        np.testing.assert_allclose(shown[i, j], mpl.colormaps["magma"](share), atol=0.02)


@on_each_layout
def test_title_and_caption_are_the_users_or_none(layout):
    ax = drawn(layout, title="Mine", caption="What I see.")
    assert (ax.get_title(), caption(ax)) == ("Mine", "What I see.")
    bare = drawn(layout, title="", caption="")
    assert not bare.get_title()
    assert not any(texts(bare, "gattn-caption"))


@on_each_layout
def test_names_and_keys_are_left_out_where_told(layout):
    ax = drawn(layout)
    assert names(ax, layout)
    assert bars(ax) or ax.get_legend()
    bare = drawn(layout, labels=False, legend=False)
    assert not names(bare, layout)
    assert not bars(bare)
    assert bare.get_legend() is None


@on_each_layout
@pytest.mark.parametrize("size", [(3.3, 2.2), (6.75, 2.2), (2.0, 5.0)])
def test_a_figure_has_the_size_told_and_axes_stay_the_users(layout, size):
    ax = drawn(layout, figsize=size)
    assert ax.figure.get_size_inches().tolist() == [*size]
    plt.close(ax.figure)
    figure = Figure(size)
    own = figure.add_subplot(1, 2, 2)
    assert drawn(layout, ax=own) is own
    assert figure.get_size_inches().tolist() == [*size]
    assert own.get_window_extent().x0 >= figure.bbox.width / 2 - 1


@with_lines
@pytest.mark.parametrize("values", ["score", "contribution", "value_norm"])
def test_numbers_that_are_no_attention_are_no_edges_and_it_is_said_why(layout, values):
    before = plt.get_fignums()
    with pytest.raises(SelectionError, match=f"Only attention is drawn as edges; {values} takes"):
        HEAD.draw(LAYOUTS[layout], values=values)
    assert plt.get_fignums() == before


@on_each_layout
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": "nobody"}, "nobody"),
        ({"key": 99}, "99"),
        ({"query": 7, "hide": "special"}, r"query 7 “\[SEP\]” is not in the picture"),
        ({"hide": range(8)}, "leaves none of 8 tokens"),
        ({"threshold": 2}, "no edge has more attention than 1"),
        ({"threshold": "0.1"}, "threshold is a number that attention is compared to"),
        ({"vmax": -1}, "vmax is the end of the scale, a number above 0"),
        ({"linewidth": 0}, "linewidth(= has no effect here| is the width of the widest line)"),
        ({"pool": "median"}, "pool is 'mean' or 'max'"),
        ({"values": "heat"}, "values is one of"),
        ({"cmap": "no map"}, "No colours 'no map'"),
        ({"title": 3}, "title is the text above the picture"),
        ({"caption": ["a"]}, "caption is the text below the picture"),
        ({"labels": "no"}, "labels is True or False"),
        ({"legend": 1}, "legend is True or False"),
        ({"self_loops": "x"}, "self_loops is True or False"),
        ({"ax": Figure()}, "ax is matplotlib's Axes"),
        ({"figsize": (0, 2)}, "figsize is the width and height"),
    ],
    ids=str,
)
def test_what_cannot_be_done_says_why_and_leaves_no_figure(layout, options, message):
    with pytest.raises(SelectionError, match=message):
        HEAD.draw(LAYOUTS[layout], **options)
    assert not plt.get_fignums()


def test_the_ground_shows_through_cells_without_an_edge():
    ax = drawn("matrix", query=3)
    image = ax.images[0]
    shown = image.to_rgba(image.get_array())
    assert shown[0, 0, 3] == 0
    assert shown[3, 1, 3] == 1
    assert to_rgba(ax.get_facecolor()) == to_rgba("white")
