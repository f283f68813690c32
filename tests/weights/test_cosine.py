import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

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
