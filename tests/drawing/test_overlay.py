"""Several heads in one view."""

import dataclasses
import re
from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from meeting import problems
from sample_heads import bipartite_head, causal_head
from seen import axes, caption, drawn_edges

import gattn
from gattn.drawing import draw_overlay
from gattn.drawing.canvas.colours import KINDS, KINDS_ON_DARK
from gattn.drawing.chosen.shown import readable_edges
from gattn.errors import SelectionError
from gattn.heads.stack import Stack

HEADS = [causal_head(6, seed=n, layer=n, head=n + 1) for n in range(3)]


def lines(ax):
    return [c for c in ax.collections if c.get_gid() == "gattn-edges"]


def shown(ax):
    """The colour and the width of each edge."""
    return [
        (to_hex(colour), width)
        for collection in lines(ax)
        for colour, width in zip(
            collection.get_edgecolors(), collection.get_linewidths(), strict=True
        )
    ]


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle", nx.circular_layout])
def test_each_head_has_a_colour_and_all_have_one_scale(layout):
    ax = draw_overlay(HEADS, layout, threshold=0.05, ax=axes())
    found = shown(ax)
    expected = [np.sort(head.attention[head.attention >= 0.05]) for head in HEADS]
    every = np.concatenate(expected)
    widths = np.sort([width for _, width in found])
    slope = np.polyfit(np.sort(every), widths, 1)
    for colour, sizes in zip(KINDS, expected, strict=False):
        own = np.sort([width for one, width in found if one == colour])
        np.testing.assert_allclose(own, np.polyval(slope, sizes), rtol=1e-5)


def test_edges_that_heads_share_lie_side_by_side():
    ax = draw_overlay([HEADS[0], HEADS[0]], threshold=0, ax=axes())
    (above, loops, *_) = lines(ax)
    for collection in (above, loops):
        offsets = collection.get_offsets()
        assert len(offsets) == len(collection.get_paths())
        assert len({tuple(one) for one in offsets.tolist()}) == 2


def test_the_key_and_the_caption_name_the_heads():
    ax = draw_overlay(HEADS, threshold=0.1, ax=axes())
    key = [text.get_text() for text in ax.get_legend().get_texts()]
    assert key[-3:] == ["head 0.1", "head 1.2", "head 2.3"]  # not amounts of attention
    assert ax.get_title() == "heads 0.1, 1.2, 2.3"
    for name, head in zip(key[-3:], HEADS, strict=True):
        count = int((head.attention >= 0.1).sum())
        assert f"{name} shows attention ≥ 0.1: {count} of 21 edges" in caption(ax)


def test_heads_of_a_trace_are_chosen_as_anywhere():
    dense = np.stack([head.to_dense() for head in (*HEADS, HEADS[0])]).reshape(2, 2, 6, 6)
    trace = gattn.AttentionTrace.from_arrays(dense)
    ax = trace.draw_overlay("columns", heads="1.0,1.1", query=3, ax=axes())
    assert ax.get_title() == "layer 1 · heads 0, 1"
    assert drawn_edges(ax) == 8
    assert caption(ax).startswith("each head shows what query 3 reads: all 4 edges")
    assert caption(ax).count("what query 3 reads") == 1


def test_colours_stand_out_from_a_dark_background():
    with gattn.style("dark"):
        found = {colour for colour, _ in shown(draw_overlay(HEADS[:2], ax=axes()))}
    assert found == set(KINDS_ON_DARK[:2])


def test_a_sink_that_one_head_has_is_drawn():
    sink = causal_head(6, sink=np.full(6, 0.3), layer=3, head=0)
    ax = draw_overlay([HEADS[0], sink], threshold=0.2, ax=axes())
    assert "6 of 6 from the sink" in caption(ax)
    assert "<sink>" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("draw", ["draw_overlay", "draw_text", "draw_time", "draw_graph"])
def test_the_stack_of_heads_is_named_as_anywhere(draw):
    """Of an encoder and a decoder with the same places, whose attention differs."""
    places = {n: (n, n * n) for n in range(6)}
    stacks = {}
    for start, name in enumerate(("encoder", "decoder")):
        heads = [causal_head(6, seed=8 * start + n, layer=0, head=n) for n in range(2)]
        placed = [h.at_times(0.5) if draw == "draw_time" else h.with_layout(places) for h in heads]
        stacks[name] = Stack(name, {(0, n): one for n, one in enumerate(placed)})
    trace = gattn.AttentionTrace(stacks)

    def drawn(of, **options):
        figure = getattr(of, draw)(ax=axes(), **options).figure
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())

    expected = drawn(trace["decoder"], heads="0.0,0.1")
    for options in ({"stack": "decoder"}, {"stack": "decoder", "heads": "0.0,0.1"}):
        assert np.array_equal(drawn(trace, **options), expected)
    assert not np.array_equal(drawn(trace, stack="encoder"), expected)
    assert np.array_equal(drawn(trace["decoder"], stack="decoder"), expected)
    with pytest.raises(SelectionError, match="No stack 'coder'"):
        drawn(trace, stack="coder")
    with pytest.raises(SelectionError, match="names a stack, but stack='dec"):
        drawn(trace, stack="decoder", heads="encoder:0.1")


@pytest.mark.parametrize(
    ("heads", "layout", "message"),
    [
        ([], "arcs", "Give several heads of one text"),
        (["1.1"], "arcs", "Give several heads of one text"),
        (3 * HEADS, "arcs", "At most 8 heads"),
        (HEADS, "matrix", "A matrix shows one head"),
        ([HEADS[0], bipartite_head()], "arcs", "heads of the same tokens"),
    ],
)
def test_what_cannot_be_overlaid_is_refused(heads, layout, message):
    with pytest.raises(SelectionError, match=message):
        draw_overlay(heads, layout)


def test_a_threshold_that_no_head_can_reach_is_refused():
    with pytest.raises(SelectionError, match="threshold=2 shows nothing"):
        draw_overlay(HEADS, threshold=2)
    large = dataclasses.replace(
        HEADS[0], attention=4 * HEADS[0].attention, total_mass=4 * HEADS[0].total_mass
    )
    assert drawn_edges(draw_overlay([HEADS[1], large], threshold=2, ax=axes()))


@pytest.mark.parametrize("threshold", [None, 0.1])
def test_the_caption_of_many_heads_sums_them_up(threshold):
    heads = [causal_head(12, layer=0, head=n, seed=n) for n in range(8)]
    shown, whole = 0, sum(int(head.total_edges.sum()) for head in heads)
    mass = 0.0
    for head in heads:
        edges = readable_edges(head).edges if threshold is None else head.attention >= threshold
        shown += len(head.attention[edges])
        mass += float(head.attention[edges].sum()) / 12 / 8
    ax = draw_overlay(heads, threshold=threshold, ax=axes())
    rules = ["", " attention ≥ 0.01:"] if threshold is None else [" attention ≥ 0.1:"]
    assert any(caption(ax).startswith(f"the heads show{rule} {shown} of {whole}") for rule in rules)
    assert float(caption(ax).split("edges, ")[1].split(" %")[0]) == pytest.approx(100 * mass, abs=1)


@pytest.mark.parametrize("sizes", [[12] * 5, [12, 12, 3, 3, 3], [13, 13, 13, 13, 4]])
def test_the_caption_of_many_heads_names_the_threshold_that_was_chosen_for_each(sizes):
    """Heads of few strong edges, and others of many weak ones, have thresholds of their own."""
    heads = []
    for n, size in enumerate(sizes):
        matrix = np.random.default_rng(n).dirichlet(np.full(24, size / 24), 24)
        heads.append(gattn.AttentionGraph.from_dense(matrix, layer=0, head=n))
    said = caption(draw_overlay(heads, ax=axes()))
    for n, head in enumerate(heads):
        edges = readable_edges(head).edges
        least = float(head.attention[edges].min())
        told = [
            float(threshold)
            for threshold, of in re.findall(r"attention ≥ ([\d.]+)(?: in ([\d., ]+))?", said)
            if not of or f"0.{n}" in of.split(", ")
        ]
        assert len(told) == 1
        assert edges.size == (head.attention >= told[0]).sum()
        assert least >= told[0]


@pytest.mark.parametrize("background", ["default", "dark_background"])
def test_heads_are_told_apart_in_grey_and_the_key_shows_it(background):
    heads = [causal_head(6, seed=n, layer=n, head=0) for n in range(8)]
    with plt.style.context(background):
        ax = draw_overlay(heads, threshold=0, ax=axes())
    key = ax.get_legend().get_lines()[-8:]
    greys = [np.dot(to_rgb(line.get_color()), (0.299, 0.587, 0.114)) for line in key]
    scaled = [
        np.divide(line._dash_pattern[1] or [1], line.get_linewidth()).tolist() for line in key
    ]
    for n, m in combinations(range(8), 2):
        assert abs(greys[n] - greys[m]) > 0.1 or scaled[n] != scaled[m], (n, m)
    drawn = {
        (to_hex(colour), dash is None)
        for one in lines(ax)
        for colour, (_, dash) in zip(one.get_edgecolors(), one.get_linestyles(), strict=True)
    }
    assert drawn == {(to_hex(line.get_color()), line._dash_pattern[1] is None) for line in key}


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle"])
@pytest.mark.parametrize("font", [7, 10])
def test_a_long_caption_has_smaller_letters_rather_than_be_cut(layout, font):
    with mpl.rc_context({"font.size": font}):
        heads = [causal_head(13, seed=n, layer=2, head=n) for n in range(3)]
        ax = draw_overlay(heads, layout, threshold=0.1, figsize=(3.3, 2.3))
        assert not problems(ax.figure)
        (below,) = [text for text in ax.texts if text.get_gid() == "gattn-caption"]
        assert 5 <= below.get_fontsize() <= 0.75 * font
        assert ax.bbox.height > 0.35 * ax.figure.bbox.height
