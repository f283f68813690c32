"""Graphs over thresholds against NetworkX, and numbers that the original code gives."""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from attentions import TEXT, random_attention
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import topology_table
from gattn.analysis.reading.dropped import edge_errors, largest_dropped
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.shape.topology import THRESHOLDS
from gattn.errors import SelectionError, ShapeError

T = np.array(
    [[0.7, 0.1, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1], [0.05, 0.55, 0.1, 0.3], [0.1, 0.2, 0.3, 0.4]]
)
KEEPS = [gattn.Threshold(0.06), gattn.Threshold(1 / 30), gattn.TopK(2), gattn.TopMass(0.7)]


def by_networkx(matrix, threshold, self_loops, most):
    edges = np.argwhere(matrix >= threshold).tolist()
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(matrix)))
    graph.add_edges_from((key, query) for query, key in edges if self_loops or key != query)
    plain = graph.to_undirected()
    components = nx.number_connected_components(plain)
    cycles = 0
    for _ in nx.simple_cycles(graph):
        cycles += 1
        if cycles == most:
            break
    return {
        "edges": graph.number_of_edges(),
        "mean_degree": sum(degree for _, degree in graph.degree()) / len(matrix),
        "strong_components": nx.number_strongly_connected_components(graph),
        "betti0": components,
        "betti1": plain.number_of_edges() - len(matrix) + components,
        "cycles": cycles,
    }


def test_the_known_numbers_of_the_original_code():
    found = topology_table(T, self_loops=True, max_cycles=500).loc[(0, 0)]
    columns = ["strong_components", "edges", "cycles", "betti0", "betti1"]
    for threshold, known in {
        0.1: [1, 15, 19, 1, 7],
        0.25: [2, 8, 5, 1, 3],
        0.5: [4, 2, 1, 3, 1],
    }.items():
        assert found.loc[threshold, columns].tolist() == known
    without = topology_table(T).loc[(0, 0), "betti1"]
    assert without[[0.1, 0.25, 0.5]].tolist() == [3, 0, 0]


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("most", [500, 3])
def test_networkx_counts_the_same(causal, self_loops, most):
    attention = random_attention(2, 3, 7, causal)
    found = topology_table(attention, self_loops=self_loops, max_cycles=most)
    assert found.index.names == ["layer", "head", "threshold"]
    assert len(found) == 2 * 3 * len(THRESHOLDS)
    for layer, head, threshold in found.index:
        expected = by_networkx(attention[layer, head], threshold, self_loops, most)
        assert found.loc[(layer, head, threshold)].to_dict() == expected


@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(0, 10**6), st.floats(0.01, 0.99))
def test_networkx_counts_the_same_at_any_threshold(tokens, seed, threshold):
    attention = random_attention(1, 1, tokens, seed=seed)
    found = topology_table(attention, [threshold], max_cycles=50).iloc[0].to_dict()
    assert found == by_networkx(attention[0, 0], threshold, False, 50)


def test_an_edge_at_the_threshold_is_there():
    assert topology_table(T, [0.55]).iloc[0]["edges"] == 1
    assert topology_table(T, [np.nextafter(0.55, 1)]).iloc[0]["edges"] == 0


def test_single_precision_is_compared_as_it_is():
    matrix = np.full((3, 3), 0.7, np.float32)  # 0.699999988
    holders = [matrix, torch.from_numpy(matrix), gattn.AttentionGraph.from_dense(matrix)]
    for attention in holders:
        assert topology_table(attention, [0.7]).iloc[0]["edges"] == 0
        assert topology_table(attention, [np.float32(0.7)]).iloc[0]["edges"] == 6


@settings(max_examples=25)
@given(st.floats(0.01, 1), st.integers(-2, 2), st.sampled_from([torch.float32, torch.bfloat16]))
def test_edges_near_the_threshold_are_the_same_in_any_precision(value, steps, kind):
    near = torch.full((2, 2), value).to(kind)
    threshold = value + steps * 2e-8
    found = topology_table(near, [threshold])
    pd.testing.assert_frame_equal(found, topology_table(near.double(), [threshold]))


def test_a_causal_head_has_no_cycles_and_no_strong_ties():
    found = topology_table(gattn.capture(TEXT), max_cycles=10)
    assert (found["cycles"] == 0).all()
    assert (found["strong_components"] == 13).all()
    assert (found["betti0"] >= 1).all()
    assert found["edges"].max() > 13


def test_many_cycles_are_not_walked():
    # A complete graph of 200 tokens has more simple cycles than atoms are in the world.
    found = topology_table(np.full((200, 200), 0.1), [0.1], max_cycles=500).iloc[0]
    assert found["cycles"] == 500
    assert found["betti1"] == 200 * 199 / 2 - 200 + 1


def test_traces_arrays_and_labelled_arrays_give_the_same():
    trace = gattn.capture(TEXT)
    dense = np.stack([[trace[n, h].to_dense() for h in range(4)] for n in range(4)])
    labelled = xr.DataArray(dense, dims=("layer", "head", "query", "key"))
    found = topology_table(trace)
    assert "embedded" in found.computed_from
    for attention in (dense, labelled, torch.from_numpy(dense)):
        np.testing.assert_array_equal(topology_table(attention), found)
    alone = topology_table(trace[2, 1])
    np.testing.assert_array_equal(alone, found.loc[[2]].xs(1, level="head"))


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("keep", KEEPS)
def test_half_kept_heads_are_right_or_unknown(keep, self_loops):
    whole = topology_table(gattn.capture(TEXT), self_loops=self_loops)
    found = topology_table(gattn.capture(TEXT, keep=keep), self_loops=self_loops)
    known = found["edges"].notna()
    assert 0 < known.sum() < len(found)
    np.testing.assert_array_equal(found[known], whole[known])
    assert found[~known].isna().all(axis=None)
    assert any(f"{(~known).sum()} graphs are unknown" in note for note in found.notes)


def test_above_its_threshold_all_of_a_head_is_known():
    found = topology_table(gattn.capture(TEXT, keep=gattn.Threshold(0.05)))
    known = found["edges"].notna().groupby("threshold").all()
    assert known.to_dict() == {t: t >= 0.05 for t in THRESHOLDS}


def test_a_threshold_between_digits_is_known_exactly():
    matrix = np.full((4, 4), 0.3333332)
    head = gattn.AttentionGraph.from_dense(matrix).keep(gattn.Threshold(1 / 3))
    assert topology_table(head, [0.3333331, 0.3333332]).isna().all(axis=None)
    assert topology_table(head, [0.333333333]).isna().all(axis=None)
    assert topology_table(head, [1 / 3]).iloc[0]["edges"] == 0


def test_dropped_self_loops_matter_where_self_loops_count():
    trace = gattn.capture(TEXT)
    head = trace[0, 1].without_self_loops()
    assert topology_table(head).notna().all(axis=None)
    np.testing.assert_array_equal(topology_table(head), topology_table(trace[0, 1]))
    assert topology_table(head, self_loops=True).isna().any(axis=None)


@pytest.mark.parametrize("keep", KEEPS)
def test_no_dropped_edge_has_more_than_the_bound(keep):
    whole, kept = gattn.capture(TEXT), gattn.capture(TEXT, keep=keep)
    bound, rows = largest_dropped(layers_of(kept), self_loops=True), edge_errors(layers_of(kept))
    for layer, head in np.ndindex(4, 4):
        missing = whole[layer, head].to_dense() * (kept[layer, head].to_dense() == 0)
        assert missing.max() <= bound[layer, head] + 1e-7
        assert (missing.max(1) <= rows[layer, head].numpy() + 1e-6).all()
    assert largest_dropped(layers_of(whole)).max() < 1e-6
    assert not largest_dropped(layers_of(T)).any()


@pytest.mark.parametrize(
    ("attention", "options", "error", "message"),
    [
        (-T, {}, ShapeError, ">= 0"),
        (T[:2], {}, SelectionError, "queries and keys"),
        (T, {"thresholds": [0.0, 0.1]}, SelectionError, "above 0"),
        (T, {"thresholds": []}, SelectionError, "above 0"),
        (T, {"thresholds": [np.nan]}, SelectionError, "above 0"),
        (T, {"thresholds": [0.1, np.nan, 0.5]}, SelectionError, "above 0"),
        (T, {"thresholds": 0.1}, SelectionError, "as in \\[0.1, 0.5\\], not 0.1"),
        (T, {"thresholds": ["a"]}, SelectionError, "above 0"),
        (T, {"max_cycles": 0}, SelectionError, "whole number ≥ 1"),
        (T, {"max_cycles": 2.5}, SelectionError, "max_cycles must be a whole number"),
        (T, {"max_cycles": True}, SelectionError, "max_cycles must be a whole number"),
    ],
)
def test_what_has_no_topology(attention, options, error, message):
    with pytest.raises(error, match=message):
        topology_table(attention, **options)


def test_it_draws_a_column_by_head_and_threshold():
    found = topology_table(gattn.capture(TEXT))
    ax = found.draw()
    np.testing.assert_array_equal(
        ax.images[0].get_array(), found["betti1"].to_numpy().reshape(16, len(THRESHOLDS))
    )
    assert [text.get_text() for text in ax.get_xticklabels()] == [f"{t:g}" for t in THRESHOLDS]
    assert ax.get_yticklabels()[0].get_text() == "0.0"
    given_ax = plt.figure().add_subplot()
    assert found.loc[[1]].draw("edges", ax=given_ax) is given_ax
    assert given_ax.images[0].get_array().shape == (4, len(THRESHOLDS))
    with pytest.raises(SelectionError, match="no column 'cycles'"):
        found.draw("cycles")
    plt.close("all")
