"""Patches that have a number are seen, however pale, where others have none."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from paper import FONT
from scenes import landscape, picture_trace

import gattn
from gattn import AttentionTrace
from gattn.analysis.reading.heads import by_place
from gattn.drawing.over_image.borders import borders_of
from gattn.heads.stack import Stack


def lines(ax):
    return [c for c in ax.collections if c.get_gid() == "gattn-borders"]


def test_borders_lie_between_patches_with_a_number_and_those_without():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = np.where(rng.random((4, 5)) < 0.4, rng.random((4, 5)), np.nan)
        outside = np.pad(np.isfinite(values), 1)

        def has(row, column, outside=outside):
            return bool(outside[row + 1, column + 1])

        expected = {
            ((column, row), (column, row + 1))
            for row in range(4)
            for column in range(6)
            if has(row, column - 1) != has(row, column)
        } | {
            ((column, row), (column + 1, row))
            for row in range(5)
            for column in range(5)
            if has(row - 1, column) != has(row, column)
        }
        found = [tuple(map(tuple, line)) for line in borders_of(values)]
        assert sorted(found) == sorted(expected)
    assert borders_of(np.ones((2, 3))) == borders_of(np.full((2, 3), np.nan)) == []


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_the_least_of_a_few_kept_edges_differs_from_patches_without_any(theme):
    head = picture_trace()[1, 2].keep(gattn.TopK(3))
    image = np.full((32, 48, 3), 0.5)
    with gattn.style(theme), mpl.rc_context(FONT):
        ax = head.draw_image(image, query=(1, 2), figsize=(3.3, 2.4), legend=False)
        ax.figure.set_dpi(200)
        ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[..., :3].astype(float)
    cells = head.geometry.cells[head.key[head.query == head.geometry.token_at(1, 2)]]
    (borders,) = lines(ax)
    ends = {tuple(map(tuple, line.astype(int))) for line in borders.get_segments()}
    for row, column in (divmod(int(cell), 6) for cell in cells if cell >= 0):
        own = [((column, row + n), (column + 1, row + n)) for n in (0, 1)]
        shown = [side for side in own if side in ends]
        assert shown
        (left, y), (right, _) = ax.transData.transform(shown[0])
        line = pixels[len(pixels) - 1 - round(y), int((left + right) / 2)]
        x, beyond = ax.transData.transform((5.5, 0.5))
        ground = pixels[len(pixels) - 1 - round(beyond), int(x)]
        assert abs(line - ground).max() > 40
    plt.close(ax.figure)


def test_patches_that_are_small_or_all_have_a_number_have_no_borders():
    trace = picture_trace()
    few = trace[1, 2].keep(gattn.TopK(3))
    assert lines(few.draw_image(landscape(), ax=Figure((3.3, 2.4)).add_subplot()))
    assert not lines(few.draw_image(landscape(), ax=Figure((0.4, 0.4)).add_subplot()))
    assert not lines(trace[1, 2].draw_image(landscape(), figsize=(3.3, 2.4)))
    kept = {place[1:]: head.keep(gattn.TopK(3)) for place, head in by_place(trace).items()}
    heads = gattn.drawing.draw_images(
        AttentionTrace({"vit": Stack("vit", kept)}), landscape(), query=(1, 2), figsize=(6.75, 4)
    )
    assert len(lines(heads.axes[0])) == 6
    plt.close("all")
