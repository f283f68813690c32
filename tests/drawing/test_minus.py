"""Negative cells are marked wherever colours run around zero: grey does not tell them apart."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scenes import landscape

import gattn
from gattn import AttentionTrace

SHARE = 0.05


def signed(size=4):
    values = np.random.default_rng(0).normal(size=(1, 1, size, size))
    with pytest.warns(UserWarning, match="never negative"):
        return values[0, 0], AttentionTrace.from_arrays(values)


def marked(figure):
    """Return the middles of all marked cells, in shares of the first axes' picture."""
    figure.canvas.draw()
    ax = figure.axes[0]
    patches = [patch for patch in ax.patches if patch.get_gid() == "gattn-negative"]
    boxes = [box for patch in patches for box in patch.get_path().to_polygons()]
    return np.array([(box.min(0) + box.max(0)) / 2 for box in boxes])


def cells_of(places, box, shape):
    """Return which cells of a matrix, drawn from left to right and downwards, places lie in."""
    (left, right, low, high), (rows, columns) = box, shape
    found = np.zeros(shape, dtype=bool)
    column = (places[:, 0] - left) / (right - left) * columns
    row = (high - places[:, 1]) / (high - low) * rows
    found[np.floor(row).astype(int), np.floor(column).astype(int)] = True
    return found


def is_low(values):
    return values < -SHARE * max(1, np.abs(values).max())


def test_a_signed_head_has_minus_signs_as_a_matrix_and_among_others():
    values, trace = signed()
    for figure in (trace[0, 0].draw("matrix").figure, trace.draw(heads=[(0, 0)])):
        (image,) = figure.axes[0].images
        left, right, bottom, top = image.get_extent()
        found = cells_of(marked(figure), (left, right, bottom, top), values.shape)
        assert np.array_equal(found, is_low(values))


def test_the_change_of_two_runs_has_minus_signs_where_attention_fell():
    before, after = np.random.default_rng(1).dirichlet(np.ones(5), (2, 1, 1, 5))
    one, other = (AttentionTrace.from_arrays(values) for values in (before, after))
    figure = one.draw(other=other, heads=[(0, 0)])
    change = (after - before)[0, 0]
    image = figure.axes[0].images[-1]
    found = cells_of(marked(figure), image.get_extent(), change.shape)
    assert np.array_equal(found, change < -SHARE)
    texts = [text.get_text().replace("\n", " ") for text in figure.axes[0].texts]
    assert any("marked −: below −0.05" in text for text in texts)
    same = one.draw(other=one, heads=[(0, 0)])
    assert not len(marked(same))
    assert not any("marked" in text.get_text() for text in same.axes[0].texts)


def test_numbers_over_an_image_have_minus_signs_where_they_are_negative():
    values, trace = signed(16)
    numbers = values[3].reshape(4, 4)
    alone = gattn.drawing.draw_image(numbers, landscape(), fit="stretch").figure
    shown = trace.on_grid(4, 4, image_size=(64, 64))
    many = shown.draw_image(landscape(), query=(0, 3), fit="stretch")
    for figure in (alone, many):
        image = figure.axes[0].images[1]
        marks = (one for one in figure.axes[0].patches if one.get_gid() == "gattn-negative")
        assert min(mark.get_zorder() for mark in marks) > image.get_zorder()
        found = cells_of(marked(figure), image.get_extent(), numbers.shape)
        assert np.array_equal(found, numbers < -SHARE * np.abs(numbers).max())


def test_cells_too_small_to_be_seen_have_no_minus_signs():
    figure = signed(64)[1].draw(heads=[(0, 0)], figsize=(3.3, 2.2))
    assert not len(marked(figure))


def causal():
    """Two tokens, of which the first reads itself alone."""
    return AttentionTrace.from_arrays(np.array([[[[1.0, 0.0], [0.5, 0.5]]]]))


def pixels(figure):
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].mean(-1)


@pytest.mark.parametrize("shade", ["dark", "talk"])
def test_hatching_is_about_as_faint_on_any_ground(shade):
    with gattn.style(shade):
        ax = gattn.analysis.rollout(causal()).draw(figsize=(4, 4))
        ground = 255 * np.mean(mpl.colors.to_rgb(mpl.rcParams["axes.facecolor"]))
    found = pixels(ax.figure)
    (left, _), (right, high) = ax.get_window_extent().get_points().astype(int)
    top, side = len(found) - high, (right - left) // 3
    empty = found[top + 5 : top + side, right - side : right - 5]
    assert empty.std() > 5, "it is hatched"
    assert np.abs(empty - ground).max() < 90


@pytest.mark.parametrize("shade", ["dark", "paper"])
@pytest.mark.parametrize("tokens", [4, 30])
def test_signs_are_told_apart_in_grey_at_the_width_of_a_column(shade, tokens):
    values = np.where(np.indices((tokens, tokens)).sum(0) % 2, -0.7, 0.7)
    with pytest.warns(UserWarning, match="never negative"):
        trace = AttentionTrace.from_arrays(values[None, None])
    with gattn.style(shade):
        ax = trace[0, 0].draw("matrix", figsize=(3.3, 2.4))
    ax.figure.set_dpi(200)
    found = pixels(ax.figure)
    (left, low), (right, high) = ax.get_window_extent().get_points()
    middles = (np.arange(tokens) + 0.5) / tokens
    rows = (len(found) - high + middles * (high - low)).astype(int)
    columns = (left + middles * (right - left)).astype(int)
    seen = found[np.ix_(rows, columns)]
    assert np.abs(seen[values > 0].mean() - seen[values < 0]).min() > 50


@pytest.mark.parametrize("layout", [None, "constrained"])
def test_cells_have_signs_where_their_numbers_have_no_room(layout):
    from test_draw_effects import cuts

    with mpl.rc_context({"font.size": 7}):
        figure = plt.figure(figsize=(3.3, 2.2), layout=layout)
        ax = cuts(4, 4).draw("heads", ax=figure.add_subplot())
        for size, has_room in (((3.3, 2.2), True), ((1.6, 1.2), False), ((3.3, 2.2), True)):
            figure.set_size_inches(size)
            assert bool(len(marked(figure))) == (not has_room)
            assert any(text.get_gid() == "gattn-numbers" for text in ax.texts) == has_room
    plt.close(figure)
