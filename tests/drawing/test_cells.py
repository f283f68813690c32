"""Pooled cells against averages of dense matrices."""

import dataclasses

import numpy as np
import pytest
from sample_heads import causal_head

import gattn
from gattn.drawing.matrices.cells import EdgeCells
from gattn.errors import SelectionError


def averaged(matrix, rows, columns):
    """Average by repeating every number until all areas are whole."""
    high, wide = matrix.shape
    whole = matrix.repeat(rows, 0).repeat(columns, 1)
    return whole.reshape(rows, high, columns, wide).mean((1, 3))


@pytest.mark.parametrize("size", [(10, 10), (7, 5), (3, 10), (1, 1)])
def test_the_mean_of_cells_is_that_of_the_dense_matrix(size):
    head = causal_head(10)
    found = EdgeCells.of(head).at(*size)
    np.testing.assert_allclose(np.nan_to_num(found), averaged(head.to_dense(), *size), atol=1e-12)
    has_edge = averaged(np.tril(np.ones((10, 10))), *size) > 0
    np.testing.assert_array_equal(np.isfinite(found), has_edge)


def test_what_is_drawn_sums_to_the_attention_at_any_size():
    head = causal_head(50)
    for size in (50, 37, 12, 3):
        found = EdgeCells.of(head).at(size, size)
        assert np.nansum(found) * (50 / size) ** 2 == pytest.approx(50)


def test_the_largest_of_cells_is_by_its_size_and_keeps_its_sign():
    dense = np.array([[0.1, -0.9, 0.2, 0.0], [0.3, 0.4, 0.0, 0.0]])
    head = gattn.AttentionGraph.from_dense(dense, gattn.TokenGraph.bipartite(2, 4))
    assert EdgeCells.of(head, pool="max").at(1, 2).tolist() == [[-0.9, 0.2]]


def test_scores_are_averaged_over_the_edges_that_there_are():
    head = causal_head(4)
    head = dataclasses.replace(head, score=np.arange(1.0, 11.0))
    found = EdgeCells.of(head, values="score").at(2, 2)
    np.testing.assert_allclose(found[0, 0], np.mean([1, 2, 3]))
    np.testing.assert_allclose(found[1, 1], np.mean([6, 9, 10]))
    assert np.isnan(found[0, 1])


def test_an_edge_of_no_attention_is_drawn_and_a_missing_one_is_not():
    head = gattn.AttentionGraph.from_edges([(0, 0), (0, 1)], [0.0, 1.0], num_tokens=2)
    found = EdgeCells.of(head).at(2, 2)
    assert found[0, 0] == 0
    assert np.isnan(found[0, 1])


def test_a_sink_is_a_column_as_wide_as_can_be_seen():
    head = causal_head(100)
    head = dataclasses.replace(head, sink=np.linspace(0, 1, 100))
    cells = EdgeCells.of(head)
    assert cells.shape == (100, 106)
    found = cells.at(100, 106)
    assert np.isnan(found[:, 100:103]).all()
    np.testing.assert_array_equal(found[:, 103:], np.tile(head.sink[:, None], 3))


def test_another_way_to_pool_is_refused():
    with pytest.raises(SelectionError, match="pool is 'mean' or 'max', not 'median'"):
        causal_head(3).draw("matrix", pool="median")
