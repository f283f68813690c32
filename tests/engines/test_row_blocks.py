"""Blocks of whole rows, with scores and without."""

import pytest
import torch
from pairs import all_pairs

from gattn import ALiBi, Softmax, TokenGraph, TopKSoftmax
from gattn.engines import tiles
from gattn.engines.call import attention_call
from gattn.weights.dot import ScaledDotProduct

MASK = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.2
MASK[3] = False
GRAPHS = {
    "complete": TokenGraph.complete(40),
    "causal": TokenGraph.causal(40),
    "window": TokenGraph.window(40, 5),
    "listed": TokenGraph.from_mask(MASK),
    "gathered": TokenGraph.strided(40, 9),
    "step": TokenGraph.causal(1, query_offset=39),
}
WEIGHTS = {"dot": ScaledDotProduct(), "biased": ScaledDotProduct() + ALiBi(4)}
NORMALIZERS = {
    "softmax": Softmax(),
    "tempered": Softmax(temperature=0.5),
    "sink": Softmax(sink=0.3),
    "other": TopKSoftmax(2),
}


def dense(query, key, graph, weight, normalizer):
    """The attention (batch, heads, queries, keys), all pairs at once."""
    at = torch.arange(graph.num_queries)[:, None] + graph.query_offset
    scores = query.double() @ key.double().transpose(-2, -1) / query.shape[-1] ** 0.5
    if weight == "biased":
        slopes = 4.0 ** -torch.arange(1, 5).double()
        scores = scores - slopes[:, None, None] * (at - torch.arange(graph.num_keys)).abs()
    scores = scores.masked_fill(~graph.mask(), -torch.inf)
    return NORMALIZERS[normalizer](scores)


@pytest.mark.parametrize(
    ("name", "weight", "normalizer", "scores", "block_bytes"),
    [
        (*case, block_bytes)
        for case in [
            *all_pairs(GRAPHS, WEIGHTS, NORMALIZERS, [True, False]),
            ("listed", "dot", "softmax", False),  # a row without edges, shared out in place
        ]
        for block_bytes in (1 << 24, 4 * 6 * 80, 1)
    ],
)
def test_blocks_are_the_rows_of_the_dense_formula(
    monkeypatch, name, weight, normalizer, scores, block_bytes
):
    monkeypatch.setattr(tiles, "BLOCK_BYTES", block_bytes)
    graph = GRAPHS[name]
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 4, graph.num_queries, 8, generator=generator, requires_grad=True)
    key = torch.randn(2, 4, graph.num_keys, 8, generator=generator)
    call, _ = attention_call(query, key, graph, WEIGHTS[weight], NORMALIZERS[normalizer])
    found = torch.zeros(2, 4, graph.num_queries, graph.num_keys)
    for block in tiles.row_blocks(call, scores=scores):
        assert (block.scores is not None) == scores
        found[:, :, block.rows, block.columns] = block.attention.detach()
    expected = dense(query.detach(), key, graph, weight, normalizer)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_attention_that_takes_the_place_of_its_scores_has_their_precision(dtype):
    query, key = torch.randn(2, 1, 3, 40, 8).to(dtype)
    call, _ = attention_call(query, key, GRAPHS["causal"])
    for with_scores, without in zip(
        tiles.row_blocks(call), tiles.row_blocks(call, scores=False), strict=True
    ):
        assert without.attention.dtype == with_scores.attention.dtype
        torch.testing.assert_close(without.attention, with_scores.attention)


def test_blocks_without_scores_lie_in_one_place(monkeypatch):
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 4 * 3 * 400)
    query = torch.randn(1, 3, 200, 8)
    call, _ = attention_call(query, query, TokenGraph.complete(200))
    blocks = [block.attention.data_ptr() for block in tiles.row_blocks(call, scores=False)]
    assert len(blocks) > 10
    assert len(set(blocks)) == 1


@pytest.mark.parametrize("scores", [True, False])
def test_a_row_whose_scores_are_all_minus_infinity_attends_to_nothing(scores):
    query, key = torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 2)
    query[:, :, 2], key[..., 0] = 1e30, -1e30
    call, _ = attention_call(query, key, TokenGraph.causal(4))
    (block,) = tiles.row_blocks(call, scores=scores)
    assert block.attention[0, 0, 2].tolist() == [0.0] * 4
    assert block.attention[0, 0, 3].sum().item() == pytest.approx(1)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("graph", ["complete", "causal", "window", "listed"])
def test_some_rows_are_those_of_the_dense_formula(graph, weight):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 40, 3, dtype=torch.float64)
    call, _ = attention_call(query, key, GRAPHS[graph], WEIGHTS[weight], Softmax(), value)
    rows = torch.tensor([0, 3, 21, 39])
    allowed = GRAPHS[graph].allowed(rows, torch.arange(40))
    scores = query[:, :, rows] @ key.mT / 3**0.5
    if weight == "biased":
        slopes = 2.0 ** (-2.0 * torch.arange(1, 5))[:, None, None]
        scores = scores - slopes * (rows[:, None] - torch.arange(40)).abs()
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(tiles.some_rows(call, rows), expected)
