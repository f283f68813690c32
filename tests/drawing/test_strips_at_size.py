"""Selected heads side by side on a figure as wide as a column."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems

import gattn

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
