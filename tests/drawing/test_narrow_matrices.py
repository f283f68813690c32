"""Heads with far more keys than queries, or the other way round, fill a figure."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems
from paper import FONT

from gattn import AttentionGraph, AttentionTrace, TokenGraph
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
