"""Attention over the edges of all heads at once: numbers, and gradients of any order."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from gattn.attention import graph_attention
from gattn.engines.tensors.ragged import head_products, ragged_softmax, softmax_sums
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.rules.per_head import per_head
from gattn.graph.token_graph import TokenGraph
from gattn.weights import GAT, GATv2

QUERIES, KEYS, BATCH, HEADS, DIM = 4, 5, 2, 3, 2
EDGES = {
    "some": [(0, 2), (0, 4), (1, 0), (1, 2), (3, 2), (3, 3)],
    "in another order": [(3, 4), (0, 4), (2, 3), (0, 0), (2, 1), (0, 2)],
    "doubled": [(0, 1), (0, 1), (1, 3), (2, 0), (2, 3), (2, 0)],
    "one row": [(2, 0), (2, 1), (2, 4)],
}


@pytest.fixture(params=EDGES)
def edges(request):
    index = torch.tensor(EDGES[request.param]).T
    return per_head(Neighbourhoods.from_pairs(*index, QUERIES, KEYS), BATCH * HEADS)


@pytest.fixture
def tokens(randn):
    return lambda count: randn(BATCH, HEADS, count, DIM).requires_grad_()


def dense(edges, numbers, fill):
    """Write numbers of edges, doubled ones side by side, as (heads, queries, edges)."""
    found = numbers.new_full((edges.heads, QUERIES, edges.base.num_edges), fill)
    for e in range(edges.base.num_edges):
        for head in range(edges.heads):
            query = int(edges.base.query[e])
            found[head, query, e] = numbers[int(edges.place[e, head])]
    return found


def test_each_head_has_its_own_edges(edges):
    base, heads = edges.base, edges.heads
    assert edges.source.sort().values.tolist() == list(range(edges.num_edges))
    for e in range(base.num_edges):
        for head in range(heads):
            place = int(edges.place[e, head])
            assert int(edges.source[place]) == e * heads + head
            assert int(edges.query[place]) == int(base.query[e]) * heads + head
            assert int(edges.key[place]) == int(base.key[e]) * heads + head
    back = edges.reversed
    assert torch.equal(edges.key[back.order], back.query)
    assert torch.equal(edges.query[back.order], back.key)
    assert edges is per_head(base, heads)


def test_products_are_those_of_the_ends(edges, tokens):
    query, key = tokens(QUERIES), tokens(KEYS)
    found = head_products(query, key, 0.3, edges)
    expected = (query[:, :, edges.base.query] * key[:, :, edges.base.key]).sum(-1) * 0.3
    torch.testing.assert_close(found[edges.place], expected.flatten(0, 1).T)


def test_sums_are_those_of_a_dense_softmax(edges, tokens, randn):
    scores, value = 3 * randn(edges.num_edges), tokens(KEYS)
    attention = torch.softmax(dense(edges, scores, -torch.inf), dim=-1).nan_to_num(0.0)
    expected = attention @ value.flatten(0, 1)[:, edges.base.key]
    found = softmax_sums(scores, value, edges)
    torch.testing.assert_close(found.flatten(0, 1), expected)
    torch.testing.assert_close(dense(edges, ragged_softmax(scores, edges), 0.0), attention)


def test_scores_of_no_edge_and_hostile_ones(tokens):
    edges = per_head(Neighbourhoods.from_pairs(*torch.tensor(EDGES["some"]).T, 4, 5), 1)
    nan, inf = torch.nan, torch.inf
    scores = torch.tensor([-inf, -inf, -inf, 800.0, nan, 1.0], dtype=torch.float64)
    found = ragged_softmax(scores.requires_grad_(), edges)
    torch.testing.assert_close(
        found, scores.new_tensor([0.0, 0.0, 0.0, 1.0, nan, nan]), equal_nan=True
    )
    (gradient,) = torch.autograd.grad(found[:4].sum(), scores)
    assert gradient[:4].tolist() == [0.0] * 4
    assert ragged_softmax(torch.full((6,), inf), edges).isnan().all()


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_they_have_gradients_of_any_order(edges, tokens, randn, check):
    given = tokens(QUERIES), tokens(KEYS)
    assert check(lambda q, k: head_products(q, k, 0.3, edges), given, fast_mode=True)
    scores = randn(edges.num_edges).requires_grad_()
    assert check(lambda s, v: softmax_sums(s, v, edges), (scores, tokens(KEYS)), fast_mode=True)
    assert check(lambda s: ragged_softmax(s, edges), (scores,), fast_mode=True)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("weight", [GATv2(HEADS, DIM, 3, 0.3), GAT(HEADS, DIM)])
def test_additive_scores_have_gradients_of_any_order(edges, tokens, weight, check):
    weight = weight.double()
    parameters = list(weight.parameters())

    def score(query, key, *parameters):
        found = weight.on_edges(*weight.prepare(query, key, None), edges)
        assert found is not None
        return found

    assert check(score, (tokens(QUERIES), tokens(KEYS), *parameters), fast_mode=True)


@pytest.mark.parametrize("pieces", [1, 1 << 18])
@pytest.mark.parametrize("weight", [GATv2(HEADS, DIM, 3, 0.3), GAT(HEADS, DIM)])
def test_additive_scores_are_those_of_pairs(edges, tokens, weight, pieces, monkeypatch):
    monkeypatch.setattr("gattn.weights.additive._PIECE_HIDDEN", pieces)
    weight = weight.double()
    query, key = weight.prepare(tokens(QUERIES), tokens(KEYS), None)
    ends = query[:, :, edges.base.query], key[:, :, edges.base.key]
    expected = weight(*(x.transpose(1, 2) for x in ends), None).transpose(1, 2)
    found = weight.on_edges(query, key, edges)[edges.place].T.unflatten(0, (BATCH, HEADS))
    torch.testing.assert_close(found, expected)
    leaves = query, key, *weight.parameters()
    both = [
        torch.autograd.grad(x.tanh().sum(), leaves, retain_graph=True, allow_unused=True)
        for x in (found, expected)
    ]
    for one, other in zip(*both, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other)


GRAPH = TokenGraph.from_edges([(0, 90), (5, 90), (7, 3), (90, 3)], 91)


@pytest.fixture
def attend(randn):
    given = [randn(HEADS, 91, DIM) for _ in range(3)]
    return lambda weight: graph_attention(*given, GRAPH, weight=weight)


class Doubled(GATv2):
    """Scores otherwise than what it inherits."""

    def forward(self, query, key, pairs):
        return 2 * super().forward(query, key, pairs)


def test_an_inherited_way_to_score_is_not_used_for_another_score(attend):
    weight, plain = (kind(HEADS, DIM, 3).double() for kind in (Doubled, GATv2))
    plain.load_state_dict(weight.state_dict())
    assert not torch.allclose(attend(weight), attend(plain))
    plain.vector.data *= 2
    torch.testing.assert_close(attend(weight), attend(plain))


def test_a_hook_of_the_weight_function_is_called(attend):
    weight = GATv2(HEADS, DIM, 3).double()
    before = attend(weight)
    handle = weight.register_forward_hook(lambda module, given, scores: 0 * scores)
    hooked = attend(weight)
    handle.remove()
    assert not torch.allclose(before, hooked)
    torch.testing.assert_close(attend(weight), before)
