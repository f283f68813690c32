"""Attention that a model uses twice: with values, and with vectors of relative positions."""

import numpy as np
import pytest
import torch
from torch import nn

from gattn import estimate

TOKENS, WIDTH, HEADS = 6, 8, 2


class Relative(nn.Module):
    """Adds values of relative positions (Shaw et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.relative = nn.Embedding(2 * TOKENS - 1, WIDTH // HEADS)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2)).softmax(-1)
        place = torch.arange(TOKENS)
        added = self.relative(place - place[:, None] + TOKENS - 1)
        y = a @ v + torch.einsum("bhqk,qkd->bhqd", a, added)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("is_trained", [True, False])
def test_estimates_count_each_use_of_the_attention(renormalize, is_trained):
    torch.manual_seed(0)
    model = Relative().double().eval().requires_grad_(is_trained)
    x, readout = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)

    def run():
        return (model(x[None])[0] * readout).sum()  # linear in the attention of the only layer

    found = estimate(run, model, renormalize=renormalize, sample=10_000)
    assert found["sampled"].all()
    np.testing.assert_allclose(found["estimate"], found["effect"], atol=1e-6)
    assert found["effect"].abs().max() > 0.01
