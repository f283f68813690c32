import pytest
import torch
from torch.testing import assert_close

from gattn.engines import edges, fused, message_passing, tiles
from gattn.engines.call import attention_call
from gattn.errors import ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.testing import check_weight_function
from gattn.weights import Bilinear, Dot, ScaledDotProduct


@pytest.mark.parametrize(
    "weight", [Dot(), ScaledDotProduct(), ScaledDotProduct(0.3), Bilinear(3, 4)]
)
def test_contract(weight):
    check_weight_function(weight)


def test_bilinear_contract_between_different_sizes():
    check_weight_function(Bilinear(3, 4, 6), key_dim=6)


@pytest.mark.parametrize(
    ("weight", "scale"), [(Dot(), 1.0), (ScaledDotProduct(), 0.5), (ScaledDotProduct(0.3), 0.3)]
)
def test_dot_products(weight, scale, query, key, score, loop):
    expected = loop(
        lambda h, i, j, q, k: scale * sum(a * b for a, b in zip(q, k, strict=True)), query, key
    )
    assert_close(score(weight, query, key), expected)


def test_bilinear(query, key, score, loop):
    weight = Bilinear(3, 4, 2).double()
    matrix = weight.matrix.detach()
    key = key[..., :2]
    assert_close(
        score(weight, query, key), loop(lambda h, i, j, q, k: q @ matrix[h] @ k, query, key)
    )


@pytest.mark.parametrize("engine", [tiles, edges, fused, message_passing])
def test_scaled_dot_product_is_torchs_own(engine, query, key):
    call, _ = attention_call(query, key, TokenGraph.bipartite(5, 7), value=key)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, key)
    assert_close(engine.run(call), expected)


def test_pool_beats_badminton():
    words = torch.tensor([[0.5, 0.1, 0.1, 0.2], [0.1, 0.5, 0.2, 0.1], [0.5, 0.1, 0.2, 0.1]])[None]
    call, _ = attention_call(words, words, TokenGraph.complete(3), Dot(), None, words)
    expected = [[0.38, 0.22, 0.16, 0.14], [0.35, 0.25, 0.17, 0.13], [0.38, 0.22, 0.17, 0.13]]
    assert_close(tiles.run(call)[0, 0], torch.tensor(expected), rtol=0, atol=0.005)


def test_bilinear_names_sizes_that_do_not_fit(query, key, score):
    with pytest.raises(ShapeError, match=r"Bilinear\(2, 4, 4\) is for a query of 2 heads and 4"):
        score(Bilinear(2, 4).double(), query, key)
