"""Every engine gives the numbers and the gradients of dense algebra."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import all_pairs, in_turn
from problems import (
    GRAPHS,
    HEADS,
    NEEDS_FEATURES,
    NORMALIZERS,
    WEIGHTS,
    WIDE,
    Problem,
    by_engine,
    by_oracle,
    drawn_edges,
    hold,
    small_pieces,
)

from gattn.engines import NAMES, tiles
from gattn.engines.call import EdgeList
from gattn.graph.token_graph import TokenGraph

SOME_GRAPHS = ["complete", "causal with an offset", "window", "rows without edges", "few queries"]
ON_TOKENS = ["tiles", "edges", "message_passing"]  # run whatever the graph and the weight


def weighed(graph, weight, **options):
    """Normalize positive kernels in proportion, and give features where they are read."""
    features = 3 if weight in NEEDS_FEATURES else 0
    return Problem(graph, weight, **{"features": features} | options)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("weight", ["scaled dot", "relative", "trees"])
def test_on_every_graph(graph, weight):
    assert set(hold(Problem(GRAPHS[graph], weight))) >= set(ON_TOKENS)


@pytest.mark.parametrize(
    ("weight", "graph"), [*in_turn(WEIGHTS, SOME_GRAPHS), *in_turn(WEIGHTS, SOME_GRAPHS[2:])]
)
def test_for_every_weight_function(weight, graph):
    assert set(hold(weighed(GRAPHS[graph], weight))) >= set(ON_TOKENS)


@pytest.mark.parametrize(
    ("graph", "normalizer", "weight"),
    all_pairs(SOME_GRAPHS, NORMALIZERS, ["capturing lambda", "scaled dot", "ALiBi", "relative"]),
)
def test_for_every_normalizer(graph, normalizer, weight):
    weight = "kernel" if normalizer == "proportional" else weight
    assert set(hold(Problem(GRAPHS[graph], weight, normalizer))) >= set(ON_TOKENS)


@pytest.mark.parametrize(
    ("weight", "graph", "normalizer"),
    all_pairs(
        ["scaled dot", "cosine", "squared distance", "dot of means"],
        ["complete", "causal", "few keys", "causal with many keys"],
        ["softmax", "temperature"],
    ),
)
def test_every_engine_runs_plain_attention(weight, graph, normalizer):
    assert set(hold(Problem(GRAPHS[graph], weight, normalizer))) == set(NAMES)


@pytest.mark.parametrize("graph", ["causal", "window", "no edges", "random edges"])
@pytest.mark.parametrize("weight", sorted(NEEDS_FEATURES))
def test_features_one_an_edge(graph, weight):
    ran = hold(weighed(GRAPHS[graph], weight, features=2))
    assert ran == ["edges", "message_passing"]


@pytest.mark.parametrize(
    ("graph", "weight", "sizes"),
    all_pairs(
        ["causal", "window", "random edges to other tokens"],
        ["scaled dot", "ALiBi", "lambda"],
        [(1, HEADS, 4), (3, HEADS, 1), (1, 1, 6), (3, 1, 6), (0, 1, 3)],
    ),
)
def test_batches_groups_and_value_dims(graph, weight, sizes):
    batch, key_heads, value_dim = sizes
    hold(Problem(GRAPHS[graph], weight, "softmax", batch, key_heads, value_dim))


@pytest.mark.parametrize("weight", ["scaled dot", "relative", "capturing lambda"])
@pytest.mark.parametrize("graph", WIDE)
def test_blocks_that_are_batched(graph, weight):
    hold(Problem(WIDE[graph], weight, batch=1))


PIECES = {
    "one at a time": {},
    "a few": {"numbers": 50, "block_bytes": 400, "block_edges": 9},
    "low blocks": {"numbers": 1 << 20, "block_bytes": 1 << 20, "block_edges": 5, "height": 2},
    "low blocks in pieces": {"numbers": 40, "block_bytes": 1500, "block_edges": 7, "height": 2},
}


@pytest.mark.parametrize(
    ("weight", "graph", "pieces"),
    all_pairs(
        ["scaled dot", "relative", "capturing lambda", "trees"],
        ["causal", "window", "longformer", "rows without edges"],
        PIECES,
    ),
)
def test_pieces_change_nothing(weight, graph, pieces):
    with small_pieces(**PIECES[pieces]):
        hold(Problem(GRAPHS[graph], weight), ON_TOKENS)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_pieces_change_no_weight_function(weight):
    with small_pieces(**PIECES["low blocks in pieces"]):
        hold(weighed(GRAPHS["window"], weight), ON_TOKENS)
        hold(weighed(GRAPHS["few queries"], weight), ON_TOKENS)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_pieces_change_no_normalizer(normalizer):
    weight = "kernel" if normalizer == "proportional" else "learned L1 distance"
    with small_pieces(**PIECES["low blocks in pieces"]):
        hold(Problem(GRAPHS["prefix"], weight, normalizer), ON_TOKENS)


@pytest.mark.parametrize("graph", GRAPHS)
def test_low_blocks_change_no_graph(graph):
    with small_pieces(**PIECES["low blocks"]):
        hold(Problem(GRAPHS[graph], "capturing lambda"), ON_TOKENS)
        hold(Problem(GRAPHS[graph], "T5", "sink per head"), ON_TOKENS)


def test_runs_of_keys_at_uneven_steps():
    graph = TokenGraph.from_edges([(0, 0), (1, 1), (3, 2), (4, 3)], 5)
    with small_pieces(numbers=1 << 20, block_bytes=1 << 20, height=1):
        hold(Problem(graph), ON_TOKENS)


def of_the_same_size(tokens):
    ids = st.lists(st.integers(0, 2), min_size=tokens, max_size=tokens)
    pairs = st.lists(st.tuples(*[st.integers(0, tokens - 1)] * 2), max_size=12)
    return st.one_of(
        st.just(TokenGraph.causal(tokens)),
        st.just(TokenGraph.complete(tokens)),
        st.builds(TokenGraph.window, st.just(tokens), st.integers(1, 4)),
        st.builds(TokenGraph.prefix, st.just(tokens), st.integers(1, 3)),
        st.builds(TokenGraph.strided, st.just(tokens), st.integers(1, 3)),
        st.builds(TokenGraph.documents, ids, causal=st.booleans()),
        st.builds(TokenGraph.from_edges, pairs, st.just(tokens)),
    )


@st.composite
def graphs(draw):
    tokens = draw(st.integers(1, 9))
    graph = draw(of_the_same_size(tokens))
    for sign in draw(st.lists(st.sampled_from("&|-"), max_size=2)):
        other = draw(of_the_same_size(tokens))
        graph = {"&": graph & other, "|": graph | other, "-": graph - other}[sign]
    return graph


@st.composite
def problems(draw):
    normalizer = draw(st.sampled_from(sorted(NORMALIZERS)))
    weight = "kernel" if normalizer == "proportional" else draw(st.sampled_from(sorted(WEIGHTS)))
    a_head = weight == "kernel" or draw(st.booleans())
    return weighed(
        draw(graphs()),
        weight,
        normalizer=normalizer,
        batch=draw(st.integers(1, 3)),
        key_heads=HEADS if a_head else 1,
        value_dim=draw(st.integers(1, 5)),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=30, derandomize=True)
@given(problem=problems(), pieces=st.sampled_from(sorted(PIECES)), whole=st.booleans())
def test_whatever_is_asked(problem, pieces, whole):
    if whole:
        hold(problem)
    else:
        with small_pieces(**PIECES[pieces]):
            hold(problem)


@st.composite
def edge_lists(draw):
    queries, keys = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    ends = st.tuples(st.integers(0, keys - 1), st.integers(0, queries - 1))
    pairs = draw(st.lists(ends, max_size=14))
    index = torch.tensor([*pairs, *pairs[:4]], dtype=torch.long).reshape(-1, 2).T
    return EdgeList(index, queries, keys)


@settings(max_examples=25, derandomize=True)
@given(
    graph=edge_lists(),
    weight=st.sampled_from(sorted(WEIGHTS)),
    normalizer=st.sampled_from(sorted(set(NORMALIZERS) - {"proportional"})),
    features=st.sampled_from([2, 3]),
    whole=st.booleans(),
)
def test_edges_of_any_order_count_as_often_as_they_are_there(
    graph, weight, normalizer, features, whole
):
    problem = weighed(graph, weight, normalizer=normalizer)
    if problem.features:
        problem = replace(problem, features=features)
    with small_pieces(**{} if not whole else PIECES["low blocks"]):
        engines = hold(problem)
    pairs = graph.edge_index.T.tolist()
    are_doubled = len({tuple(pair) for pair in pairs}) < len(pairs)
    assert engines[-2:] == ["edges", "message_passing"]
    assert not are_doubled or "tiles" not in engines


@pytest.mark.parametrize("weight", sorted(NEEDS_FEATURES))
def test_features_follow_the_edges_as_given(weight):
    graph = EdgeList(torch.tensor([[3, 0, 1, 1, 0], [2, 2, 0, 0, 2]]), 4, 5)
    assert hold(weighed(graph, weight, features=2)) == ["edges", "message_passing"]


def test_a_doubled_edge_weighs_more_than_a_single_one():
    twice = EdgeList(torch.tensor([[0, 1, 0], [0, 0, 0]]), 1, 2)
    once = EdgeList(torch.tensor([[0, 1], [0, 0]]), 1, 2)
    one, other = (by_engine(Problem(graph), "edges").output for graph in (twice, once))
    assert not torch.allclose(one, other)


# The same tests fail for engines that are wrong


def broken(change):
    """Tiles, whose call is changed first."""

    def run(call):
        return tiles.run(replace(call, **change(call)))

    return SimpleNamespace(__name__="broken", can_run=tiles.can_run, run=run)


@pytest.mark.parametrize(
    "change",
    [
        lambda call: {"graph": TokenGraph.complete(9)},
        lambda call: {"graph": call.graph.without_self_loops()},
        lambda call: {"query": call.query * (1 + 1e-8)},
        lambda call: {"value": call.value.flip(2)},
        lambda call: {"value": call.value.detach()},
        lambda call: {"key": 2 * call.key - call.key.detach()},
    ],
    ids=["no mask", "an edge less", "inexact", "other values", "no gradient", "a wrong gradient"],
)
def test_a_wrong_engine_is_found_out(change):
    problem = Problem(GRAPHS["window"], "capturing lambda")
    assert hold(problem, [broken(lambda call: {})])
    with pytest.raises(AssertionError, match=r"broken: the (output|gradient)"):
        hold(problem, [broken(change)])


def test_the_oracle_is_what_plain_loops_say(loops):
    problem = Problem(drawn_edges(5, 6, 0.5), "dot", value_dim=3, learns=False)
    query, key, value = problem.tensors().values()
    mask = problem.graph.mask()
    output, _ = loops(query, key, value, mask, lambda h, i, j, q, k: q @ k)
    torch.testing.assert_close(by_oracle(problem).output, output)
