import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from gattn.attention import graph_attention
from gattn.graph import TokenGraph
from gattn.testing import check_weight_function
from gattn.weights import Cosine, SwinCosine


def cosine(q, k):
    return (q @ k) / math.sqrt(q @ q) / math.sqrt(k @ k)


@pytest.mark.parametrize(
    "weight",
    [
        Cosine(),
        Cosine(3.0),
        Cosine(nn.Parameter(torch.ones(3))),
        Cosine(torch.ones(3)),
        SwinCosine(3),
    ],
    ids=repr,
)
def test_contract(weight):
    check_weight_function(weight)


def test_cosine_with_one_tau_a_head(query, key, score, loop):
    tau = torch.tensor([0.5, 1.0, 20.0], dtype=torch.float64)
    expected = loop(lambda h, i, j, q, k: tau[h] * cosine(q, k), query, key)
    assert_close(score(Cosine(nn.Parameter(tau)), query, key).detach(), expected)


def test_swin_starts_at_10_and_stops_at_100(query, key, score, loop):
    weight = SwinCosine(3).double()
    with torch.no_grad():
        weight.theta[1] = 2.0
        weight.theta[2] = 50.0
    tau = [10.0, math.exp(2.0), 100.0]
    expected = loop(lambda h, i, j, q, k: tau[h] * cosine(q, k), query, key)
    assert_close(score(weight, query, key).detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_vector_has_cosine_0_and_finite_gradient(dtype, score):
    query = torch.zeros(1, 1, 1, 4, dtype=dtype, requires_grad=True)
    key = torch.ones(1, 1, 2, 4, dtype=dtype)
    scores = score(Cosine(), query, key)
    scores.sum().backward()
    assert scores.tolist() == [[[[0.0, 0.0]]]]
    assert torch.isfinite(query.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("build", [Cosine, lambda: SwinCosine(2)], ids=["cosine", "swin"])
def test_padding_leaves_gradients_finite(build, dtype):
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        sides = torch.randn(3, 1, 2, 6, 4, generator=draw)
        sides[:, :, :, 3] = 0.0
        query, key, value = (x.to(dtype).requires_grad_() for x in sides)
        output = graph_attention(query, key, value, TokenGraph.causal(6), weight=build().to(dtype))
        gradients = torch.autograd.grad(output.float().square().sum(), [query, key, value])
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert not gradients[0][:, :, 3].any()
        assert not gradients[1][:, :, 3].any()


SIZES = {torch.float16: 3e4, torch.bfloat16: 1e38, torch.float32: 1e38, torch.float64: 1e300}


@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("is_large", [True, False])
def test_the_length_of_a_vector_does_not_count(dtype, is_large, score):
    """Squares of these overflow, or, but where the vector is as good as zero, vanish."""
    size = SIZES[dtype] if is_large else (1e-3 if dtype == torch.float16 else 1e-11)
    draw = torch.Generator().manual_seed(0)
    query, key = torch.rand(2, 1, 1, 5, 4, generator=draw, dtype=torch.float64) + 0.5
    query, key = (x / x.amax() for x in (query, key))
    long = score(Cosine(), (query * size).to(dtype), (key * size).to(dtype))
    expected = torch.nn.functional.cosine_similarity(query[:, :, :, None], key[:, :, None], dim=-1)
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    assert_close(long.double(), expected, atol=tolerance, rtol=tolerance)


def test_gradients_of_short_vectors_are_bounded():
    for size in (1e-11, 1e-13, 1e-25, 1e-38, 1e-45):
        query = torch.full((1, 1, 1, 4), size, requires_grad=True)
        sides = Cosine().prepare(query, torch.ones(1, 1, 1, 4), None)
        (gradient,) = torch.autograd.grad(sides[0].sum() + sides[0][..., 0].sum(), query)
        assert float(gradient.abs().max()) <= 2e12


def test_gradients_are_those_of_torchs_normalization():
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 2, 5, 4, generator=draw, dtype=torch.float64).requires_grad_()
    pull = torch.randn(1, 2, 5, 4, generator=draw, dtype=torch.float64)
    found = Cosine().prepare(vectors, vectors, None)[0]
    wanted = torch.nn.functional.normalize(vectors, dim=-1)
    assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((x * pull).sum(), vectors)[0] for x in (found, wanted)]
    assert_close(*gradients, rtol=1e-12, atol=1e-12)
    torch.autograd.gradcheck(lambda x: Cosine(2.0).prepare(x, x, None), vectors)
    torch.autograd.gradgradcheck(lambda x: Cosine(2.0).prepare(x, x, None), vectors)
