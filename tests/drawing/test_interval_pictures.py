"""Pictures of scores over a corpus and of two corpora: what they show, and images."""

from functools import cache

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from seen import bars, words

from gattn.drawing.canvas.colours import colour_map
from gattn.errors import SelectionError
from gattn.surveys.ask.comparison import compare_heads
from gattn.surveys.ask.statistics import head_statistics

HOSTILE = "in\x00d$x_1$\n'\"<b>\u202e very long " + "very long " * 6


def corpus(stacks, seed=0, shift=0.0, score="induction"):
    """A score of 12 texts; by `shift` some heads change from text to text, all in one direction."""
    tables = []
    for stack, (layers, heads) in stacks.items():
        fixed, random = np.random.default_rng(9), np.random.default_rng(seed)
        base = fixed.beta(0.4, 2, (layers, heads))
        moved = fixed.normal(size=base.shape) * (fixed.random(base.shape) < 0.3)
        values = base + random.normal(0, 0.3, (12, *base.shape)) * (0.05 + base)
        values += shift * moved * random.random(values.shape)
        text, layer, head = (axis.ravel() for axis in np.indices(values.shape))
        places = {"text_id": text, "stack": stack, "layer": layer, "head": head}
        tables.append(pd.DataFrame(places | {score: np.clip(values, 0, 1).ravel()}))
    return pd.concat(tables, ignore_index=True)


def statistics(*shape, **stacks):
    return head_statistics(corpus(stacks or {"decoder": shape}), "induction", resamples=300)


@cache
def comparison(*shape):
    before, after = (corpus({"decoder": shape}, seed, shift) for seed, shift in [(0, 0), (3, 0.6)])
    return compare_heads(before, after, "induction", resamples=300, correction="fdr")


def lines(ax):
    """The lines across cells: the scales, the intervals, the ticks of the means."""
    found = [c for c in ax.collections if isinstance(c, LineCollection)]
    return [np.array(c.get_segments()) for c in found]


def test_a_map_has_a_cell_a_head_in_its_layers_row():
    table = statistics(3, 4)
    ax = table.draw()
    np.testing.assert_allclose(
        ax.images[0].get_array(), table["mean"].to_numpy().reshape(3, 4), rtol=1e-12
    )
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("layer", "head")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "1", "2"]
    assert words(ax).startswith("induction ")
    assert " 12 texts; " in words(ax)
    assert "mean over texts, with its 95 % interval" in words(ax)
    assert ax.get_title() == "induction"
    assert bars(ax)[0].get_ylabel() == "induction"


def test_the_line_in_a_cell_is_the_interval_on_the_scale_of_the_colours():
    table = statistics(3, 4)
    ax = table.draw()
    scales, intervals, ticks = lines(ax)
    bottom, top = ax.images[0].get_clim()
    assert (bottom, top) == (0, table["high"].max())
    column = np.tile(np.arange(4), 3)
    np.testing.assert_allclose(scales[:, :, 0], column[:, None] + np.array([[-0.4, 0.4]]))
    ends = column[:, None] - 0.4 + 0.8 * table[["low", "high"]].to_numpy() / top
    np.testing.assert_allclose(intervals[:, :, 0], ends)
    means = column - 0.4 + 0.8 * table["mean"].to_numpy() / top
    np.testing.assert_allclose(ticks[:, 0, 0], means)
    rows = np.repeat(np.arange(3), 4)
    assert (np.round(intervals[:, 0, 1]) == rows).all()
    assert "in a cell: the interval" in words(ax)


def test_a_negative_mean_or_end_is_on_the_scale():
    table = statistics(2, 3)
    shifted = table.assign(low=table["low"] - 0.1)
    assert shifted.draw().images[0].get_clim()[0] == shifted["low"].min() < 0
    signed = table[["mean", "low", "high"]] - 0.5
    bottom, top = signed.draw().images[0].get_clim()
    assert bottom == -top == -np.abs(signed.to_numpy()).max()


def test_small_cells_have_no_lines_and_it_says_so():
    ax = statistics(30, 30).draw()
    assert lines(ax) == []
    assert "cells are too small to show the intervals" in words(ax)
    assert "in a cell" not in words(ax)


def test_heads_that_are_not_there_are_blank_and_those_without_a_score_hatched():
    table = statistics(encoder=(1, 3), decoder=(2, 2))
    ax = table.draw()
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "decoder 0",
        "decoder 1",
        "encoder 0",
    ]
    blank = {patch.get_xy() for patch in ax.patches}
    assert blank == {(1.5, -0.5), (1.5, 0.5)}
    assert "hatched" not in words(ax)
    table.loc[("encoder", 0, 2), ["mean", "low", "high"]] = np.nan
    ax = table.draw()
    assert np.ma.getmaskarray(ax.images[0].get_array())[2, 2]
    assert "hatched: no score" in words(ax)
    assert ax.patch.get_hatch()


def test_ranked_heads_are_the_largest_and_named():
    table = statistics(4, 5)
    ax = table.draw("ranked", count=6)
    largest = table.sort_values("mean", ascending=False).head(6)
    (points,) = (c for c in ax.collections if not isinstance(c, LineCollection))
    np.testing.assert_allclose(points.get_offsets()[:, 0], largest["mean"])
    names = [f"{layer}.{head}" for _, layer, head in largest.index]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    (whiskers,) = lines(ax)
    np.testing.assert_allclose(whiskers[:, :, 0], largest[["low", "high"]])
    assert "the 6 largest of 20 heads" in words(ax)
    assert ax.get_title() == "induction"
    assert ax.get_xlabel() == "induction"
    assert "largest of" not in words(table.draw("ranked"))


def test_ranked_heads_of_several_stacks_are_named_with_them():
    ax = statistics(encoder=(1, 2), decoder=(1, 2)).draw("ranked")
    assert {label.get_text() for label in ax.get_yticklabels()} == {
        "encoder 0.0",
        "encoder 0.1",
        "decoder 0.0",
        "decoder 0.1",
    }


def test_a_comparison_outlines_the_heads_whose_corrected_p_is_below_alpha():
    table = comparison(5, 6)
    differ = table["p_corrected"].to_numpy().reshape(5, 6) < 0.05
    assert 0 < differ.sum() < 30
    ax = table.draw()
    outlined = {(round(p.get_y() + 0.46), round(p.get_x() + 0.46)) for p in ax.patches}
    assert outlined == set(zip(*np.nonzero(differ), strict=True))
    assert all(isinstance(p, Rectangle) and not p.get_fill() for p in ax.patches)
    assert f"outlined: corrected p < 0.05 ({differ.sum()} of 30)" in words(ax)
    bottom, top = ax.images[0].get_clim()
    assert bottom == -top
    assert ax.images[0].cmap(0.5)[:3] == colour_map(None, is_signed=True)(0.5)[:3]
    assert table.draw(alpha=0).patches[:] == []
    assert bars(ax)[0].get_ylabel() == "difference in induction"


def test_a_ranked_comparison_fills_them_and_takes_both_directions():
    table = comparison(5, 6)
    ax = table.draw("ranked", count=12)
    largest = table.loc[table["difference"].abs().nlargest(12).index]
    largest = largest.sort_values("difference", ascending=False)
    (points,) = (c for c in ax.collections if not isinstance(c, LineCollection))
    np.testing.assert_allclose(points.get_offsets()[:, 0], largest["difference"])
    filled = points.get_facecolors()[:, 3] == 1
    assert filled.tolist() == (largest["p_corrected"] < 0.05).tolist()
    assert 0 < filled.sum() < 12
    assert (largest["difference"] < 0).any()


def test_some_rows_of_a_table_are_drawn_with_what_is_known_of_it():
    ax = statistics(3, 4).head(4).draw()
    assert ax.images[0].get_array().shape == (1, 4)
    assert words(ax).startswith("induction ")
    assert " 12 texts; " in words(ax)


@pytest.mark.parametrize("kind", ["map", "ranked"])
def test_a_score_of_any_name_is_written_as_it_is(kind):
    heads = corpus({"st$a_k$\n": (2, 3)}, score=HOSTILE)
    ax = head_statistics(heads, HOSTILE, resamples=100).draw(kind)
    ax.figure.draw_without_rendering()
    assert "in\\x00d$x_1$↵'\"<b> U+202E" in words(ax)


@pytest.mark.parametrize("kind", ["map", "ranked"])
def test_it_draws_on_given_axes(kind):
    _, ax = plt.subplots()
    for table in (statistics(2, 3), comparison(2, 3)):
        assert table.draw(kind, ax=ax) is ax
    assert plt.get_fignums() == [1]


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("kind", ["map", "ranked"])
def test_a_text_alone_is_drawn_without_an_interval(kind, texts):
    heads = corpus({"decoder": (1, 1)})
    ax = head_statistics(heads[heads["text_id"] < texts], "induction").draw(kind)
    ax.figure.draw_without_rendering()
    assert f" {texts} text{'s' * (texts > 1)}; " in words(ax)


def test_what_cannot_be_drawn_is_refused():
    table = statistics(2, 2)
    with pytest.raises(SelectionError, match="'map' or 'ranked', not 'pie'"):
        table.draw("pie")
    with pytest.raises(SelectionError, match="No colours 'none'"):
        table.draw(cmap="none")
    for nothing in (table.head(0), table.drop(columns="low")):
        with pytest.raises(SelectionError, match="nothing to draw"):
            nothing.draw()
    with pytest.raises(SelectionError, match="no head has a score"):
        table.assign(mean=np.nan).draw("ranked")


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_map_of_four_layers():
    return statistics(4, 4).draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_map_of_several_stacks():
    return statistics(encoder=(2, 8), cross=(2, 6), decoder=(3, 6)).draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60}, style="dark_background")
def test_map_of_differences_on_a_dark_background():
    return comparison(8, 8).draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_map_with_a_large_font():
    with mpl.rc_context({"font.size": 16}):
        return statistics(3, 4).draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_ranked_differences():
    return comparison(8, 8).draw("ranked").figure
