"""Which engine typical calls get."""

import pytest
import torch
from torch import nn

from gattn.attention import attention_call
from gattn.engines import choose, dense, fused, message_passing
from gattn.engines.base import EdgeList
from gattn.graph import TokenGraph
from gattn.normalizers import Entmax15, Softmax
from gattn.weights import ALiBi, Cosine, EdgeBias, Rotary, ScaledDotProduct, SquaredDistance

LISTED = EdgeList(torch.tensor([[0, 1], [1, 1]]), 6, 6)
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
        (COMPLETE, ScaledDotProduct() + ALiBi(2), None, dense),
        (CAUSAL, lambda q, k, pairs: (q * k).sum(-1), None, dense),
        (CAUSAL, None, Entmax15(), dense),
        (CAUSAL, None, Softmax(sink=0.0), dense),
        (TokenGraph.causal(6, num_keys=6, query_offset=2), None, None, dense),
        (TokenGraph.window(6, 2), None, None, message_passing),
        (CAUSAL - TokenGraph.from_edges([(0, 3)], 6), None, None, message_passing),
        (LISTED, None, None, message_passing),
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
    assert choose(listed) is message_passing
    assert choose(pairs) is dense


def test_engines_say_why_they_cannot_run(randn):
    x = randn(1, 2, 6, 4)
    call, _ = attention_call(x, x, LISTED, None, None, x)
    assert "edge_index" in fused.can_run(call)
    assert "edge_index" in dense.can_run(call)
    assert message_passing.can_run(call) is None
    call, _ = attention_call(x, x, TokenGraph.window(6, 2), None, Entmax15(), x)
    assert "normalizer" in fused.can_run(call)
    assert dense.can_run(call) is None
