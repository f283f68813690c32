"""Pictures of many heads are no larger than a page, in any style."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems
from scenes import landscape

import gattn
from gattn import AttentionTrace


def attention(layers, heads, size):
    values = np.random.default_rng(0).dirichlet(np.full(size, 0.3), (layers, heads, size))
    return AttentionTrace.from_arrays(values)


DRAWN = {
    "heads": lambda trace: trace.draw(),
    "two runs": lambda trace: trace.draw(other=trace),
    "a strip of two runs": lambda trace: trace.draw(other=trace, heads=[(1, 1), (2, 0), (2, 1)]),
    "images": lambda trace: trace.on_grid(4, 6, image_size=(32, 48)).draw_image(
        landscape(), query=(1, 2)
    ),
}


@pytest.mark.parametrize("style", ["paper", "dark"])
@pytest.mark.parametrize("name", DRAWN)
def test_pictures_of_many_heads_fit_a_page(name, style):
    trace = attention(8, 12, 25 if name == "images" else 12)
    with gattn.style(style):
        column = mpl.rcParams["figure.figsize"][0]
        figure = DRAWN[name](trace)
    wide, tall = figure.get_size_inches()
    assert wide <= 2 * column + 1e-6
    assert tall <= 2.7 * column + 1e-6
    assert not problems(figure)
    plt.close(figure)


@pytest.mark.parametrize("font", ["DejaVu Sans Mono", "DejaVu Sans"])
def test_texts_around_images_are_as_wide_as_the_font_makes_them(font):
    trace = replace(attention(2, 3, 25), model="illicit lilli tilt " * 5)
    trace = trace.on_grid(4, 6, image_size=(32, 48))
    with mpl.rc_context({"font.family": font, "font.size": 7}):
        figure = trace.draw_image(landscape(), query=(1, 2), figsize=(3.3, 2.6))
    assert not problems(figure)
    plt.close(figure)


def test_two_runs_of_384_heads_fit_a_page_and_more_are_no_larger_than_they_must():
    with gattn.style("paper"):
        column = mpl.rcParams["figure.figsize"][0]
        many, more = (attention(*size, 6) for size in ((24, 16), (32, 32)))
        figures = [trace.draw(other=trace) for trace in (many, more)]
    widths = [figure.get_size_inches()[0] for figure in figures]
    assert widths[0] <= 2 * column + 1e-6
    assert 2 * column < widths[1] <= 3.5 * column
    assert not problems(figures[0])
    for figure in figures:
        plt.close(figure)


@pytest.mark.parametrize("heads", [-1, [0, -1]])
def test_heads_are_not_counted_from_the_end(heads):
    trace = attention(2, 2, 5)
    for draw in (
        lambda: trace.draw(heads=heads),
        lambda: gattn.analysis.rollout(trace, heads=heads),
    ):
        with pytest.raises(gattn.errors.SelectionError, match="count from 0, not from the end"):
            draw()
