import pytest
import torch
from torch.testing import assert_close
from torch_geometric.nn.attention.performer import generalized_kernel, linear_attention

from gattn.attention import graph_attention
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Proportional
from gattn.testing import check_weight_function
from gattn.weights import KernelFeatures, PerformerFeatures, Polynomial


def elu_plus_one(vectors):
    return torch.nn.functional.elu(vectors) + 1


@pytest.mark.parametrize(
    "weight",
    [
        Polynomial(1),
        Polynomial(3, c=1.0),
        KernelFeatures(elu_plus_one),
        KernelFeatures(PerformerFeatures(4, 6)),
        KernelFeatures(torch.nn.Linear(4, 2)),
    ],
    ids=repr,
)
def test_contract(weight):
    check_weight_function(weight)


def test_polynomial(query, key, score, loop):
    expected = loop(lambda h, i, j, q, k: (q @ k + 0.5) ** 3, query, key)
    assert_close(score(Polynomial(3, c=0.5), query, key), expected)


@pytest.mark.parametrize("degree", [0, 1.5, True, 2**31])
def test_polynomial_refuses_other_degrees(degree):
    with pytest.raises(ContractError, match="degree must be a whole number from 1 to 2147483647"):
        Polynomial(degree)


def test_kernel_features(query, key, score, loop):
    expected = loop(lambda h, i, j, q, k: elu_plus_one(q) @ elu_plus_one(k), query, key)
    assert_close(score(KernelFeatures(elu_plus_one), query, key), expected)


def test_performer_is_torch_geometrics(query, key):
    features = PerformerFeatures(4, 6).double()
    theirs = [generalized_kernel(x, features.projection.T) for x in (query, key)]
    value = key.cos()
    ours = graph_attention(
        query,
        key,
        value,
        TokenGraph.bipartite(5, 7),
        weight=KernelFeatures(features),
        normalizer=Proportional(),
    )
    assert_close(ours, linear_attention(*theirs, value))
    assert_close(features(query), theirs[0])


def test_performer_projection_is_orthonormal_and_drawn_once():
    features = PerformerFeatures(8, 20, seed=3)
    first = features.projection[:, :8]
    assert_close(first.T @ first, torch.eye(8), rtol=0, atol=1e-5)
    assert_close(features.projection, PerformerFeatures(8, 20, seed=3).projection)
