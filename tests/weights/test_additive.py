import pytest
import torch
from torch.testing import assert_close
from torch_geometric.nn import GATConv, GATv2Conv

from gattn.attention import graph_attention
from gattn.errors import ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.testing import check_weight_function
from gattn.weights import GAT, Additive, GATv2


@pytest.mark.parametrize(
    "weight", [Additive(3, 4, 6), GAT(3, 4), GAT(3, 4, 0.5), GATv2(3, 4, 6), GATv2(3, 4, 6, 0.5)]
)
def test_contract(weight):
    check_weight_function(weight)


def test_additive(query, key, score, loop):
    weight = Additive(3, 4, 6).double().requires_grad_(False)

    def formula(h, i, j, q, k):
        return weight.vector[h] @ torch.tanh(q @ weight.query_matrix[h] + k @ weight.key_matrix[h])

    assert_close(score(weight, query, key), loop(formula, query, key))


def test_gat(query, key, score, loop):
    weight = GAT(3, 4).double().requires_grad_(False)

    def formula(h, i, j, q, k):
        score = float(weight.query_vector[h] @ q + weight.key_vector[h] @ k)
        return score if score > 0 else 0.2 * score

    assert_close(score(weight, query, key), loop(formula, query, key))


GRAPH = TokenGraph.from_edges([(0, 1), (2, 1), (3, 0), (1, 1), (4, 3), (0, 3), (2, 0)], 5)


def test_gat_is_torch_geometrics():
    torch.manual_seed(0)
    conv = GATConv(6, 4, heads=3, add_self_loops=False).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    heads = conv.lin(x).view(5, 3, 4).transpose(0, 1)
    weight = GAT(3, 4).double()
    with torch.no_grad():
        weight.key_vector.copy_(conv.att_src[0])
        weight.query_vector.copy_(conv.att_dst[0])
    ours = graph_attention(heads, heads, heads, GRAPH, weight=weight)
    assert_close(ours.transpose(0, 1).flatten(1) + conv.bias, conv(x, GRAPH.edge_index))


def test_gatv2_is_torch_geometrics():
    torch.manual_seed(0)
    conv = GATv2Conv(6, 4, heads=3, add_self_loops=False).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    with torch.no_grad():
        conv.lin_l.bias.normal_()
        conv.lin_r.bias.normal_()
        weight = GATv2(3, 6, 4).double()
        weight.key_matrix.copy_(conv.lin_l.weight.view(3, 4, 6).transpose(1, 2))
        weight.query_matrix.copy_(conv.lin_r.weight.view(3, 4, 6).transpose(1, 2))
        weight.bias.copy_((conv.lin_l.bias + conv.lin_r.bias).view(3, 4))
        weight.vector.copy_(conv.att[0])
    heads = x.expand(3, 5, 6)
    value = conv.lin_l(x).view(5, 3, 4).transpose(0, 1)
    ours = graph_attention(heads, heads, value, GRAPH, weight=weight)
    assert_close(ours.transpose(0, 1).flatten(1) + conv.bias, conv(x, GRAPH.edge_index))


@pytest.mark.parametrize("weight", [Additive(2, 4, 6), GAT(2, 4), GATv2(3, 5, 6)])
def test_names_sizes_that_do_not_fit(weight, query, key, score):
    with pytest.raises(ShapeError, match="it got 3 heads and 4 features"):
        score(weight.double(), query, key)
