"""Heads with far more keys than queries, or the other way round, fill a figure."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems
from paper import FONT, trace

from gattn import AttentionGraph, AttentionTrace, TokenGraph
from gattn.errors import ShapeError
from gattn.heads.stack import Stack


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 3)])
@pytest.mark.parametrize(("layers", "queries", "keys"), [(1, 6, 100), (1, 6, 30), (3, 100, 6)])
def test_matrices_that_are_no_squares_fill_a_figure(layers, queries, keys, size):
    rng = np.random.default_rng(0)
    graph = TokenGraph.bipartite(queries, keys)
    heads = {
        (layer, head): AttentionGraph.from_dense(
            rng.dirichlet(np.ones(keys), queries), graph, layer=layer, head=head
        )
        for layer, head in np.ndindex(layers, 4)
    }
    with mpl.rc_context(FONT):
        figure = AttentionTrace({"cross": Stack("cross", heads)}).draw(figsize=size)
        assert not problems(figure)
    extents = np.array([image.get_extent() for image in figure.axes[0].images])
    area = np.ptp(extents[:, :2], axis=1) * np.ptp(extents[:, 2:], axis=1)
    assert area.sum() > 0.2 * size[0] * size[1]
    plt.close(figure)


@pytest.mark.parametrize("layers", [12, 24])
def test_matrices_of_many_layers_are_as_wide_as_the_figure_lets_them_be(layers):
    """Their cells are not wider than high."""
    rng = np.random.default_rng(0)
    graph = TokenGraph.bipartite(6, 100)
    heads = {
        place: AttentionGraph.from_dense(rng.dirichlet(np.ones(100), 6), graph)
        for place in np.ndindex(layers, 8)
    }
    with mpl.rc_context(FONT):
        figure = AttentionTrace({"cross": Stack("cross", heads)}).draw(figsize=(6.75, 3))
        assert not problems(figure)
    extents = np.array([image.get_extent() for image in figure.axes[0].images])
    plt.close(figure)
    wide, high = np.ptp(extents[:, :2], axis=1), np.ptp(extents[:, 2:], axis=1)
    assert (wide / 100 <= high / 6 + 1e-6).all()
    assert np.allclose(wide, wide[0])
    assert wide[:8].sum() > 0.6 * 6.75


def test_a_figure_without_room_is_to_be_higher_if_that_is_enough():
    """The width of a column is the journal's; what is said to have room has some."""
    with mpl.rc_context(FONT):
        for shape, size in (((30, 12), (3.3, 1.5)), ((2, 120), (3.3, 2.4))):
            run = trace(*shape)
            with pytest.raises(ShapeError, match="give one of about") as told:
                run.draw(figsize=size)
            wide, tall = map(float, re.findall(r"about ([\d.]+) x ([\d.]+)", str(told.value))[0])
            assert (wide == 3.3) == (shape == (30, 12))
            plt.close(run.draw(figsize=(wide, tall)))
