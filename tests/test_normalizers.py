import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torch_geometric.utils import softmax as segment_softmax

from gattn.attention import attention_graphs
from gattn.engines import edges, fused, message_passing, tiles
from gattn.engines.call import attention_call
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import (
    Entmax,
    Entmax15,
    Identity,
    Normalizer,
    Proportional,
    ReLU,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopKSoftmax,
)
from gattn.testing import check_normalizer
from gattn.weights import Dot, KernelFeatures


def learned(*numbers):
    return nn.Parameter(torch.tensor(numbers))


EVERY = [
    Softmax(),
    Softmax(temperature=2.0),
    Softmax(sink=0.0),
    Softmax(sink=torch.tensor([0.5, -1.0, 0.0])),
    Softmax(temperature=0.7, sink=learned(0.5, -1.0, 0.0)),
    Sparsemax(),
    Entmax15(),
    Entmax(1.3),
    Entmax(torch.tensor([1.2, 1.5, 2.5])),
    Entmax(learned(1.3, 1.5, 1.8)),
    Sigmoid(),
    Sigmoid(bias=-1.0),
    ReLU(),
    Proportional(),
    Identity(),
    TopKSoftmax(2),
]


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_contract(normalizer):
    check_normalizer(normalizer)


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (Softmax(), [0.638066, 0.234731, 0.095435, 0.031767]),
        (Softmax(sink=0.0), [0.587347, 0.216073, 0.087849, 0.029242]),
        (Softmax(sink=learned(0.5)), [0.558545, 0.205477, 0.083541, 0.027808]),
        (Sparsemax(), [1.0, 0.0, 0.0, 0.0]),
        (Entmax(2.0), [1.0, 0.0, 0.0, 0.0]),
        (Entmax15(), [0.830719, 0.169281, 0.0, 0.0]),
        (Entmax(1.5), [0.830719, 0.169281, 0.0, 0.0]),
        (Sigmoid(), [0.648786, 0.404610, 0.216481, 0.084224]),
        (TopKSoftmax(2), [0.731059, 0.268941, 0.0, 0.0]),
        (ReLU(), [2.0, 1.0, 0.1, 0.0]),
        (Identity(), [2.0, 1.0, 0.1, -1.0]),
        (Proportional(), [2 / 2.1, 1 / 2.1, 0.1 / 2.1, -1 / 2.1]),
    ],
    ids=repr,
)
def test_known_numbers(normalizer, expected):
    row = torch.tensor([[[2.0, 1.0, 0.1, -1.0]]])
    padded = torch.tensor([[[2.0, -torch.inf, 1.0, 0.1, -torch.inf, -1.0]]])
    expected = torch.tensor(expected)
    assert_close(normalizer(row)[0, 0], expected, rtol=0, atol=2e-6)
    assert_close(normalizer(padded)[0, 0, [0, 2, 3, 5]], expected, rtol=0, atol=2e-6)
    ragged = normalizer.on_edges(row[0], torch.zeros(4, dtype=torch.long), 1)
    assert_close(ragged[0], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (Sparsemax(), [0.0, 0.0, 0.083333, 0.333333, 0.583333]),
        (Entmax15(), [0.025854, 0.081677, 0.168750, 0.287073, 0.436646]),
        (Entmax(1.5), [0.025854, 0.081677, 0.168750, 0.287073, 0.436646]),
    ],
    ids=repr,
)
def test_known_sparse_numbers(normalizer, expected):
    attention = normalizer(torch.tensor([[[0.0, 0.25, 0.5, 0.75, 1.0]]]))
    assert_close(attention[0, 0], torch.tensor(expected), rtol=0, atol=2e-6)


def test_softmax_on_edges_is_torch_geometrics():
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 20, generator=draw)
    query = torch.randint(0, 6, (20,), generator=draw)
    expected = segment_softmax(scores.T, query, num_nodes=6).T
    assert_close(Softmax().on_edges(scores, query, 6), expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_sink_of_minus_infinity_takes_nothing_also_of_rows_without_edges(temperature):
    normalizer = Softmax(temperature, torch.tensor([-torch.inf, 0.0]))
    graph = TokenGraph.from_edges([(0, 1), (2, 3)], 4)
    query = torch.ones(2, 4, 3)
    first, second = attention_graphs(query, query, graph, normalizer=normalizer)
    assert first.attention.tolist() == [1.0, 1.0]
    wanted = torch.tensor([3**0.5, 0.0]).div(temperature).softmax(0)[0]
    np.testing.assert_allclose(second.attention, [wanted, wanted], rtol=1e-6)


def test_sink_is_one_more_logit_dropped():
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    sinks = torch.tensor([0.5, -1.0, 3.0])
    logits = torch.cat([scores, sinks[:, None, None].expand(2, 3, 4, 1)], -1)
    assert_close(Softmax(sink=sinks)(scores), logits.softmax(-1)[..., :-1])
    assert_close(Softmax(0.5, sinks)(scores), (logits / 0.5).softmax(-1)[..., :-1])


def test_learned_sink_learns_alike_on_rows_and_edges():
    scores = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(0))
    gradients = []
    for ragged in (True, False):
        normalizer = Softmax(sink=learned(0.5, -1.0, 3.0))
        if ragged:
            attention = normalizer.on_edges(scores[:, 0], torch.zeros(4, dtype=torch.long), 2)
        else:
            attention = normalizer(scores)
        gradients += torch.autograd.grad(attention.square().sum(), normalizer.parameters())
    assert_close(*gradients)
    assert (gradients[0] < 0).all()


def test_temperature_divides_scores():
    scores = torch.randn(1, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    assert_close(Softmax(temperature=3.0)(scores), (scores / 3).softmax(-1))


@pytest.mark.parametrize("normalizer", [Softmax(), Softmax(sink=0.0), Entmax15(), Sparsemax()])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_scores_stay_finite(normalizer, size):
    row = torch.tensor([[[size, size, -size, 0.0]]])
    expected = torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert_close(normalizer(row)[0, 0], expected)
    query = torch.zeros(4, dtype=torch.long)
    assert_close(normalizer.on_edges(row[0], query, 1)[0], expected)


def test_half_precision_sums_in_float32():
    scores = torch.zeros(1, 1, 5000, dtype=torch.bfloat16)
    query = torch.zeros(5000, dtype=torch.long)
    for attention in (Softmax()(scores)[0, 0], Softmax().on_edges(scores[0], query, 1)[0]):
        assert attention.dtype == torch.bfloat16
        assert_close(attention.float(), torch.full((5000,), 1 / 5000), rtol=0.004, atol=0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9), st.floats(1.1, 2.5))
@settings(max_examples=40)
def test_entmax_solves_its_definition(numbers, alpha):
    scores = torch.tensor([[numbers]], dtype=torch.float64)
    attention = Entmax(alpha)(scores)
    assert_close(attention.sum(), torch.tensor(1.0, dtype=torch.float64))
    scaled = (alpha - 1) * scores
    tau = scaled.max() - attention.max() ** (alpha - 1)
    expected = (scaled - tau).clamp_min(0) ** (1 / (alpha - 1))
    assert_close(attention, expected, rtol=0, atol=1e-6)


def test_entmax_of_each_head_has_its_own_alpha():
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    together = Entmax(torch.tensor([1.2, 1.5, 2.0]))(scores)
    apart = [Entmax(1.2)(scores[:1]), Entmax15()(scores[1:2]), Sparsemax()(scores[2:])]
    assert_close(together, torch.cat(apart), rtol=0, atol=1e-5)


def test_top_k_ties_go_to_the_smaller_key():
    scores = torch.tensor([[[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, -torch.inf]]])
    expected = torch.tensor([[[0.0, 0.5, 0.5, 0.0], [0.5, 0.5, 0.0, 0.0]]])
    assert_close(TopKSoftmax(2)(scores), expected)
    graph = TokenGraph.from_mask(torch.isfinite(scores[0]))
    key, query = graph.edge_index
    ragged = TopKSoftmax(2).on_edges(scores[:, query, key], query, 2)
    assert_close(ragged, expected[:, query, key])


@pytest.mark.parametrize("many", [4, 100])
def test_top_k_of_fewer_keys_is_the_softmax(many):
    scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert_close(TopKSoftmax(many)(scores), scores.softmax(-1))


def test_sigmoid_counts_its_own_neighbourhood():
    scores = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0, -torch.inf, -torch.inf]]])
    expected = torch.tensor([[[1 / 3, 1 / 3, 0.0], [0.5, 0.0, 0.0]]])
    assert_close(Sigmoid()(scores), expected)
    ragged = Sigmoid().on_edges(torch.zeros(1, 3), torch.tensor([0, 1, 0]), 3)
    assert_close(ragged, torch.tensor([[1 / 3, 0.5, 1 / 3]]))


def test_proportional_row_that_sums_to_0_gets_nothing():
    scores = torch.tensor([[[1.0, -1.0], [0.0, 0.0]]], requires_grad=True)
    attention = Proportional()(scores)
    attention.square().sum().backward()
    assert attention.tolist() == [[[0.0, 0.0], [0.0, 0.0]]]
    assert torch.isfinite(scores.grad).all()


def test_proportional_kernel_features_are_linear_attention():
    draw = torch.Generator().manual_seed(0)
    query, key, value = torch.rand(3, 2, 2, 6, 4, generator=draw, dtype=torch.float64)
    call, _ = attention_call(
        query, key, TokenGraph.causal(6), KernelFeatures(torch.exp), Proportional(), value
    )
    memory = torch.einsum("bhjd,bhjv->bhjdv", key.exp(), value).cumsum(2)
    total = torch.einsum("bhid,bhid->bhi", query.exp(), key.exp().cumsum(2))
    expected = torch.einsum("bhid,bhidv->bhiv", query.exp(), memory) / total[..., None]
    for engine in (tiles, edges, message_passing):
        assert_close(engine.run(call), expected)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_engines_agree_on_a_graph_with_isolated_queries(normalizer):
    draw = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 6, 4, generator=draw, dtype=torch.float64)
    mask = torch.rand(6, 6, generator=draw) < 0.5
    mask[2] = False
    call, _ = attention_call(query, key, TokenGraph.from_mask(mask), Dot(), normalizer, value)
    output = message_passing.run(call)
    assert_close(output, tiles.run(call))
    assert (output[:, :, 2] == 0).all()


def test_the_fused_engine_takes_temperatures_and_leaves_sinks():
    draw = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 6, 4, generator=draw, dtype=torch.float64)
    graph = TokenGraph.causal(6)
    for normalizer in (Softmax(), Softmax(temperature=2.0)):
        call, _ = attention_call(query, key, graph, Dot(), normalizer, value)
        assert fused.can_run(call) is None
        assert_close(fused.run(call), tiles.run(call))
    for normalizer in (Softmax(sink=0.0), Entmax15()):
        call, _ = attention_call(query, key, graph, Dot(), normalizer, value)
        assert "softmax" in fused.can_run(call)


@pytest.mark.parametrize(
    ("normalizer", "distribution", "sink", "signed"),
    [
        (Softmax(), True, False, False),
        (Softmax(sink=0.0), True, True, False),
        (Sparsemax(), True, False, False),
        (Entmax(1.2), True, False, False),
        (TopKSoftmax(3), True, False, False),
        (Sigmoid(), False, False, False),
        (ReLU(), False, False, False),
        (Proportional(), True, False, True),
        (Identity(), False, False, True),
    ],
    ids=repr,
)
def test_flags(normalizer, distribution, sink, signed):
    assert normalizer.is_distribution is distribution
    assert normalizer.has_sink is sink
    assert normalizer.is_signed is signed


@pytest.mark.parametrize(
    ("normalizer", "shown"),
    [
        (Softmax(), "Softmax()"),
        (Softmax(sink=0.0), "Softmax(sink=0.0)"),
        (Softmax(2.0, learned(1.0)), "Softmax(temperature=2.0, sink=learned per head)"),
        (Softmax(sink=torch.ones(2)), "Softmax(sink=fixed per head)"),
        (Entmax15(), "Entmax15()"),
        (Entmax(1.3), "Entmax(1.3)"),
        (Entmax(learned(1.3)), "Entmax(alpha per head)"),
        (Sigmoid(), "Sigmoid()"),
        (Sigmoid(-2.0), "Sigmoid(bias=-2.0)"),
        (TopKSoftmax(3), "TopKSoftmax(3)"),
    ],
)
def test_repr(normalizer, shown):
    assert repr(normalizer) == shown


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Softmax(temperature=0.0), "temperature must be above 0"),
        (lambda: Entmax(1.0), "alpha must be above 1"),
        (lambda: Entmax(torch.tensor([1.5, 0.5])), "alpha must be above 1"),
        (lambda: TopKSoftmax(0), "k must be a whole number ≥ 1"),
        (lambda: TopKSoftmax(2.5), "k must be a whole number ≥ 1"),
        (lambda: Normalizer()(torch.zeros(1)), "must define forward"),
    ],
)
def test_refuses(build, message):
    with pytest.raises(ContractError, match=message):
        build()
