"""What engines leave alone, and what they do not keep."""

import pytest
import torch
from torch import nn

from gattn.attention import attention_graphs, graph_attention
from gattn.engines import explain, tiles
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import Threshold
from gattn.module import GraphAttention
from gattn.normalizers import Entmax15
from gattn.weights import ALiBi, EdgeBias, ScaledDotProduct, SquaredDistance
from gattn.weights.position import PositionWeight


class Given(PositionWeight):
    """The edge's own features, as they lie in memory."""

    def forward(self, query, key, pairs):
        return pairs.features


@pytest.mark.parametrize("engine", ["tiles", "edges"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("weight", [Given(), lambda query, key, pairs: pairs.features])
def test_what_a_term_returns_is_not_written_to(engine, heads, weight):
    query = torch.randn(2, heads, 9, 4)
    graph = TokenGraph.window(9, 3)
    features = torch.randn(9, 9, heads)
    before = features.clone()
    with torch.no_grad():
        options = {"weight": weight, "edge_features": features, "engine": engine}
        first = graph_attention(query, query, query, graph, **options)
        assert torch.equal(first, graph_attention(query, query, query, graph, **options))
        graph_attention(query, query, query, graph, weight=ALiBi(heads), engine=engine)
    assert torch.equal(features, before)


@pytest.mark.parametrize("engine", ["fused", "tiles", "edges"])
def test_half_precision_scores_distances_as_well_as_single(engine):
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 70, 64, generator=draw).bfloat16() for _ in range(3)]
    exact = [x.double() for x in tensors]
    options = {"weight": SquaredDistance(0.5)}
    found = graph_attention(*tensors, TokenGraph.causal(70), engine=engine, **options)
    wanted = graph_attention(*exact, TokenGraph.causal(70), engine="edges", **options)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_half_gradients_of_many_pieces_add_up_in_single(monkeypatch, engine):
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 4 * 600)
    query = torch.zeros(1, 600, 4, dtype=torch.bfloat16)
    value = torch.ones(1, 600, 4, dtype=torch.bfloat16, requires_grad=True)
    options = {"weight": lambda q, k, pairs: (q * k).sum(-1), "engine": engine}
    output = graph_attention(query, query, value, TokenGraph.complete(600), **options)
    (gradient,) = torch.autograd.grad(output.float().sum(), value)
    torch.testing.assert_close(gradient.float(), torch.ones(1, 600, 4), atol=0.02, rtol=0)


@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_random_weight_functions_are_drawn_alike_for_the_gradient(monkeypatch, engine):
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 4 * 50)
    monkeypatch.setattr("gattn.engines.shared.scoring.PIECE_NUMBERS", 60)
    draws = []

    def noisy(q, k, pairs):
        noise = torch.rand_like((q * k).sum(-1))
        draws.append(noise.sum().item())
        return (q * k).sum(-1) * noise

    query = torch.randn(1, 12, 4, requires_grad=True)
    graph = TokenGraph.causal(12)
    output = graph_attention(query, query, query, graph, weight=noisy, engine=engine)
    forward = sorted(draws)
    draws.clear()
    output.sum().backward()
    assert len(forward) > 1
    assert set(draws) == set(forward)  # a block, and then each piece of it, is computed again


def test_an_edge_index_may_change_before_the_gradient():
    index = torch.tensor([[0, 1, 2], [1, 2, 2]])
    layer = GraphAttention(4, 4)
    x = torch.randn(3, 4)
    gradients = []
    for change in (False, True):
        leaf, edges = x.clone().requires_grad_(), index.clone()
        output = layer(leaf, edges)
        if change:
            edges.zero_()
        gradients.append(torch.autograd.grad(output.square().sum(), leaf)[0])
    torch.testing.assert_close(*gradients)


def test_document_ids_may_change():
    ids = torch.tensor([0, 0, 1, 1])
    graph = TokenGraph.documents(ids)
    ids.zero_()
    assert graph.num_edges == int(graph.mask().sum()) == 8


def test_a_vanishing_threshold_keeps_no_pairs_that_are_none():
    query = torch.randn(1, 12, 4)
    (head,) = attention_graphs(query, query, TokenGraph.window(12, 3), keep=Threshold(1e-50))
    assert head.graph.num_edges == TokenGraph.window(12, 3).num_edges


@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_a_gradient_keeps_little_of_what_was_computed(monkeypatch, engine):
    tokens, dim = 256, 64
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 1 << 18)
    kept = {}
    query = torch.randn(1, tokens, dim, requires_grad=True)
    weight = lambda q, k, pairs: (q - k).abs().sum(-1)  # noqa: E731

    def seen(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        graph = TokenGraph.complete(tokens)
        graph_attention(query, query, query, graph, weight=weight, engine=engine)
    assert sum(kept.values()) < tokens * tokens * dim / 8


@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_autocast_leaves_scores_alone(engine):
    query = 3 * torch.randn(2, 9, 16)
    arguments = query, query, query, TokenGraph.causal(9)
    wanted = graph_attention(*arguments, normalizer=Entmax15(), engine=engine)
    with torch.autocast("cpu", torch.bfloat16):
        found = graph_attention(*arguments, normalizer=Entmax15(), engine=engine)
    torch.testing.assert_close(found, wanted)


def test_errors_of_the_user_are_their_own():
    def broken(q, k, pairs):
        raise RuntimeError("database down")

    query = torch.randn(1, 5, 4)
    with pytest.raises(RuntimeError, match=r"^database down$"):
        graph_attention(query, query, query, TokenGraph.causal(5), weight=broken)
    with pytest.raises(ContractError, match="return"):
        graph_attention(query, query, query, TokenGraph.causal(5), weight=lambda q, k, pairs: 1.0)
    layer = GraphAttention(8, 2, 4, weight=nn.Parameter(torch.ones(3)) * ScaledDotProduct())
    with pytest.raises(ValueError, match="do not fit"):
        layer(torch.randn(6, 8), TokenGraph.causal(6))


def test_explain_says_what_would_run_and_why(capsys):
    query = torch.zeros(2, 300, 8)
    explain(query, query, TokenGraph.causal(300), weight=ScaledDotProduct() + ALiBi(2))
    told = capsys.readouterr().out
    assert "45,150 edges, 0.5 of all pairs" in told
    assert "graph_attention runs tiles, attention_graphs tiles" in told
    assert "fused            cannot: the score is not a dot product alone" in told
    assert "> tiles" in told
    features = torch.zeros(45_150, 3)
    graph = TokenGraph.causal(300)
    explain(query, query, graph, weight=EdgeBias(2, 3), edge_features=features)
    assert "> edges" in capsys.readouterr().out
