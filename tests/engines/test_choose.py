"""Which engine typical calls get."""

import pytest
import torch
from torch import nn

from gattn.attention import attention_call, attention_graphs, graph_attention
from gattn.engines import (
    NAMES,
    choose,
    choose_for_graphs,
    edges,
    fused,
    message_passing,
    named,
    tiles,
)
from gattn.engines.call import EdgeList
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.module import GraphAttention
from gattn.normalizers import Entmax15, Softmax
from gattn.weights import ALiBi, Cosine, EdgeBias, Rotary, ScaledDotProduct, SquaredDistance

LISTED = EdgeList(torch.tensor([[0, 1], [1, 1]]), 6, 6)
DOUBLED = EdgeList(torch.tensor([[0, 1, 0], [1, 1, 1]]), 6, 6)
CAUSAL, COMPLETE = TokenGraph.causal(6), TokenGraph.complete(6)
DISTANCE = SquaredDistance(nn.Parameter(torch.ones(2)))


@pytest.mark.parametrize(
    ("graph", "weight", "normalizer", "engine"),
    [
        (COMPLETE, None, None, fused),
        (CAUSAL, None, None, fused),
        (CAUSAL, None, Softmax(2.0), fused),
        (CAUSAL, 0.5 * ScaledDotProduct(), None, fused),
        (CAUSAL, Rotary(ScaledDotProduct()), None, fused),
        (CAUSAL, Cosine(2), None, fused),
        (COMPLETE, DISTANCE, None, fused),
        (TokenGraph.bipartite(6, 6), None, None, fused),
        (COMPLETE, ScaledDotProduct() + ALiBi(2), None, tiles),
        (CAUSAL, lambda q, k, pairs: (q * k).sum(-1), None, tiles),
        (CAUSAL, None, Entmax15(), tiles),
        (CAUSAL, None, Softmax(sink=0.0), tiles),
        (TokenGraph.causal(6, num_keys=6, query_offset=2), None, None, tiles),
        (TokenGraph.window(6, 2), None, None, tiles),
        (CAUSAL - TokenGraph.from_edges([(0, 3)], 6), None, None, tiles),
        (LISTED, None, None, tiles),
        (DOUBLED, None, None, edges),
    ],
)
def test_the_engine_of_typical_calls(randn, graph, weight, normalizer, engine):
    query, key = randn(1, 2, 6, 4), randn(1, 2, 6, 4)
    call, _ = attention_call(query, key, graph, weight, normalizer, key)
    assert choose(call) is engine


def test_edge_features_choose_by_their_form(randn):
    x, weight = randn(1, 2, 6, 4), EdgeBias(2, 3).double()
    listed, _ = attention_call(x, x, CAUSAL, weight, None, x, randn(21, 3))
    pairs, _ = attention_call(x, x, CAUSAL, weight, None, x, randn(6, 6, 3))
    assert choose(listed) is edges
    assert choose(pairs) is tiles


def test_engines_say_why_they_cannot_run(randn):
    x = randn(1, 2, 6, 4)
    call, _ = attention_call(x, x, DOUBLED, None, None, x)
    assert "edge_index" in fused.can_run(call)
    assert "edge_index" in tiles.can_run(call)
    assert message_passing.can_run(call) is None
    call, _ = attention_call(x, x, TokenGraph.window(6, 2), None, Entmax15(), x)
    assert "normalizer" in fused.can_run(call)
    assert tiles.can_run(call) is None


def random_graph(tokens, share):
    generator = torch.Generator().manual_seed(0)
    return TokenGraph.from_mask(torch.rand(tokens, tokens, generator=generator) < share)


@pytest.mark.parametrize(
    ("graph", "engine"),
    [
        (TokenGraph.window(500, 100), tiles),
        (TokenGraph.window(500, 2), edges),
        (TokenGraph.self_loops(500), edges),
        (TokenGraph.prefix(500, 20), tiles),
        (TokenGraph.documents([token // 250 for token in range(500)]), tiles),
        (random_graph(300, 0.9), tiles),
        (random_graph(300, 0.05), edges),
        (random_graph(30, 0.05), tiles),
    ],
)
def test_tiles_where_half_of_their_pairs_are_edges(graph, engine):
    x = torch.randn(1, 2, graph.num_queries, 4)
    call, _ = attention_call(x, x, graph, None, None, x)
    assert choose(call) is engine
    assert choose_for_graphs(call) is engine


def test_graphs_never_choose_an_engine_of_outputs_alone(randn):
    x = randn(1, 2, 6, 4)
    call, _ = attention_call(x, x, CAUSAL)
    assert choose(call) is fused
    assert choose_for_graphs(call) is tiles


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_an_engine(randn, name):
    x = randn(1, 2, 6, 4)
    call, _ = attention_call(x, x, CAUSAL, None, None, x)
    engine = named(name, call)
    assert engine.__name__ == f"gattn.engines.{name}"
    assert engine.memory(call) >= 0


def test_an_engine_that_is_none_is_an_error_with_the_choices(randn):
    x = randn(2, 6, 4)
    for choices in (
        lambda: graph_attention(x, x, x, CAUSAL, engine="nonsense"),
        lambda: attention_graphs(x, x, CAUSAL, engine="nonsense"),
        lambda: GraphAttention(4, 4, engine="nonsense").double()(x[0], CAUSAL),
    ):
        with pytest.raises(ContractError) as caught:
            choices()
        assert all(name in str(caught.value) for name in (*NAMES, "'nonsense'"))


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("fused", {"graph": TokenGraph.window(6, 2)}, "neither complete nor causal"),
        ("fused", {"normalizer": Entmax15()}, "not a softmax"),
        ("fused", {"weight": ScaledDotProduct() + ALiBi(2)}, "not a dot product alone"),
        ("tiles", {"edge_features": torch.zeros(21, 3)}, r"\(edges, F\)"),
    ],
)
def test_an_engine_that_cannot_run_the_call_is_an_error_that_says_why(randn, engine, options, said):
    x = randn(2, 6, 4)
    with pytest.raises(ContractError, match=f"engine {engine} cannot run this: .*{said}") as caught:
        graph_attention(x, x, x, **({"graph": CAUSAL} | options), engine=engine)
    assert "gattn chooses" in str(caught.value)


def test_a_layer_may_name_its_engine(randn):
    layer, x = GraphAttention(4, 2, heads=2, engine="fused").double(), randn(6, 4)
    with pytest.raises(ContractError, match="fused cannot run this"):
        layer(x, TokenGraph.window(6, 2))
    for name in NAMES:
        layer.engine, wanted = name, layer(x, CAUSAL)
        torch.testing.assert_close(layer(x, CAUSAL), wanted)
