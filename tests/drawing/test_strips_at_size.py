"""Selected heads side by side on a figure as wide as a column."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems

import gattn
from gattn.drawing.canvas.head_labels import shorter

TEXT = "The river tall green lamp river tall green lamp river tall green"


@pytest.fixture(scope="module")
def trace():
    return gattn.capture(TEXT)


def panels(figure):
    """The boxes of the matrices in inches: from where to where."""
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    return np.array([image.get_extent() for image in sheet.images])


@pytest.mark.parametrize("heads", [[(1, 1)], [(1, 1), (2, 0)]])
def test_heads_in_a_column_fill_it_and_their_tokens_are_named(trace, heads):
    with gattn.style("paper"):
        figure = trace.draw(heads=heads, figsize=(3.3, 2.2))
    assert not problems(figure)
    found = panels(figure)
    wide, high = found[0][1] - found[0][0], found[0][3] - found[0][2]
    assert min(wide, high) > 0.75
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    texts = [text.get_text() for text in sheet.texts]
    assert sum(text.endswith("river") for text in texts) >= 2 + 2 * len(heads)
    plt.close(figure)


def test_two_heads_and_what_stands_beside_them_are_as_wide_as_the_column(trace):
    with gattn.style("paper"):
        figure = trace.draw(heads=[(1, 1), (2, 0)], figsize=(3.3, 2.2))
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    figure.draw_without_rendering()
    (bar,) = sheet.child_axes
    right = bar.get_tightbbox().x1 / figure.dpi
    assert 2.9 < right <= 3.3
    plt.close(figure)


def names_above(figure):
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    return [" ".join(text.get_text().split()) for text in sheet.texts]


@pytest.mark.parametrize("size", [(3.3, 2.2), (3.3, 2.4), (6.75, 2.2)])
def test_labels_above_heads_are_shortened_by_what_they_mean_and_not_cut(trace, size):
    told = trace.summary()["label"]
    with mpl.rc_context({"font.size": 7}):
        for heads in (None, [(1, 1), (2, 0), (2, 1)]):
            figure = trace.draw(label="label", heads=heads, figsize=size)
            assert not problems(figure)
            said = names_above(figure)
            places = heads or [(n, h) for n in range(4) for h in range(4)]
            for place in places:
                first = told["decoder", *place].split(", ")[0].removesuffix(" (sink)")
                assert [one for one in said if re.search(rf"\b{re.escape(first)}\b", one)]
            assert not [one for one in said if "have room" in one]


def test_labels_have_their_numbers_where_the_figure_is_wide(trace):
    with mpl.rc_context({"font.size": 7}):
        figure = trace.draw(label="label", heads=[(1, 1), (2, 2), (3, 1)], figsize=(6.75, 2.2))
    assert [one for one in names_above(figure) if one.endswith("previous token, 1.00")]
    assert shorter("first token (sink), 0.48; even") == (
        "first token (sink), 0.48; even",
        "first token (sink); even",
        "first token (sink)\xa0…",
        "first token\xa0…",
    )
    assert shorter("mixed") == ("mixed",)
    assert shorter("(mine), 0.5") == ("(mine), 0.5", "(mine)")


def test_heads_of_a_wide_low_grid_stand_as_far_apart_as_their_names_need(trace):
    with mpl.rc_context({"font.size": 7}):
        plain = trace.draw(figsize=(6.75, 2.2))
        named = trace.draw(figsize=(6.75, 2.2), label="label")
    assert not problems(named)
    steps = [np.diff(np.unique(panels(figure)[:, 0].round(3)))[0] for figure in (plain, named)]
    assert steps[1] > 1.3 * steps[0]


def test_a_label_a_little_wider_than_its_place_is_not_cut():
    from paper import trace

    figure = trace().draw(label="label", figsize=(3.3, 2.4))
    assert "induction" in names_above(figure)
    assert not any("…" in name for name in names_above(figure))
    assert not problems(figure)
    plt.close(figure)


def columns_of(figure):
    return len(np.unique(panels(figure)[:, 0].round(3)))


def test_sorted_heads_stand_in_as_many_columns_as_make_them_large(trace):
    with mpl.rc_context({"font.size": 7}):
        found = [trace.draw(sort="induction", figsize=size) for size in ((6.75, 3), (3.3, 5))]
        assert not [said for figure in found for said in problems(figure)]
    wide, high = map(columns_of, found)
    assert wide > 4 >= high
    plt.close("all")


def test_a_column_has_fewer_heads_side_by_side_where_they_are_many():
    from paper import trace as made

    with mpl.rc_context({"font.size": 7}):
        figure = made(12, 12).draw(sort="induction", figsize=(3.3, 6.6))
        assert not problems(figure)
    assert columns_of(figure) < 12
    plt.close(figure)


@pytest.mark.parametrize("font", [7, 10])
@pytest.mark.parametrize("size", [(3.3, 2.3), (3.3, 3.3), (3.3, 5), (6.75, 3)])
@pytest.mark.parametrize("options", [{}, {"sort": "induction"}])
def test_captions_say_how_many_names_are_whole(trace, size, font, options):
    with mpl.rc_context({"font.size": font}):
        figure = trace.draw(label="label", figsize=size, **options)
        assert not problems(figure)
    (sheet,) = [ax for ax in figure.axes if ax.get_gid() == "gattn-sheet"]
    caption = " ".join(
        next(t for t in sheet.texts if t.get_gid() == "gattn-caption").get_text().split()
    )
    cut = [text for text in sheet.texts if re.search(r"\w…", text.get_text())]
    said = re.search(r"(\d+) of 16 names are whole", caption)
    assert (16 - int(said[1]) if said else 0) >= len(cut)
    assert said or not cut
    plt.close(figure)


def test_no_name_is_measured_twice_while_heads_are_laid_out(trace, monkeypatch):
    from gattn.drawing.many_heads import grid

    measured = []

    def width_of(text):
        measured.append(text)
        return 0.5 * len(text)

    monkeypatch.setattr(grid, "width_of", width_of)
    plt.close(trace.draw(label="label", figsize=(3.3, 3.3)))
    assert len(measured) > 16
    assert len(measured) == len(set(measured))


@pytest.mark.parametrize("label", [None, "label"])
def test_tokens_give_way_where_they_would_shrink_the_matrices_of_a_low_strip(trace, label):
    with mpl.rc_context({"font.size": 7}):
        figure = trace.draw(heads=[(1, 1), (2, 0), (2, 1)], label=label, figsize=(3.3, 1.6))
    assert not problems(figure)
    found = panels(figure)
    assert (found[:, 3] - found[:, 2] > 0.33 * 1.6).all()
    plt.close(figure)


@pytest.mark.parametrize("size", [(3.3, 3), (3.3, 2), (6.75, 3)])
def test_heads_of_a_given_figure_stand_near_each_other(trace, size):
    with mpl.rc_context({"font.size": 7}):
        figure = trace.draw(figsize=size)
    assert not problems(figure)
    left, right, low, high = panels(figure).reshape(4, 4, 4).transpose(2, 0, 1)
    side = (right - left).max()
    assert (left[:, 1:] - right[:, :-1]).max() < 0.4 * side
    assert (low[:-1] - high[1:]).max() < 0.4 * side
    plt.close(figure)
