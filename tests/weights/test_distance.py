import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from gattn.attention import graph_attention
from gattn.graph.token_graph import TokenGraph
from gattn.testing import check_weight_function
from gattn.weights import L1Distance, SquaredDistance
from gattn.weights.pairs import tile_scores


@pytest.mark.parametrize("distance", [SquaredDistance, L1Distance])
@pytest.mark.parametrize(
    "c", [1.0, 0.3, nn.Parameter(torch.ones(3)), torch.tensor([1.0, 2.0, 0.0])]
)
def test_contract(distance, c):
    check_weight_function(distance(c))


def test_squared_distance(query, key, score, loop):
    c = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    expected = loop(
        lambda h, i, j, q, k: -c[h] * sum((q[m] - k[m]) ** 2 for m in range(4)),
        query,
        key,
    )
    assert_close(score(SquaredDistance(c), query, key), expected)


def test_l1_distance(query, key, score, loop):
    c = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    expected = loop(
        lambda h, i, j, q, k: -c[h] * sum(abs(q[m] - k[m]) for m in range(4)), query, key
    )
    assert_close(score(L1Distance(c), query, key), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**30), dim=st.integers(1, 64))
def test_expanded_square_is_precise_and_not_positive(dtype, tolerance, seed, dim):
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 1, 6, dim, generator=draw, dtype=torch.float64)
    key = torch.cat([query, torch.randn(1, 1, 5, dim, generator=draw, dtype=torch.float64)], 2)
    exact = -(query[:, :, :, None] - key[:, :, None]).square().sum(-1)
    found = tile_scores(SquaredDistance(), query.to(dtype), key.to(dtype), None).double()
    size = 1 + query.square().sum(-1).max() + key.square().sum(-1).max()
    assert_close(found / size, exact / size, rtol=0, atol=tolerance)
    assert (found <= tolerance * size).all()


def test_softmax_of_squared_distance_is_a_biased_dot_product(query, key, score):
    distance = score(SquaredDistance(0.7), query, key).softmax(-1)
    dot = 1.4 * query @ key.transpose(-2, -1) - 0.7 * key.square().sum(-1)[:, :, None]
    assert_close(distance, dot.softmax(-1))


def test_half_precision_does_not_expand_the_square(query, key):
    half = query.bfloat16()
    assert SquaredDistance().dot_form(half, half) is None
    assert (tile_scores(SquaredDistance(), half, half, None).diagonal(dim1=-2, dim2=-1) == 0).all()


def test_squared_distance_of_far_away_vectors_keeps_its_digits():
    query, key, value = 100 + torch.randn(3, 2, 6, 4)
    graph = TokenGraph.complete(6)
    found = graph_attention(query, key, value, graph, weight=SquaredDistance())
    wide = [x.double() for x in (query, key, value)]
    scores = -(wide[0][:, :, None] - wide[1][:, None]).square().sum(-1)
    torch.testing.assert_close(found.double(), scores.softmax(-1) @ wide[2], atol=1e-4, rtol=1e-5)
