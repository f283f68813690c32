"""Reach, walks, over-squashing and cuts against brute force, NetworkX and known numbers."""

from dataclasses import replace
from itertools import product
from math import comb

import matplotlib.text
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from attentions import TEXT
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn import TokenGraph
from gattn.analysis import bottlenecks, oversquashing, reach, rollout, walks
from gattn.analysis.propagation import reach as reaching
from gattn.analysis.propagation import runs as running
from gattn.analysis.propagation.layered import Layered
from gattn.analysis.propagation.runs import Runs
from gattn.errors import SelectionError, ShapeError


@pytest.fixture(scope="module")
def trace():
    return gattn.capture(TEXT, keep=gattn.Threshold(0.2))


def random_graphs(seed, layers=3, size=6, share=0.35):
    generator = np.random.default_rng(seed)
    masks = generator.random((layers, size, size)) < share
    return [TokenGraph.from_mask(torch.from_numpy(mask)) for mask in masks], masks


def steps_of(masks, residual):
    eye = np.eye(masks.shape[-1], dtype=bool)
    return [(mask | eye if residual else mask).astype(np.int64) for mask in masks]


def unrolled(masks, residual):
    graph = nx.DiGraph()
    graph.add_nodes_from(product(range(len(masks) + 1), range(masks.shape[-1])))
    for depth, step in enumerate(steps_of(masks, residual)):
        graph.add_edges_from(((depth, j), (depth + 1, i)) for i, j in np.argwhere(step).tolist())
    return graph


# Reach and walks


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_layers_and_walks_are_those_of_matrix_products(seed, residual):
    graphs, masks = random_graphs(seed)
    number, fewest = np.eye(6, dtype=np.int64), np.where(np.eye(6), 0, np.inf)
    for depth, step in enumerate(steps_of(masks, residual)):
        number = step @ number
        fewest[(number > 0) & np.isinf(fewest)] = depth + 1
    np.testing.assert_array_equal(reach(graphs, residual=residual), fewest)
    np.testing.assert_array_equal(walks(graphs, residual=residual), number)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(
    "graph",
    [
        TokenGraph.window(70, 3),
        TokenGraph.dilated(70, 6, 2),
        TokenGraph.longformer(70, 2, [5]),
        TokenGraph.documents([0] * 30 + [1] * 40),
        TokenGraph.causal(70).without_self_loops(),
    ],
    ids=str,
)
def test_as_many_layers_as_it_takes_are_shortest_paths(graph, residual):
    lengths = dict(nx.all_pairs_shortest_path_length(graph.to_networkx()))
    known = [[lengths[j].get(i, np.inf) for j in range(70)] for i in range(70)]
    np.testing.assert_array_equal(reach(graph, residual=residual), known)


def test_walks_of_causal_layers_are_binomials():
    found = walks(TokenGraph.causal(5), depth=3)
    assert found[-1].values.tolist() == [15, 10, 6, 3, 1]
    found = walks(TokenGraph.causal(40), depth=12)
    known = [[comb(i - j + 11, 11) if j <= i else 0 for j in range(40)] for i in range(40)]
    np.testing.assert_allclose(found, np.array(known, dtype=float), rtol=1e-13)


def test_a_window_of_w_keys_reaches_w_minus_1_further_a_layer():
    found = reach(TokenGraph.window(200, 8)).to_numpy()
    query, key = np.tril_indices(200)
    np.testing.assert_array_equal(found[query, key], -((key - query) // 7))
    assert np.isinf(found[np.triu_indices(200, 1)]).all()


def test_the_residual_stream_is_no_second_way_beside_a_self_loop():
    both = [walks(TokenGraph.causal(6), depth=4, residual=residual) for residual in (True, False)]
    np.testing.assert_array_equal(*both)
    without = TokenGraph.causal(6).without_self_loops()
    np.testing.assert_array_equal(walks(without, depth=4), both[0])
    assert float(walks(without, depth=4, residual=False)[3, 0]) == 0


def test_walks_beyond_16_digits_are_said_and_beyond_doubles_refused():
    assert "rounded to 16 digits" in walks(TokenGraph.complete(64), depth=12).notes
    assert "rounded to 16 digits" not in walks(TokenGraph.complete(64), depth=4).notes
    with pytest.raises(SelectionError, match="1e308"):
        walks(TokenGraph.complete(128), depth=150)
    with pytest.raises(SelectionError, match="1e308"):
        oversquashing(TokenGraph.complete(128), depth=150)


def counted(monkeypatch):
    """Count the layers that reach walks through."""
    done = []
    united = Runs.united
    monkeypatch.setattr(Runs, "united", lambda *given: done.append(1) or united(*given))
    return done


@pytest.mark.parametrize(
    ("graph", "layers"),
    [
        (TokenGraph.complete(60), 2),  # the second brings nothing new
        (TokenGraph.complete(60).without_self_loops(), 2),
        (TokenGraph.causal(60), 2),
        (TokenGraph.causal(60).without_self_loops(), 2),
        (TokenGraph.documents([0] * 20 + [1] * 40), 2),
        (TokenGraph.from_mask(torch.eye(60).roll(1, 0).bool()), 60),  # a round
        (TokenGraph.from_mask(torch.block_diag(*[torch.eye(30).roll(1, 0)] * 2).bool()), 30),
    ],
    ids=str,
)
@pytest.mark.parametrize("residual", [True, False])
def test_layers_that_are_alike_stop_where_nothing_new_comes(graph, layers, residual, monkeypatch):
    done = counted(monkeypatch)
    found = reach(graph, residual=residual)
    assert len(done) == layers
    lengths = dict(nx.all_pairs_shortest_path_length(graph.to_networkx()))
    known = [[lengths[j].get(i, np.inf) for j in range(60)] for i in range(60)]
    np.testing.assert_array_equal(found, known)


def test_layers_that_differ_are_walked_to_the_end(monkeypatch):
    done = counted(monkeypatch)
    empty = TokenGraph.from_mask(torch.zeros(4, 4, dtype=torch.bool))
    found = reach([empty, empty, TokenGraph.causal(4), empty])
    assert len(done) == 4
    np.testing.assert_array_equal(found.to_numpy()[np.tril_indices(4, -1)], 3)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(1, 90), st.integers(1, 4), st.booleans(), st.booleans())
def test_runs_in_blocks_of_any_size_are_dense_products(seed, size, layers, residual, alike):
    """Masks of runs of all lengths beside single keys, and queries without any."""
    drawn = np.random.default_rng(seed)
    ends = np.sort(drawn.integers(0, size + 1, (layers, size, 2)))
    keys = np.arange(size)
    masks = (ends[..., :1] <= keys) & (keys < ends[..., 1:])
    masks = (masks | (drawn.random(masks.shape) < 0.1)) & (drawn.random((layers, size, 1)) < 0.9)
    graphs = [TokenGraph.from_mask(torch.from_numpy(mask)) for mask in masks]
    depth, graph = None, graphs
    if alike:
        depth, graph, masks = layers, graphs[0], np.stack([masks[0]] * layers)
    number, fewest = np.eye(size), np.where(np.eye(size), 0, np.inf)
    for layer, step in enumerate(steps_of(masks, residual)):
        number = step @ number
        fewest[(number > 0) & np.isinf(fewest)] = layer + 1
    assert number.max() < 2**53
    for block, full in ((512, np.inf), (64, np.inf), (8, np.inf), (8, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reaching, "_KEYS", block)
            patch.setattr(reaching, "_FULL", full)
            patch.setattr(running, "_BLOCK_BYTES", 8 * block)
            found = walks(graph, depth=depth, residual=residual)
            np.testing.assert_array_equal(found, number)
            found = reach(graph, depth=depth, residual=residual)
            np.testing.assert_array_equal(found, fewest)


def test_a_window_takes_an_addition_for_each_doubling():
    step = Layered.of(TokenGraph.window(1000, 64), (), 1, True).passing(0)
    assert Runs(step).additions < 15 * 1000
    assert step.nnz > 60 * 1000


def test_many_walks_along_runs_are_right_to_the_last_digits():
    graph = TokenGraph.window(300, 32)
    found = walks(graph, depth=20).to_numpy()
    number = np.eye(300, dtype=object)[:, 0]  # whole numbers of Python
    for _ in range(20):
        number = graph.mask().numpy().astype(object).dot(number)
    np.testing.assert_allclose(found[:, 0], number.astype(float), rtol=1e-13)
    assert number.max() > 2**53


# Attention


def test_kept_attention_of_any_head_is_an_edge(trace):
    masks = np.stack(
        [np.any([trace[n, h].to_dense() > 0 for h in range(4)], axis=0) for n in range(4)]
    )
    graphs = [TokenGraph.from_mask(torch.from_numpy(mask)) for mask in masks]
    arrays = np.stack([[trace[n, h].to_dense() for h in range(4)] for n in range(4)])
    for analysis in (reach, walks):
        known = analysis(graphs)
        for one in (trace, trace.only_stack, arrays, torch.from_numpy(arrays)):
            np.testing.assert_array_equal(analysis(one), known)
    assert reach(trace)["query_token"].values.tolist() == trace.tokens
    assert any("not kept" in note for note in reach(trace).notes)


def test_an_edit_changes_what_can_be_reached():
    model, tokenizer = gattn.load_model()
    narrow = gattn.Restrict(TokenGraph.window(13, 2))
    with gattn.edited(model, narrow):
        trace = gattn.capture(TEXT, model, tokenizer)
    found = reach(trace).to_numpy()
    query, key = np.tril_indices(13)
    np.testing.assert_array_equal(found[query, key], np.where(query - key > 4, np.inf, query - key))


# Over-squashing


def test_attention_is_rolled_out(trace):
    found, rolled = oversquashing(trace), rollout(trace)[-1]
    assert found.index.tolist() == list(range(13))
    np.testing.assert_allclose(found["influence"], rolled[-1])
    np.testing.assert_array_equal(found["walks"], walks(trace)[-1])
    np.testing.assert_array_equal(found["layers"], reach(trace)[-1])
    np.testing.assert_allclose(found["even_shares"], 13 * found["influence"])
    lost = float(rolled.error_bound[-1])
    assert any(f"at most {lost:.2g}" in note for note in found.notes)


def test_heads_become_one_as_in_rollouts(trace):
    for how in ({"reduce": "max"}, {"heads": 2}, {"reduce": [1, 0, 0, 3]}):
        found = oversquashing(trace, 9, **how)
        known = rollout(trace, **how)[-1, 9].sel(key=found.index.to_numpy())
        np.testing.assert_allclose(found["influence"], known)
        np.testing.assert_array_equal(found["walks"], oversquashing(trace, 9)["walks"])
    mixed = [oversquashing(trace, heads=heads)["influence"] for heads in (None, 2)]
    assert abs(mixed[0] - mixed[1]).max() > 0.01
    with pytest.raises(SelectionError, match="No head 4"):
        oversquashing(trace, heads=4)


def test_influence_sums_to_1_beside_a_sink_and_to_less_where_nothing_is_attended_to():
    graph = gattn.AttentionGraph.from_dense(np.tril(np.full((3, 3), 0.2)))
    graph = replace(graph, sink=np.array([0.8, 0.6, 0.4]))
    for residual in (True, False):
        assert oversquashing(graph, residual=residual)["influence"].sum() == pytest.approx(1)
    layers = np.stack([np.diag([0.0, 1, 1]), np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None]])
    found = oversquashing(layers[:, None], residual=False)
    assert found["influence"].sum() == pytest.approx(2 / 3)
    assert oversquashing(layers[:, None])["influence"].sum() == pytest.approx(1)


def test_positions_count_from_the_end_where_negative(trace):
    part = gattn.heads.stack.Stack(
        "decoder", {place: head.subgraph(range(3, 11)) for place, head in trace.only_stack.items()}
    )
    for given_, key, query in ((trace, 2, 12), (part, 4, 10)):
        count = 13 if given_ is trace else 8
        ends = key - query - 1, -1
        known = bottlenecks(given_, key, query)
        pd.testing.assert_frame_equal(bottlenecks(given_, *ends), known)
        assert bottlenecks(given_, *ends).notes == known.notes
        assert f"between the input at {key} and the output at {query}" in known.notes
        whole = oversquashing(given_, query)
        pd.testing.assert_frame_equal(oversquashing(given_), whole)
        pd.testing.assert_frame_equal(oversquashing(given_, np.int64(-1)), whole)
        with pytest.raises(SelectionError, match="query must be a token's position"):
            oversquashing(given_, -count - 1)
    with pytest.raises(SelectionError, match="residual stream carries token 2 to itself"):
        bottlenecks(np.eye(3), -1, 2, cut="edges")


def test_numbers_of_numpy_are_numbers():
    found = walks(TokenGraph.causal(4), depth=np.int64(2))
    np.testing.assert_array_equal(found, walks(TokenGraph.causal(4), depth=2))
    assert reach(TokenGraph.causal(4), residual=np.False_).attrs["residual"] == False  # noqa: E712


@pytest.mark.parametrize("residual", [True, False])
def test_a_token_graph_has_the_same_attention_on_each_edge(residual):
    graphs, masks = random_graphs(7)
    masks[1][2] = False  # a query that attends to nothing
    graphs[1] = TokenGraph.from_mask(torch.from_numpy(masks[1]))
    even = masks / np.maximum(masks.sum(-1, keepdims=True), 1)
    known = rollout(even[:, None], residual=0.5 if residual else 0.0)[-1]
    for query in range(6):
        found = oversquashing(graphs, query, residual=residual)
        full = np.zeros(6)
        full[found.index] = found["influence"]
        np.testing.assert_allclose(full, known[query], atol=1e-12)
        number = walks(graphs, residual=residual)[query].to_numpy()
        assert found["walks"].tolist() == number[found.index].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_the_tokens_that_reach_the_query(seed):
    graphs, _ = random_graphs(seed, share=0.2)
    for residual in (True, False):
        known = reach(graphs, residual=residual).to_numpy()
        for query in range(6):
            found = oversquashing(graphs, query, residual=residual)
            assert found.index.tolist() == np.flatnonzero(np.isfinite(known[query])).tolist()
            assert found["layers"].tolist() == known[query, found.index].tolist()


def test_many_causal_layers_squeeze_all_but_the_first_token():
    shares = [oversquashing(TokenGraph.causal(20), depth=n)["influence"] for n in (1, 8, 32)]
    assert shares[0][0] < shares[1][0] < shares[2][0]
    assert shares[2][0] > 0.9
    assert shares[2][1:].max() < 0.1


# Bottlenecks


def parts(graph, key, query, layers, removed):
    left = graph.copy()
    if removed and isinstance(removed[0][0], tuple):
        left.remove_edges_from(removed)
    else:
        left.remove_nodes_from(removed)
    return not nx.has_path(left, (0, key), (layers, query))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans())
def test_cuts_of_tokens_are_minimum_node_cuts(seed, residual):
    graphs, masks = random_graphs(seed, layers=4, share=0.3)
    graph = unrolled(masks, residual)
    for key, query in ((0, 5), (3, 1)):
        found = bottlenecks(graphs, key, query, residual=residual)
        known = nx.minimum_node_cut(graph, (0, key), (4, query))
        assert len(found) == len(known)
        removed = list(zip(found["layer"] + 1, found["position"], strict=True))
        assert parts(graph, key, query, 4, removed)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans())
def test_cuts_of_edges_are_minimum_cuts_that_spare_the_residual_stream(seed, residual):
    graphs, masks = random_graphs(seed, layers=3, share=0.4)
    graph = unrolled(masks, residual)
    for (_, j), (_, i), edge in graph.edges(data=True):
        if not (residual and i == j):
            edge["capacity"] = 1
    for key, query in ((0, 5), (3, 1)):
        found = bottlenecks(graphs, key, query, cut="edges", residual=residual)
        known, _ = nx.minimum_cut(graph, (0, key), (3, query))
        assert len(found) == known
        removed = [((n, j), (n + 1, i)) for n, i, j in found[["layer", "query", "key"]].to_numpy()]
        assert parts(graph, key, query, 3, removed)
        assert not residual or (found["query"] != found["key"]).all()


def test_causal_layers_are_as_wide_as_what_lies_between():
    found = bottlenecks(TokenGraph.causal(9), 2, 6, depth=3)
    assert len(found) == 5
    assert len(bottlenecks(TokenGraph.causal(9), 2, 6, depth=1, cut="edges")) == 1
    assert len(bottlenecks(TokenGraph.causal(9), 6, 2, depth=3)) == 0
    narrow = bottlenecks(TokenGraph.window(9, 3), 0, 8, depth=4)
    assert len(narrow) == 1


def test_cutting_the_cut_edges_keeps_one_token_from_another():
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Restrict(TokenGraph.window(13, 4))):
        trace = gattn.capture(TEXT, model, tokenizer)
        found = bottlenecks(trace, 1, 12, cut="edges")
        places = found[["layer", "query", "key"]].to_numpy().tolist()
        edits = [gattn.Cut(layer=n, query=i, key=j) for n, i, j in places]
        with gattn.edited(model, *edits):
            cut = gattn.capture(TEXT, model, tokenizer)
    assert len(edits) > 0
    assert np.isfinite(reach(trace)[12, 1])
    assert np.isinf(reach(cut)[12, 1])


def test_names_of_layers_and_tokens_are_the_traces(trace):
    found = bottlenecks(trace, 2, 12)
    assert found["token"].tolist() == [trace.tokens[i] for i in found["position"]]
    edges = bottlenecks(trace, 2, 12, cut="edges")
    assert edges["key_token"].tolist() == [trace.tokens[j] for j in edges["key"]]
    assert any("not kept" in note for note in found.notes)


@pytest.mark.parametrize("residual", [0.3, 1, None, "yes"])
@pytest.mark.parametrize(
    "analysis",
    [reach, walks, oversquashing, lambda given, **how: bottlenecks(given, 0, 2, **how)],
)
def test_a_share_of_the_residual_stream_is_for_rollouts(analysis, residual):
    with pytest.raises(SelectionError, match=r"True or False .* gattn\.analysis\.rollout"):
        analysis(np.tril(np.ones((2, 1, 3, 3))), residual=residual)


def test_a_list_of_no_layers_is_refused():
    with pytest.raises(ShapeError):
        reach([])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: reach([TokenGraph.causal(3), None, np.eye(3)]), "a NoneType among them"),
        (lambda: reach([np.eye(3), TokenGraph.causal(3)]), "a ndarray among them"),
        (lambda: reach(TokenGraph.causal(4), depth=True), "depth must be a whole number"),
        (lambda: reach(TokenGraph.causal(4), depth=2.0), "depth must be a whole number"),
        (lambda: oversquashing(TokenGraph.causal(3), depth=2, reduce="max"), "has no heads"),
        (lambda: walks(TokenGraph.causal(4)), "how many layers"),
        (lambda: oversquashing(TokenGraph.causal(4)), "how many layers"),
        (lambda: reach(TokenGraph.causal(4), depth=0), "depth must be a whole number"),
        (lambda: reach(np.eye(3), depth=2), "layers of its own"),
        (lambda: reach([TokenGraph.causal(4), TokenGraph.causal(5)]), r"\(4, 4, 0\), \(5, 5, 0\)"),
        (lambda: reach(TokenGraph.bipartite(3, 3)), "all tokens being queries and keys"),
        (lambda: reach(TokenGraph.causal(1, query_offset=3)), "all tokens being queries and keys"),
        (lambda: reach(np.ones((2, 3))), "self-attention"),
        (lambda: oversquashing(np.eye(3), 3), "query must be a token's position"),
        (lambda: bottlenecks(np.eye(3), 0, 3, cut="edges"), "query must be a token's position"),
        (lambda: bottlenecks(np.eye(3), 0, 1), "no tokens between"),
        (lambda: bottlenecks(np.eye(3), 1, 1, cut="edges"), "residual stream"),
        (lambda: bottlenecks(np.eye(3), 1, 2, cut="nodes"), '"tokens" or "edges"'),
    ],
)
def test_what_cannot_be_asked_is_said(call, words):
    with pytest.raises(SelectionError, match=words):
        call()


def test_parts_of_a_cut_are_cuts(trace):
    found = bottlenecks(trace, 2, 12)
    assert type(found.head(1)) is type(found)
    assert found.head(1).notes == found.notes


def test_they_draw_themselves(trace):
    for found in (reach(trace), walks(trace)):
        ax = found.draw()
        shown = np.ma.filled(ax.get_images()[0].get_array().astype(float), np.nan)
        known = found.where(np.isfinite(found) & (found.key <= found["query"])).to_numpy()
        np.testing.assert_allclose(shown, known)
        assert [label.get_text() for label in ax.get_xticklabels()] == trace.tokens
    squashed = oversquashing(trace)
    texts = squashed.draw().figure.findobj(matplotlib.text.Text)
    words = " ".join(text.get_text() for text in texts)
    assert all(token.strip() in words for token in squashed["token"])


def test_a_cut_is_drawn_among_all_that_passes(trace):
    found = bottlenecks(trace, 2, 12)
    ax = found.draw()
    assert "2 tokens" in ax.get_title()
    passing, cut = (points.get_offsets().tolist() for points in ax.collections[1:])
    assert cut == [[row, layer + 1] for layer, row in zip(found.layer, found.position, strict=True)]
    assert all(place in passing for place in cut)
    assert len(ax.collections[0].get_segments()) == len(found.attrs["edges"]) > 0

    found = bottlenecks(trace, 2, 12, cut="edges")
    red = bottlenecks(trace, 2, 12, cut="edges").draw().collections[2].get_segments()
    places = found[["layer", "query", "key"]].to_numpy().tolist()
    assert [line.tolist() for line in red] == [[[j, n], [i, n + 1]] for n, i, j in places]

    nothing = bottlenecks(TokenGraph.causal(9), 6, 2, depth=3).draw()
    assert "0 tokens" in nothing.get_title()
    lines, points, *_ = nothing.collections
    assert len(lines.get_segments()) == len(points.get_offsets()) == 0
