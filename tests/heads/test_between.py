"""Parts of a text, and what one reads of another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import gattn
from gattn.errors import SelectionError, ShapeError
from gattn.heads import steps

SEGMENTS = (0, 0, 0, 1, 1, 0)


@pytest.fixture
def head():
    torch.manual_seed(0)
    dense = torch.rand(6, 6).softmax(-1).numpy()
    return gattn.AttentionGraph.from_dense(dense, tokens=list("abcdef"), segments=SEGMENTS)


def test_spans_are_the_runs_of_segments(head):
    assert head.spans == [(0, 3), (3, 5), (5, 6)]
    assert replace(head, segments=()).spans == []
    assert head.subgraph([1, 3]).spans == [(0, 1), (1, 2)]


@pytest.mark.parametrize("queries", [(0, 3), (3, 5), (0, 6)])
@pytest.mark.parametrize("keys", [(0, 3), (3, 5), (2, 4)])
def test_between_is_a_block_of_the_matrix(head, queries, keys):
    dense = head.to_dense()
    (a, b), (c, d) = queries, keys
    expected = np.zeros_like(dense)
    expected[a:b, c:d] = dense[a:b, c:d]
    part = head.between(queries, keys)
    assert np.array_equal(part.to_dense(), expected)
    assert np.array_equal(part.total_mass, head.total_mass)
    assert part.kept_mass == pytest.approx(expected.sum(1))
    assert part.dropped_edges.sum() == 36 - (b - a) * (d - c)
    assert part.tokens == head.tokens


def test_positions_of_queries_count_from_the_offset():
    graph = gattn.TokenGraph.causal(2, num_keys=5, query_offset=3)
    dense = np.tri(2, 5, 3, dtype=np.float32) / 5
    late = gattn.AttentionGraph.from_dense(dense, graph)
    part = late.between((3, 4), (0, 2))
    assert list(zip(part.query, part.key, strict=True)) == [(0, 0), (0, 1)]
    assert late.between((0, 3), (0, 5)).graph.num_edges == 0


def test_between_queries_and_keys_of_two_texts():
    cross = gattn.AttentionGraph.from_dense(np.full((2, 4), 0.25), query_tokens=("x", "y"))
    part = cross.between((1, 2), (2, 4))
    assert list(zip(part.query, part.key, strict=True)) == [(1, 2), (1, 3)]
    with pytest.raises(SelectionError, match="within the 2 tokens"):
        cross.between((1, 3), (2, 4))


def test_it_says_which_edges_were_kept_and_reads_it_back(head, tmp_path):
    part = head.between((0, 3), (3, 5))
    assert part.kept_by == (steps.Between((0, 3), (3, 5)),)
    assert str(part.kept_by[0]) == "queries 0:3 on keys 3:5"
    assert steps.from_text(steps.to_text(part.kept_by)) == part.kept_by
    gattn.save(part, tmp_path / "part.gattn")
    again = gattn.load(tmp_path / "part.gattn")
    assert (again.kept_by, again.segments) == (part.kept_by, SEGMENTS)


@pytest.mark.parametrize("wrong", [(0, 7), (3, 3), (4, 2), (-2, 3), "ab", (1, 2, 3), 4])
def test_what_is_no_span_is_refused(head, wrong):
    with pytest.raises(SelectionError, match=r"[Ss]pan"):
        head.between(wrong, (0, 3))
    with pytest.raises(SelectionError, match=r"[Ss]pan"):
        head.between((0, 3), wrong)


def test_segments_go_with_the_tokens(head, tmp_path):
    assert head.subgraph(["a", "d", "f"]).segments == (0, 1, 0)
    assert head.merge([(0, 2), (3, 5)]).segments == (0, 0, 1, 0)
    assert head.merge([(2, 4)]).segments == ()
    assert head.keep(gattn.TopK(2)).segments == SEGMENTS
    assert gattn.AttentionGraph.from_networkx(head.to_networkx()).segments == SEGMENTS
    assert gattn.AttentionGraph.from_pandas(head.to_pandas()).segments == SEGMENTS
    assert (
        gattn.AttentionGraph.from_networkx(replace(head, segments=()).to_networkx()).segments == ()
    )
    with pytest.raises(ShapeError, match="segments must have 6 entries, not 2"):
        replace(head, segments=(0, 1))
    with pytest.raises(ShapeError, match="tuple of int"):
        replace(head, segments=("a",) * 6)
