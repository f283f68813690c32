"""In figures of the size of a paper no text meets another, and none is cut."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from meeting import drawn_texts, problems
from paper import (
    COLUMN,
    FONT,
    HEADS,
    LAMP,
    LOW,
    PANELS,
    PICTURES,
    SHEETS,
    WIDE,
    one,
    own,
    panels,
    repeated,
    sheet,
    trace,
)
from sample_heads import causal_head, signed_head
from seen import bars

import gattn
from gattn import AttentionTrace
from gattn.errors import ShapeError
from gattn.heads.stack import Stack

FEW = {
    "matrix, 13 tokens",
    "arcs, cross",
    "columns, a long token",
    "circle, 61 tokens",
    "ribbons",
    "ribbons, 24 layers",
    "circle, 13 tokens",
    "spring, 13 tokens",
    "karate club",
    "effects, edits",
    "head table",
}
"""The pictures that are always tested; the others are tested with the slow tests."""
OWN = [f"{layout}, {name}" for layout in ("matrix", "arcs", "circle") for name in HEADS]


def seldom(names):
    """Mark all but a few as slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[slow] * (name not in FEW)) for name in names]


@pytest.fixture(autouse=True)
def small_print():
    with mpl.rc_context(FONT):
        yield


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("size", [COLUMN, LOW])
@pytest.mark.parametrize("name", seldom(PICTURES))
def test_a_picture_in_a_column(name, size, layout):
    assert not problems(one(name, size, layout))


@pytest.mark.parametrize("high", [2.2, 2.4, 3.3])
def test_layers_of_a_rollout_do_not_meet_in_the_usual_font(high):
    with mpl.rc_context({"font.size": 10}):
        ax = repeated().unroll().rollout(query=-1).draw(figsize=(3.3, high))
        assert not problems(ax.figure)
    plt.close(ax.figure)


def test_scores_of_heads_are_named_whole_in_a_column():
    table = gattn.analysis.head_table(trace(), progress=False)
    table["label"] = ["first token (sink), 0.77", "induction, 0.48; first token, 0.31"] * 6
    with gattn.style("paper"):
        ax = table.draw(figsize=(3.3, 3.3))
        texts = {box.text for box in drawn_texts(ax.figure)}
        assert not problems(ax.figure)
    plt.close(ax.figure)
    assert {"edges for 90 %", "first token (sink)", "induction\xa0…"} <= texts
    assert not [text for text in texts if text.endswith("…") and text != "induction\xa0…"]


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
@pytest.mark.parametrize("names", PANELS, ids=" | ".join)
def test_three_panels(names, layout):
    assert not problems(panels(names, WIDE, layout))


@pytest.mark.parametrize("name", seldom(PICTURES))
def test_a_picture_in_a_column_in_the_style_of_a_paper(name):
    with gattn.style("paper"):
        assert not problems(one(name, COLUMN, "constrained"))


@pytest.mark.parametrize("layout", [None, pytest.param("constrained", marks=pytest.mark.slow)])
@pytest.mark.parametrize("names", PANELS, ids=" | ".join)
def test_three_panels_in_the_style_of_a_paper(names, layout):
    with gattn.style("paper"):
        assert not problems(panels(names, WIDE, layout))


@pytest.mark.parametrize("size", [None, COLUMN, LOW])
@pytest.mark.parametrize("name", seldom(OWN))
def test_a_figure_of_its_own_with_another_size(name, size):
    assert not problems(own(name, size))


@pytest.mark.parametrize("size", [COLUMN, LOW, WIDE])
@pytest.mark.parametrize("name", [name for name in SHEETS if name != "two runs"])
def test_many_heads(name, size):
    assert not problems(sheet(name, size))


def test_two_runs_need_the_width_of_a_column():
    assert not problems(sheet("two runs", WIDE))
    assert not problems(sheet("two runs", COLUMN))
    with pytest.raises(ShapeError, match=r"no room on a figure of 2\.0 x 1\.6 inches"):
        sheet("two runs", (2.0, 1.6))


@pytest.mark.parametrize("dpi", [80, 120])
@pytest.mark.parametrize("name", ["two runs", "unrolled"])
def test_captions_are_whole_however_letters_are_fitted_to_pixels(name, dpi):
    for width in (6.25, 6.75) if name == "two runs" else (3.3,):
        size = width, 2.6
        figure = sheet(name, size) if name == "two runs" else one(name, size, None)
        assert not [said for said in problems(figure, dpi) if "is cut" in said]


def test_twelve_layers_of_twelve_heads_have_room_in_a_column():
    for size in (LOW, COLUMN):
        figure = Figure(size)
        trace(12, 12).draw(figure=figure)
        assert not problems(figure)
        assert len(figure.axes[0].images) == 144


def test_matrices_spread_over_wide_figures_even_where_names_have_no_room():
    figure = Figure((6.75, 2.6))
    apart = {
        place: causal_head(13, seed=sum(place), tokens=LAMP, layer=place[0], head=place[1])
        for place in np.ndindex(4, 4)
    }
    other = AttentionTrace({"decoder": Stack("decoder", apart)}, "tiny-model")
    trace(4, 4).draw(other=other, figure=figure)
    placed = np.array([image.get_extent() for image in figure.axes[0].images])
    assert (placed[:, 3] - placed[:, 2]).min() > 0.19
    assert placed[:, 1].max() - placed[:, 0].min() > 4.2
    assert not problems(figure)


@pytest.mark.parametrize("heads", [None, [(0, 1), (1, 2), (3, 3)]])
@pytest.mark.parametrize("size", [COLUMN, (3.3, 4.4), (6.75, 3.0), (6.75, 6.75)])
def test_cells_are_square_on_any_figure(size, heads):
    for figure in (
        trace(4, 4).draw(figsize=size, heads=heads),
        trace(4, 4).draw(figsize=size, heads=heads, other=trace(4, 4)),
    ):
        placed = np.array([image.get_extent() for image in figure.axes[0].images])
        wide, high = placed[:, 1] - placed[:, 0], placed[:, 3] - placed[:, 2]
        np.testing.assert_allclose(wide, high)
        assert not problems(figure)
        plt.close(figure)


@pytest.mark.parametrize("font", [7, 10])
@pytest.mark.parametrize("size", [(3.3, 5), (3.3, 6.6), (6.75, 6.75), (6.75, 9)])
def test_a_comparison_fills_a_figure_that_is_high(size, font):
    with mpl.rc_context({"font.size": font}):
        figure = trace(4, 4).draw(figsize=size, other=trace(4, 4))
        said = drawn_texts(figure)
        assert not problems(figure)
    lowest = min(text.corners[:, 1].min() for text in said) / 72
    assert lowest < 0.15 * size[1]
    placed = np.array([image.get_extent() for image in figure.axes[0].images])
    beside = len(np.unique(placed[:, 0].round(6))) >= 2 * 4
    assert (placed[:, 1] - placed[:, 0]).min() > size[0] / (24 if beside else 12)
    plt.close(figure)


def test_a_strip_takes_as_many_rows_as_make_its_matrices_largest():
    def rows_and_columns(size):
        figure = trace(4, 4).draw(figsize=size, heads=[(0, 1), (1, 2), (3, 3)])
        placed = np.array([image.get_extent() for image in figure.axes[0].images]).round(6)
        plt.close(figure)
        return len(np.unique(placed[:, 3])), len(np.unique(placed[:, 0]))

    assert rows_and_columns((3.3, 3.6)) == (2, 2)
    assert rows_and_columns((6.75, 2.6)) == (1, 3)
    assert rows_and_columns((2.2, 6.75)) == (3, 1)


@pytest.mark.parametrize("size", [(3.3, 2.2), (3.3, 2.4), (3.3, 3)])
def test_the_two_scales_of_a_comparison_lie_one_below_the_other(size):
    figure = Figure(size)
    trace().draw(other=trace(), figure=figure)
    assert not problems(figure)
    upper, lower = (bar.get_position() for bar in figure.axes[0].child_axes)
    assert upper.x0 == pytest.approx(lower.x0)
    assert upper.y0 > lower.y1


def test_what_meets_or_is_cut_is_found():
    figure = Figure((2, 2))
    figure.text(0.5, 0.5, "one", rotation=45)
    figure.text(0.55, 0.52, "two")
    figure.text(0.9, 0.1, "too far right")
    assert len(problems(figure)) == 2
    ax = figure.subplots(1, 2)[0]
    ax.text(1.5, 0.9, "there")
    assert "'there' is in another picture" in problems(figure)


@pytest.mark.parametrize(
    "names",
    [
        ["head table", "circuit of stacks", "text"],
        ["topology", "head table", "head map"],
        ["effects, 40 cuts", "curves", "communities"],
    ],
    ids=" | ".join,
)
def test_panels_that_have_less_room_than_their_names_need(names):
    figure = panels(names, WIDE, None)
    assert not problems(figure)
    for ax in figure.axes:
        if (key := ax.get_legend()) and names[1] == "curves":
            box, own = key.get_window_extent(), ax.get_window_extent()
            assert own.x0 - 1 <= box.x0 < box.x1 <= own.x1 + 1
    said = {" ".join(box.text.split("\n")) for box in drawn_texts(figure)}
    assert not [text for text in said if text.endswith(("+", "−", "/"))]


@pytest.mark.parametrize("high", [1.4, 1.7, 2.0, 2.4, 3.3])
def test_the_scale_of_signed_numbers_is_labelled_alike_on_both_sides(high):
    ax = signed_head().draw("matrix", figsize=(3.3, high))
    assert not problems(ax.figure)
    (bar,) = bars(ax)
    ticks = list(bar.get_yticks())
    assert ticks == [-tick for tick in reversed(ticks)]
    assert 0 in ticks
    plt.close(ax.figure)


@pytest.mark.parametrize(("high", "shown"), [(3.3, 56), (1.7, 0)])
def test_a_caption_says_nothing_of_labels_that_have_no_room(high, shown):
    tokens = list("abcdefghij")
    attention = np.random.default_rng(0).dirichlet(np.ones(10), (8, 8, 10))
    whole = AttentionTrace.from_arrays(attention, tokens=tokens)
    places = [(layer, head) for layer in range(8) for head in range(8)]
    labels = dict.fromkeys(places, "previous token, 0.91")
    labels |= dict.fromkeys(places[::2], "induction, 0.48; first token (sink), 0.77")
    scores = {place: n / 64 for n, place in enumerate(places)}
    figure = whole.draw(figsize=(3.3, high), sort=scores, label=labels)
    written = [" ".join(box.text.split()) for box in drawn_texts(figure)]
    named = [f"{layer}.{head}" for layer, head in places[8:]]  # 0.5 is a number of the scale, too
    (caption,) = [text for text in written if "sorted by" in text]
    assert "from the largest on; no room to write each head's score above it" in caption
    assert "above each head" not in caption
    assert ("no room for heads' names" in caption) == (shown == 0)
    assert "names are whole" not in caption
    assert sum(text in named for text in written) == shown
    plt.close(figure)


@pytest.mark.parametrize("font", [7, 10])
def test_a_caption_says_that_scores_are_written_only_where_they_are(font):
    for layers, size in [(8, (3.3, 2.4)), (8, (6.75, 3)), (3, (3.3, 2.4)), (12, (3.3, 3.3))]:
        with mpl.rc_context({"font.size": font}):
            figure = trace(layers, layers).draw(sort="induction", figsize=size)
            written = [" ".join(box.text.split()) for box in drawn_texts(figure)]
        (caption,) = [text for text in written if "sorted by" in text]
        scored = re.compile(r"\d+\.\d+:( induction)? 0\.\d\d")
        scores = [text for text in written if scored.fullmatch(text)]
        assert ("written above" in caption) == bool(scores)
        assert ("no room to write each head's induction above it" in caption) == (not scores)
        plt.close(figure)


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 4.0), (9.0, 6.0)])
def test_dashes_of_a_key_are_whole_at_both_ends_of_its_lines(size):
    ax = signed_head().draw("arcs", figsize=size)
    figure = ax.figure
    figure.set_dpi(400)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[::-1, :, :3].astype(int)
    for line in ax.get_legend().get_lines():
        (left, y), *_, (right, _) = line.get_transform().transform(line.get_xydata())
        half = line.get_linewidth() / 2 * 400 / 72
        for x in (left + 3, left + half, right - half, right - 3):
            assert pixels[round(y), int(x)].min() < 240
    plt.close(figure)


@pytest.mark.parametrize("name", ["karate club", "karate club, a query"])
def test_labels_of_a_dense_graph_stand_beside_their_nodes(name):
    figure = one(name, COLUMN, None)
    assert not problems(figure)
    (ax,) = figure.axes
    labels = [t for t in ax.texts if t.get_gid() == "gattn-label" and t.get_text()]
    (leaders,) = [c for c in ax.collections if c.get_gid() == "gattn-leaders"]
    assert len(labels) == 34
    assert len(leaders.get_segments()) <= 8
    plt.close(figure)
