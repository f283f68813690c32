"""Cells are squares wherever both sides of a matrix are alike, as in matrices of attention."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from meeting import problems
from paper import PICTURES, effects, trace

import gattn
from gattn.drawing.results.arrays import draw_array

ALIKE = {
    "received": (13, 13),
    "effects, matrix": (13, 13),
    "effects, heads": (4, 4),
    "composition": (12, 12),
    "matrix, cross": (6, 8),
}
"""Pictures of matrices between tokens, or between layers and heads, with their sizes."""


def sides(ax, shape):
    """The height and width of a cell in pixels, as drawn."""
    ax.figure.draw_without_rendering()
    return ax.bbox.height / shape[0], ax.bbox.width / shape[1]


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 3), (3.3, 4.5)])
@pytest.mark.parametrize("name", ALIKE)
def test_cells_between_like_sides_are_squares(name, size, layout):
    ax = Figure(size, layout=layout).add_subplot()
    PICTURES[name](ax)
    high, wide = sides(ax, ALIKE[name])
    assert high == pytest.approx(wide)
    assert not problems(ax.figure)


def test_squares_fill_a_figure_of_their_own():
    for ax in (gattn.analysis.rollout(trace()).draw(), effects("matrix").draw("matrix")):
        high, wide = sides(ax, (13, 13))
        assert high == pytest.approx(wide)
        assert ax.bbox.width > 0.6 * ax.figure.bbox.width
        assert ax.bbox.height > 0.6 * ax.figure.bbox.height
        plt.close(ax.figure)


def test_layers_by_heads_are_squares_and_layers_by_tokens_are_not():
    attention = np.random.default_rng(0).dirichlet(np.ones(9), (4, 6, 9))
    for axes, are_square in ((("layer", "head"), True), (("layer", "token"), False)):
        array = xr.DataArray(attention[..., 0, 0], dims=axes, name="share")
        ax = draw_array(array, ax=Figure((6, 3)).add_subplot())
        high, wide = sides(ax, (4, 6))
        assert (abs(wide - high) < 1e-6) == are_square


def test_a_user_may_stretch_cells():
    ax = gattn.analysis.rollout(trace()).draw(ax=Figure((6, 3)).add_subplot(), aspect="auto")
    high, wide = sides(ax, (13, 13))
    assert wide > 1.5 * high
