"""A single bright cell among many is where it is in the file, as bright as is said, at any dpi."""

import io
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from scenes import attention
from seen import caption

from gattn import AttentionGraph, AttentionTrace, TokenGraph
from gattn.analysis.reading.results import array
from gattn.drawing.matrices.arrays import ArrayCells, ColourCells, KindCells
from gattn.drawing.matrices.cells import overlaps
from gattn.drawing.matrices.patterns import PatternCells

COLUMN = (3.3, 2.4)


def in_file(ax, dpi):
    """Return the pixels within axes as a file has them, grey from 0 to 1."""
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=dpi)
    pixels = np.asarray(Image.open(buffer).convert("L")) / 255
    high, wide = pixels.shape
    (x0, y0), (x1, y1) = ax.get_position().get_points()
    rows = slice(round((1 - y1) * high), round((1 - y0) * high))
    return pixels[rows, round(x0 * wide) : round(x1 * wide)]


def result(rows, columns, place, pool):
    values = np.zeros((rows, columns))
    values[place] = 1.0
    axes = {"layer": range(12), "head": range(rows // 12), "token": range(columns)}
    if rows == columns:
        axes = {"query": range(rows), "key": range(columns)}
    made = array(
        values.reshape([len(one) for one in axes.values()]), axes, name="score", computed_from=""
    )
    ax = Figure(COLUMN, layout="constrained").add_subplot()
    return made.draw(ax=ax, pool=pool, cmap="gray", norm=Normalize(0, 1))


def over_seconds(rows, columns, place, pool):
    values = np.zeros((rows, columns))
    values[place] = 1.0
    head = AttentionGraph.from_dense(values, TokenGraph.bipartite(rows, columns)).at_times(0.02)
    ax = Figure(COLUMN, layout="constrained").add_subplot()
    return head.draw_time(ax=ax, pool=pool, cmap="gray", vmax=1.0)


@pytest.mark.parametrize("dpi", [100, 600])
@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize(
    ("draw", "rows", "columns", "place"),
    [
        (result, 144, 256, (100, 37)),
        (result, 2000, 2000, (321, 1234)),
        (over_seconds, 40, 3000, (7, 2001)),
    ],
    ids=["12 x 12 x 256", "2,000 tokens", "3,000 frames"],
)
def test_a_planted_cell_is_where_it_is_and_as_bright_as_is_said(
    draw, rows, columns, place, pool, dpi
):
    ax = draw(rows, columns, place, pool)
    pixels = in_file(ax, dpi)
    high, wide = pixels.shape
    expected = 1.0
    if pool == "mean":  # the cell's largest share of a pixel
        expected = min(1.0, high / rows) * min(1.0, wide / columns)
    assert 0.2 * expected < pixels.max() <= 1.1 * expected + 1 / 255
    if expected == 1.0:
        assert pixels.max() == 1
    row, column = np.argwhere(pixels == pixels.max()).mean(0) + 0.5
    assert row == pytest.approx((place[0] + 0.5) * high / rows, abs=max(1.5, high / rows / 2))
    assert column == pytest.approx(
        (place[1] + 0.5) * wide / columns, abs=max(1.5, wide / columns / 2)
    )
    shown = ax.images[0].get_array()
    if pool == "mean":
        assert shown.mean() == pytest.approx(1 / rows / columns)
    assert shown.shape == (min(rows, high), min(columns, wide)) or np.allclose(
        shown.shape, (min(rows, high), min(columns, wide)), atol=1
    )
    said = {"mean": "are averaged", "max": "the largest is shown"}[pool]
    assert (said in caption(ax)) == (shown.shape != (rows, columns))


@pytest.mark.parametrize("dpi", [100, 600])
def test_a_single_pair_of_a_token_graph_is_drawn_at_its_place(dpi):
    graph = TokenGraph.from_edges([(321, 1234)], 2000)
    ax = graph.draw(ax=Figure(COLUMN, layout="constrained").add_subplot())
    pixels = in_file(ax, dpi)
    high, wide = pixels.shape
    shown = ax.images[0].get_array()
    assert shown.filled(0).mean() == pytest.approx(1 / 2000**2)
    assert abs(len(shown) - min(2000, high)) <= 1
    inner = pixels[3:-3, 3:-3]
    row, column = np.argwhere(inner == inner.min()).mean(0) + 3.5
    assert row == pytest.approx(1234.5 * high / 2000, abs=1.5)
    assert column == pytest.approx(321.5 * wide / 2000, abs=1.5)


@pytest.mark.parametrize("size", [(7, 5), (20, 30), (1, 1), (13, 29)])
@pytest.mark.parametrize(
    "graph",
    [
        TokenGraph.causal(30),
        TokenGraph.longformer(30, 3, [0, 9]),
        TokenGraph.nearest(torch.arange(30.0)[:, None], 3),
        TokenGraph.causal(4, num_keys=30, query_offset=26),
    ],
)
def test_shares_of_edges_are_means_of_the_dense_mask(graph, size, monkeypatch):
    mask = graph.mask().numpy().astype(float)
    rows, columns = (min(pair) for pair in zip(size, mask.shape, strict=True))
    whole = mask.repeat(rows, 0).repeat(columns, 1)
    high, wide = mask.shape
    expected = whole.reshape(rows, high, columns, wide).mean((1, 3))
    one = torch.tensor([graph.query_offset])
    can_count = graph.rule.count(one, 0 * one, 0 * one + 1) is not None
    for is_counted in [False, True][: 1 + can_count]:
        monkeypatch.setattr(PatternCells, "_is_counted", lambda *_, way=is_counted: way)
        found = PatternCells(graph).at(rows, columns)
        np.testing.assert_allclose(np.nan_to_num(found), expected, atol=1e-12)
        np.testing.assert_array_equal(np.isnan(found), expected == 0)


def test_means_are_over_the_numbers_that_there_are():
    values = np.array([[1.0, np.nan, 3.0, np.nan], [np.nan, np.nan, 5.0, np.nan]])
    np.testing.assert_array_equal(ArrayCells(values).at(1, 2), [[1.0, 4.0]])
    np.testing.assert_array_equal(ArrayCells(values, "max").at(1, 2), [[1.0, 5.0]])
    found = ArrayCells(np.where(values > 3, values, np.nan)).at(2, 2)
    np.testing.assert_array_equal(found, [[np.nan, np.nan], [np.nan, 5.0]])
    np.testing.assert_array_equal(ArrayCells(-values, "max").at(1, 1), [[-5.0]])


def test_stretches_of_several_lengths_are_averaged_over_time():
    edges = np.array([0.0, 1.0, 1.5, 4.0])
    cells = ArrayCells(np.array([[2.0, 4.0, 8.0]]), edges=edges)
    np.testing.assert_allclose(cells.at(1, 8), [[2, 2, 4, 8, 8, 8, 8, 8]])
    np.testing.assert_allclose(cells.at(1, 2), [[(2 + 2 + 4 * 0.5 + 8 * 0.5) / 2 - 1, 8]], atol=1)
    exact = (2 * 1 + 4 * 0.5 + 8 * 0.5) / 2
    np.testing.assert_allclose(cells.at(1, 2), [[exact, 8]])
    largest = ArrayCells(np.array([[2.0, -9.0, 8.0]]), "max", edges)
    np.testing.assert_array_equal(largest.at(1, 4), [[2, -9, 8, 8]])


def test_overlaps_share_out_every_token_once():
    edges = np.cumsum(np.random.default_rng(0).random(40))
    for parts in (1, 3, 39, 100):
        shares = overlaps(edges, parts).toarray()
        np.testing.assert_allclose(shares.sum(1), np.diff(edges))
        np.testing.assert_allclose(shares.sum(0), (edges[-1] - edges[0]) / parts)


def test_of_kinds_the_most_frequent_is_shown():
    values = np.array([[0, 0, 1, 2.0], [0, 3, 2, 2]])
    np.testing.assert_array_equal(KindCells(values).at(1, 2), [[0, 2]])
    np.testing.assert_array_equal(KindCells(np.full((2, 2), np.nan)).at(1, 1), [[np.nan]])


def test_colours_are_averaged_as_far_as_they_cover():
    red, blue, none = (1, 0, 0, 1), (0, 0, 1, 1), (0, 0, 0, 0)
    found = ColourCells(np.array([[red, blue, red, none]], dtype=float)).at(1, 2)
    np.testing.assert_allclose(found, [[(0.5, 0, 0.5, 1), (1, 0, 0, 0.5)]])


def test_colours_of_missing_numbers_are_no_numbers_colour_in_grey_either():
    values = np.array([[-1.0, 0.0, 1.0, np.nan], [0.0, 0.0, 0.0, 0.0]])
    made = array(values, {"head": [0, 1], "token": range(4)}, name="change", computed_from="")
    ax = made.draw(ax=Figure((4, 2)).add_subplot())
    assert ax.patch.get_hatch()
    assert np.ma.getmaskarray(ax.images[0].get_array())[0].tolist() == [False] * 3 + [True]
    assert ax.images[0].to_rgba(ax.images[0].get_array())[0, 3, 3] == 0
    whole = array(values[:, :3], {"head": [0, 1], "token": range(3)}, name="x", computed_from="")
    assert whole.draw(ax=Figure((4, 2)).add_subplot()).patch.get_hatch() is None


@pytest.mark.parametrize(
    ("dpi", "format_", "says"),
    [(100, "png", True), (900, "png", False), (None, "svg", True)]
    + [(900, kind, False) for kind in ("svg", "pdf", "ps")],
)
@pytest.mark.parametrize("layout", [None, "constrained"])
def test_the_caption_is_of_the_pixels_of_the_file(dpi, format_, says, layout):
    figure = Figure(COLUMN, layout=layout)
    image = AttentionGraph.from_dense(attention(800, 800)).draw("matrix", ax=figure.add_subplot())
    sheet = AttentionTrace.from_arrays(attention(1, 1, 800, 800)).draw(figsize=COLUMN)
    for one in (figure, sheet):
        with patch.object(Text, "draw", autospec=True, side_effect=Text.draw) as drawn:
            one.savefig(io.BytesIO(), format=format_, dpi=dpi or "figure")
        said = " ".join(" ".join(call.args[0].get_text() for call in drawn.call_args_list).split())
        assert "640,000 edges" in said
        assert ("are averaged" in said) == says
    assert (len(image.images[0].get_array()) < 800) == says
    plt.close(sheet)


def test_a_caption_of_ones_own_is_all_that_stands_below():
    head = AttentionGraph.from_dense(attention(300, 300))
    axes = [Figure(COLUMN).add_subplot() for _ in range(2)]
    assert "are averaged" in caption(head.draw("matrix", ax=axes[0]))
    assert caption(head.draw("matrix", caption="mine", ax=axes[1])) == "mine"
