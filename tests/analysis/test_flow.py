import itertools
import re

import networkx as nx
import numpy as np
import pytest
import torch
from attentions import random_attention, trace_of
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import flow, rollout
from gattn.errors import SelectionError, ShapeError
from gattn.keep import Threshold, TopK

FIRST = [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]]
SECOND = [[0.2, 0.2, 0.6], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]]
PAPER = np.array([FIRST, SECOND])[:, None]
RAW = [[0.775, 0.375, 0.45], [0.325, 0.975, 0.3], [0.475, 0.325, 0.8]]
SHARES = [[0.484375, 0.234375, 0.28125], [0.203125, 0.609375, 0.1875], [0.296875, 0.203125, 0.5]]


def unrolled(attention, reduce=np.mean, residual=0.5):
    """Build the paper's graph with NetworkX, edge by edge."""
    graph = nx.DiGraph()
    for depth, layer in enumerate(attention):
        one = (1 - residual) * reduce(layer, axis=0) + residual * np.eye(layer.shape[-1])
        for (i, j), weight in np.ndenumerate(one / one.sum(1, keepdims=True)):
            graph.add_nodes_from([(depth, j), (depth + 1, i)])
            if weight > 0:
                graph.add_edge((depth, j), (depth + 1, i), capacity=float(weight))
    return graph


def by_networkx(attention, **options):
    graph, tokens = unrolled(attention, **options), range(attention.shape[-1])
    method = nx.algorithms.flow.preflow_push
    return np.array(
        [
            [
                nx.maximum_flow_value(graph, (0, j), (len(attention), i), flow_func=method)
                for j in tokens
            ]
            for i in tokens
        ]
    )


def test_the_fixture_of_the_original_code():
    found = flow(PAPER)
    assert found.dims == ("query", "key")
    np.testing.assert_allclose(found, RAW, atol=3e-9)
    shares = found / found.sum("key")
    np.testing.assert_allclose(shares, SHARES, atol=3e-9)
    assert "3 tokens" in found.computed_from
    assert found.notes == ["capacities were rounded down: flows lack at most 1e-09"]
    assert found.draw().get_title().startswith("flow")


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5), st.booleans())
@settings(max_examples=20)
def test_networkx_finds_the_same(seed, layers, tokens, causal):
    attention = random_attention(layers, 2, tokens, seed=seed, sharp=3, causal=causal)
    found = flow(attention)
    expected = by_networkx(attention)
    lack = expected - found.to_numpy()
    assert (lack >= -1e-12).all()
    assert (lack <= found.error_bound.to_numpy() + 1e-12).all()
    assert (found.error_bound < 1e-7).all()


@pytest.mark.parametrize("residual", [0, 0.2, 1])
@pytest.mark.parametrize("heads", ["max", "min"])
def test_other_reductions_and_shares(heads, residual):
    attention = random_attention(3, 3, 4)
    found = flow(attention, reduce=heads, residual=residual)
    reduce = {"max": np.max, "min": np.min}[heads]
    expected = by_networkx(attention, reduce=reduce, residual=residual)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_the_unrolled_graph_of_a_trace_has_these_flows():
    trace = gattn.capture("The dog chased the cat", layers=[1, 2, 3])
    graph = trace.unroll()
    found = flow(trace)
    for i, j in itertools.product(found["query"].to_numpy(), found["key"].to_numpy()):
        expected = nx.maximum_flow_value(graph, (0, j), (3, i)) if j <= i else 0
        assert found.sel(query=i, key=j) == pytest.approx(expected, abs=1e-6)
    assert list(found.query_token.to_numpy()) == trace.tokens


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=20)
def test_it_is_between_the_rollout_and_the_bottlenecks(seed, causal):
    attention = random_attention(3, 2, 5, seed=seed, causal=causal)
    found = flow(attention).to_numpy() + 1e-7
    assert (found >= rollout(attention)[-1].to_numpy()).all()
    mixed = attention.mean(1) / 2 + np.eye(5) / 2
    assert (found <= np.minimum(mixed[0].sum(0), 1) + 1e-6).all()
    for path in itertools.product(range(5), repeat=4):
        steps = zip(mixed, path[1:], path[:-1], strict=True)
        assert found[path[-1], path[0]] >= min(layer[i, j] for layer, i, j in steps)


@given(st.integers(0, 10**6))
@settings(max_examples=15)
def test_tokens_in_another_order_have_these_flows_in_that_order(seed):
    attention = random_attention(3, 2, 5, seed=seed, causal=True)
    order = np.random.default_rng(seed).permutation(5)
    moved = attention[:, :, order][:, :, :, order]
    expected = flow(attention).to_numpy()[order][:, order]
    np.testing.assert_allclose(flow(moved), expected, atol=1e-8)


@pytest.mark.parametrize("causal", [False, True])
def test_some_queries_and_keys(causal):
    attention = random_attention(3, 2, 6, causal=causal)
    whole = flow(attention)
    some = flow(attention, queries=[4, -1], keys=[5, 0, 3])
    assert some["query"].to_numpy().tolist() == [4, 5]
    assert some["key"].to_numpy().tolist() == [5, 0, 3]
    np.testing.assert_array_equal(some, whole.sel(query=[4, 5], key=[5, 0, 3]))
    one = flow(attention, queries=-2, keys=1)
    assert one.shape == (1, 1)
    assert one == whole.sel(query=4, key=1)
    assert one.key_token.item() == "1"


def test_it_starts_at_any_layer():
    attention = random_attention(4, 2, 5)
    np.testing.assert_array_equal(flow(trace_of(attention), from_layer=2), flow(attention[2:]))


def test_tensors_and_traces_agree():
    attention = random_attention(3, 2, 5)
    expected = flow(attention)
    np.testing.assert_allclose(flow(trace_of(attention)), expected, atol=1e-9)
    np.testing.assert_allclose(flow(torch.from_numpy(attention)), expected, atol=1e-9)
    single = flow(torch.from_numpy(attention).float())
    np.testing.assert_allclose(single, expected, atol=1e-6)


@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from(["mean", "max", "min", 1]),
    st.sampled_from([Threshold(0.05), Threshold(0.3), TopK(1), TopK(2)]),
    st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=20)
def test_what_was_dropped_bounds_the_error(seed, causal, heads, keep, residual):
    attention = random_attention(3, 2, 5, seed=seed, causal=causal)
    how = {"heads": heads} if isinstance(heads, int) else {"reduce": heads}
    whole = flow(attention, **how, residual=residual)
    part = flow(trace_of(attention, keep), **how, residual=residual)
    lack = (whole - part).to_numpy()
    assert (lack >= -1e-8).all()
    assert (lack <= part.error_bound.to_numpy() + 1e-8).all()


def test_a_bound_is_noted_and_no_more_than_can_be():
    part = flow(trace_of(random_attention(3, 2, 6), Threshold(0.2)))
    assert part.notes[-1].startswith("lower bounds: flows lack at most 0.")
    assert (part + part.error_bound <= 1 + 1e-6).all()
    tight = flow(trace_of(random_attention(3, 2, 6), Threshold(0.01)))
    assert 0 < float(tight.error_bound.max()) < 0.1


def test_nothing_flows_through_empty_rows_or_from_later_tokens():
    attention = random_attention(2, 1, 4, causal=True)
    attention[0, 0, 2] = 0
    found = flow(attention, residual=0)
    graph = nx.DiGraph()
    for (layer, _, i, j), weight in np.ndenumerate(attention):
        graph.add_edge((layer, j), (layer + 1, i), capacity=float(weight))
    for i, j in itertools.product(range(4), repeat=2):
        method = nx.algorithms.flow.shortest_augmenting_path
        expected = nx.maximum_flow_value(graph, (0, j), (2, i), flow_func=method)
        assert found[i, j] == pytest.approx(expected, abs=1e-8)
    assert not np.triu(found.to_numpy(), 1).any()
    assert "1 rows of layers are empty" in found.notes[0]


def test_what_takes_long_is_estimated_first(capsys, monkeypatch):
    monkeypatch.setattr("gattn.progress._PATIENCE", -1.0)
    flow(PAPER)
    said = capsys.readouterr().err
    assert re.search(r"flow: 9 x pair, about \d+ s; choose some with queries=", said)
    flow(PAPER, progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"queries": 3},
            SelectionError,
            r"query must be a token.s position, here 0 .. 2 .*, not 3",
        ),
        (
            {"keys": [-4]},
            SelectionError,
            "key must be a token.s position, here 0 .. 2 .* not -4",
        ),
        ({"keys": "cat"}, SelectionError, "No key 'cat'"),
        ({"keys": []}, SelectionError, "at least one"),
        ({"queries": [0, -3]}, SelectionError, "query once"),
        ({"queries": 0.5}, SelectionError, "query must be a token.s position"),
        ({"residual": 2}, SelectionError, "share"),
    ],
)
def test_wrong_choices(options, error, said):
    with pytest.raises(error, match=said):
        flow(PAPER, **options)


def test_negative_attention_is_refused():
    with pytest.raises(ShapeError, match="attention >= 0"):
        flow(-PAPER)
