"""What a call of attention refuses."""

import pytest
import torch

from gattn.attention import attention_graphs, graph_attention
from gattn.engines.call import AttentionCall, EdgeList
from gattn.engines.shared.scoring import checked_scores
from gattn.errors import ContractError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Softmax
from gattn.weights import ALiBi, Cosine, Dot, ScaledDotProduct, T5RelativeBias


@pytest.mark.parametrize(
    "index",
    [
        torch.zeros(3, 4, dtype=torch.long),
        torch.zeros(4, dtype=torch.long),
        torch.zeros(2, 4),
        torch.zeros(2, 4, dtype=torch.int32),
        torch.zeros(2, 4, dtype=torch.bool),
    ],
    ids=["3 rows", "1 axis", "floats", "int32", "bool"],
)
def test_an_edge_index_of_another_shape_or_kind_is_named(index):
    with pytest.raises(ShapeError, match="edge_index must hold int64") as caught:
        EdgeList(index, 4, 4)
    assert str(index.dtype) in str(caught.value)
    assert str(tuple(index.shape)) in str(caught.value)


@pytest.mark.parametrize(
    ("edge", "named"),
    [
        ((4, 0), "keys.* 0 .. 3.* 4"),
        ((-1, 0), "keys.* 0 .. 3.* -1"),
        ((0, 5), "queries.* 0 .. 2.* 5"),
        ((0, -2), "queries.* 0 .. 2.* -2"),
    ],
)
def test_an_edge_to_a_token_that_is_not_there_is_named(edge, named):
    with pytest.raises(ShapeError, match=named):
        EdgeList(torch.tensor([[0, edge[0]], [0, edge[1]]]), num_queries=3, num_keys=4)


def test_no_edges_are_an_edge_list():
    edges = EdgeList(torch.zeros(2, 0, dtype=torch.long), 0, 0)
    assert edges.num_edges == 0


def test_a_graph_of_another_size_is_named():
    x = torch.zeros(1, 1, 5, 2)
    with pytest.raises(ShapeError, match=r"4 queries and 4 keys.*tensors have 5 and 5"):
        AttentionCall(x, x, TokenGraph.causal(4), ScaledDotProduct(), Softmax(), x)


def test_positions_follow_the_query_offset():
    query, key = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 5, 2)
    graph = TokenGraph.causal(2, num_keys=5, query_offset=3)
    call = AttentionCall(query, key, graph, ScaledDotProduct(), Softmax(), key)
    assert call.positions.query.tolist() == [3, 4]
    assert call.positions.key.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (3, 4, 5), (1, 4, 5)])
def test_scores_may_leave_out_batch_and_heads(shape):
    scores = checked_scores(torch.zeros(shape), (2, 3, 4, 5), ScaledDotProduct())
    assert scores.expand(2, 3, 4, 5).shape == (2, 3, 4, 5)


@pytest.mark.parametrize(
    "shape", [(2, 3, 1, 5), (2, 3, 4, 1), (4, 5), (2, 3, 5, 4), (1, 2, 3, 4, 5)]
)
def test_scores_may_not_leave_out_a_pair(shape):
    with pytest.raises(ContractError, match="one score for each pair"):
        checked_scores(torch.zeros(shape), (2, 3, 4, 5), ScaledDotProduct())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": ScaledDotProduct() + ALiBi(8)}, "ALiBi"),
        ({"weight": Cosine(torch.ones(3))}, "Cosine"),
        ({"weight": torch.ones(3) * Dot()}, "Dot"),
        ({"weight": T5RelativeBias(3)}, "3 heads, but the tensors have 4"),
        ({"normalizer": Softmax(sink=torch.zeros(3))}, "Softmax"),
    ],
)
@pytest.mark.parametrize("engine", ["tiles", "edges", "message_passing"])
def test_parameters_for_other_heads_are_named(options, said, engine):
    query, graph = torch.randn(4, 6, 8), TokenGraph.causal(6)
    with pytest.raises(ShapeError, match=said):
        graph_attention(query, query, query, graph, **options, engine=engine)
    if engine != "message_passing":
        with pytest.raises(ShapeError, match=said):
            attention_graphs(query, query, graph, **options, engine=engine)


@pytest.mark.parametrize("engine", ["fused", "tiles", "edges", "message_passing"])
def test_dims_that_differ_are_named(engine):
    query, key = torch.randn(4, 6, 8), torch.randn(4, 6, 5)
    with pytest.raises(ShapeError, match="one dim, got 8 and 5"):
        graph_attention(query, key, key, TokenGraph.causal(6), engine=engine)


@pytest.mark.parametrize("engine", ["tiles", "edges", "message_passing"])
def test_scores_that_are_not_one_a_pair_are_refused(engine):
    query = torch.randn(2, 6, 4)
    for weight in (lambda q, k, pairs: q * k, lambda q, k, pairs: (q * k).sum()):
        options = {"weight": weight, "engine": engine}
        with pytest.raises(ContractError, match="one score for each pair"):
            graph_attention(query, query, query, TokenGraph.causal(6), **options)
