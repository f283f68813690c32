import dataclasses
import re

import numpy as np
import pytest
from sample_heads import causal_head, signed_head, uniform_head

from gattn.drawing.shown import all_edges, edges_from, readable_edges
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph
from gattn.keep import TopK


def test_a_threshold_is_exact_and_printed():
    head = causal_head(12)
    shown = edges_from(head, 0.1)
    strong = head.attention >= 0.1
    assert shown.edges.tolist() == np.flatnonzero(strong).tolist()
    share = 100 * head.attention[strong].sum() / head.attention.sum()
    expected = f"attention ≥ 0.1: {strong.sum()} of 78 edges, {share:.0f} % of the mass"
    assert shown.caption == expected


def test_all_edges_say_so():
    assert all_edges(causal_head(12)).caption == "all 78 edges"


def test_edges_that_a_keep_dropped_count_as_not_shown():
    caption = all_edges(causal_head(12).keep(TopK(2))).caption
    assert re.match(r"TopK\(2\): 23 of 78 edges, \d+ % of the mass", caption)


@pytest.mark.parametrize("size", [5, 14, 40, 200])
def test_by_default_pictures_stay_readable_and_every_query_keeps_an_edge(size):
    head = causal_head(size)
    shown = readable_edges(head)
    assert len(shown.edges) <= 40 + 3 * size
    assert set(head.query[shown.edges]) == set(range(size))


@pytest.mark.parametrize("size", [12, 30])
def test_uniform_attention_does_not_vanish(size):
    head = uniform_head(size)
    shown = readable_edges(head)
    assert set(head.query[shown.edges]) == set(range(size))


def test_long_uniform_attention_is_thinned_and_says_so():
    shown = readable_edges(uniform_head(200))
    assert 200 < len(shown.edges) <= 2 * (40 + 2 * 200)
    assert re.search(r"a query's strongest \(one in \d+ of them\)", shown.caption)


def test_signed_attention_is_ranked_by_size():
    shown = edges_from(signed_head(), 0.5)
    assert shown.caption.startswith("|attention| ≥ 0.5: 3 of 6 edges")


def test_sinks_follow_the_threshold():
    head = dataclasses.replace(causal_head(4), sink=np.array([0.9, 0.05, 0.4, 0.0]))
    assert edges_from(head, 0.1).sinks.tolist() == [0, 2]
    assert all_edges(head).caption == "all 10 edges; 3 of 4 from the sink"


def test_no_edges():
    head = AttentionGraph.from_dense(np.zeros((3, 3)), TokenGraph.causal(3) - TokenGraph.causal(3))
    assert readable_edges(head).caption == "no edges"
    assert edges_from(causal_head(4), 2.0).caption.endswith("0 of 10 edges, 0 % of the mass")
