import math

import networkx as nx
import pytest
import torch
from torch.testing import assert_close

from gattn.attention import graph_attention
from gattn.errors import ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.testing import check_weight_function
from gattn.weights import Dot, EdgeBias, EdgeProduct


@pytest.mark.parametrize(
    "weight", [EdgeBias(3, 2), EdgeProduct(3, 4, 2), Dot() + 2 * EdgeBias(3, 2)], ids=repr
)
def test_contract(weight):
    check_weight_function(weight, edge_features=2)


@pytest.fixture
def features():
    return torch.randn(5, 7, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_edge_bias(query, key, features, score, loop):
    weight = EdgeBias(3, 2).double().requires_grad_(False)
    expected = loop(lambda h, i, j, q, k: features[i, j] @ weight.matrix[:, h], query, key)
    assert_close(score(weight, query, key, features), expected)


def test_edge_product(query, key, features, score, loop):
    weight = EdgeProduct(3, 4, 2).double().requires_grad_(False)

    def formula(h, i, j, q, k):
        edge = [features[i, j] @ weight.matrix[:, h, c] for c in range(4)]
        return sum(q[c] * k[c] * edge[c] for c in range(4)) / math.sqrt(4)

    assert_close(score(weight, query, key, features), loop(formula, query, key))


@pytest.mark.parametrize("weight", [Dot() + EdgeBias(3, 2), EdgeProduct(3, 4, 2)], ids=repr)
def test_features_of_edges_and_of_pairs_agree(weight, query, key, features):
    graph = TokenGraph.bipartite(5, 7)
    flat = features.flatten(0, 1)
    outputs = [
        graph_attention(query, key, key, graph, weight=weight.double(), edge_features=given)
        for given in (features, flat)
    ]
    assert_close(*outputs)


@pytest.mark.parametrize("weight", [EdgeBias(3, 2), EdgeProduct(3, 4, 2)], ids=repr)
def test_missing_features_are_named(weight, query, key, score, features):
    with pytest.raises(ShapeError, match="reads 2 features per edge; it got None"):
        score(weight.double(), query, key)
    with pytest.raises(ShapeError, match="it got 1"):
        score(weight.double(), query, key, features[..., :1])


def test_one_hot_distances_are_graphormers_spatial_bias(score):
    walks = nx.cycle_graph(6)
    distance = [[nx.shortest_path_length(walks, i, j) for j in range(6)] for i in range(6)]
    weight = EdgeBias(2, 4).requires_grad_(False)
    x = torch.zeros(1, 2, 6, 3)
    found = score(weight, x, x, torch.nn.functional.one_hot(torch.tensor(distance), 4))
    expected = torch.tensor(
        [[[float(weight.matrix[d, h]) for d in row] for row in distance] for h in range(2)]
    )
    assert_close(found[0], expected)
