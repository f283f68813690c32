import dataclasses
import re

import numpy as np
import pytest
from sample_heads import causal_head, signed_head, uniform_head

from gattn.drawing.chosen.shown import (
    all_edges,
    edges_from,
    readable_edges,
    strongest_of_each,
)
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.keep import TopK


def test_a_threshold_is_exact_and_printed():
    head = causal_head(12)
    shown = edges_from(head, 0.1)
    strong = head.attention >= 0.1
    assert shown.edges.tolist() == np.flatnonzero(strong).tolist()
    share = 100 * head.attention[strong].sum() / head.attention.sum()
    expected = f"attention ≥ 0.1: {strong.sum()} of 78 edges, {share:.0f} % of the attention"
    assert shown.caption == expected


def test_all_edges_say_so():
    assert all_edges(causal_head(12)).caption == "all 78 edges"


def test_edges_that_a_keep_dropped_count_as_not_shown():
    caption = all_edges(causal_head(12).keep(TopK(2))).caption
    assert re.match(r"TopK\(2\): 23 of 78 edges, \d+ % of the attention", caption)


@pytest.mark.parametrize("size", [5, 14, 40, 200])
def test_by_default_pictures_stay_readable_and_every_query_keeps_an_edge(size):
    head = causal_head(size)
    shown = readable_edges(head)
    assert len(shown.edges) <= max(150, 40 + 3 * size)
    assert set(head.query[shown.edges]) == set(range(size))


@pytest.mark.parametrize("size", [12, 30])
def test_uniform_attention_does_not_vanish(size):
    head = uniform_head(size)
    shown = readable_edges(head)
    assert set(head.query[shown.edges]) == set(range(size))


def near_uniform(size):
    noise = np.random.default_rng(0).normal(0, 0.02 / size, (size, size))
    rows = 1 / size + noise
    return AttentionGraph.from_dense(rows / rows.sum(1, keepdims=True))


def test_few_edges_are_all_shown_though_they_are_weak():
    assert readable_edges(near_uniform(9)).caption == "all 81 edges"
    assert readable_edges(near_uniform(12)).caption == "all 144 edges"


@pytest.mark.parametrize("head", [near_uniform(30), near_uniform(200), uniform_head(200)])
def test_long_uniform_attention_is_thinned_and_says_so(head):
    shown = readable_edges(head)
    limit = max(150, 40 + 2 * head.graph.num_queries)
    assert limit / 2 < len(shown.edges) <= 5 * limit
    assert set(head.query[shown.edges]) == set(range(head.graph.num_queries))
    assert len(set(head.key[shown.edges])) > 0.5 * head.graph.num_keys
    assert re.search(
        r"\d+ of (the|its) strongest edges.*: [\d,]+ of [\d,]+ edges, \d+ %", shown.caption
    )


def test_of_queries_that_read_evenly_among_others_some_edges_are_shown():
    rows = np.zeros((100, 100))
    rows[:50] = 0.1 / 99
    rows[:50, 7] = 0.9
    rows[50:] = (0.5 + (37 * np.arange(100) % 100) / 100) / 100
    shown = readable_edges(AttentionGraph.from_dense(rows / rows.sum(1, keepdims=True)))
    said = "attention ≥ 0.02; where a query reads evenly, 5 of its strongest edges: "
    assert shown.caption.startswith(f"{said}300 of 10,000 edges, ")


def test_equal_edges_are_chosen_without_a_pattern():
    """Every k-th edge, or the first of each query, would draw one."""
    head = uniform_head(200)
    shown = readable_edges(head)
    late = shown.edges[head.query[shown.edges] >= 100]
    query, key = head.query[late], head.key[late]
    assert len(late) >= 200
    for places in (key, query - key):
        for step in range(2, 13):
            shares = np.bincount(places % step, minlength=step) / len(late)
            np.testing.assert_allclose(shares, 1 / step, atol=0.09)


def test_the_strongest_of_each_are_the_strongest_but_for_equal_ones():
    size, group = np.random.default_rng(0).random(200), np.repeat(np.arange(10), 20)
    chosen = strongest_of_each(size, group, 3)
    assert np.bincount(group[chosen]).tolist() == [3] * 10
    for n in range(10):
        third = np.sort(size[group == n])[-3]
        assert size[chosen & (group == n)].min() >= third - 0.01
    assert strongest_of_each(np.zeros(4), np.zeros(4), 2).sum() == 0
    assert strongest_of_each(np.zeros(0), np.zeros(0), 2).shape == (0,)


@pytest.mark.parametrize("size", [14, 20, 30])
def test_a_threshold_keeps_half_of_the_mass_where_that_can_be_drawn(size):
    head = near_uniform(size)
    shown = readable_edges(head)
    assert head.attention[shown.edges].sum() > 0.5 * size or size**2 > 4 * 150


def test_queries_below_the_threshold_show_their_strongest_edge():
    rows = np.random.default_rng(0).exponential(size=(60, 60)) ** 2
    rows[0] *= np.where(np.arange(60) == 7, 20, 1)
    head = AttentionGraph.from_dense(rows / rows.sum(1, keepdims=True))
    shown = readable_edges(head)
    assert set(head.query[shown.edges]) == set(range(60))
    for query in range(60):
        of_query = np.flatnonzero(head.query == query)
        assert of_query[head.attention[of_query].argmax()] in shown.edges


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
    assert edges_from(causal_head(4), 2.0).caption.endswith("0 of 10 edges, 0 % of the attention")
