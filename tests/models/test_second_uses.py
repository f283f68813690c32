"""Attention that a model uses twice: or whose product with values is no plain one."""

import numpy as np
import pytest
import torch
from torch import nn

from gattn import capturing, estimate
from gattn.errors import CaptureError

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


class Attention(nn.Module):
    """Takes its attention to its values by some function of queries, keys and values."""

    def __init__(self, attend):
        super().__init__()
        self.qkv, self.out, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 1), attend

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def weights(q, k):
    return (q @ k.mT).softmax(-1)


def added_to(base, beta, alpha):
    def attend(q, k, v):
        flat = weights(q, k).flatten(0, 1), v.flatten(0, 1)
        return torch.baddbmm(base(v).flatten(0, 1), *flat, beta=beta, alpha=alpha).view_as(v)

    return attend


class Custom(torch.autograd.Function):
    """Attention with a backward pass of its own."""

    @staticmethod
    def forward(ctx, q, k, v):
        a = weights(q, k)
        ctx.save_for_backward(q, k, v, a)
        return a @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, a = ctx.saved_tensors
        of_weights = g @ v.mT
        of_scores = a * (of_weights - (of_weights * a).sum(-1, keepdim=True))
        return of_scores @ k, of_scores.mT @ q, a.mT @ g


def without_gradients(q, k, v):
    with torch.no_grad():
        read = weights(q, k) @ v
    return v + read


PRODUCTS = {
    "baddbmm": added_to(torch.zeros_like, 1, 1),
    "baddbmm to the residual stream": added_to(lambda v: v, 0.5, 2.0),
    "two products": lambda q, k, v: (lambda a: a @ v + a @ (2 * v))(weights(q, k)),
    "values in two parts": lambda q, k, v: (
        lambda a: torch.cat([a @ v[..., :1], a @ v[..., 1:]], -1)
    )(weights(q, k)),
}


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", PRODUCTS)
def test_estimates_of_each_product_are_the_effects(name, renormalize):
    torch.manual_seed(0)
    model = Attention(PRODUCTS[name]).double().eval()
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    found = estimate(lambda: model(x).sum(), model, renormalize=renormalize, sample=10_000)
    assert found["sampled"].all()
    np.testing.assert_allclose(found["estimate"], found["effect"], atol=1e-6)
    assert found["effect"].abs().max() > 0.01


@pytest.mark.parametrize("attend", [Custom.apply, without_gradients])
def test_attention_without_gradients_is_refused_rather_than_estimated_as_zero(attend):
    torch.manual_seed(0)
    model = nn.Sequential(Relative(), Attention(attend)).double().eval()
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    with pytest.raises(CaptureError, match="where torch keeps no gradients"):
        estimate(lambda: model(x).sum(), model)


def test_a_loop_over_heads_is_not_said_to_be_several_calls_of_the_model():
    def attend(q, k, v):
        return torch.stack([weights(q, k)[:, n] @ v[:, n] for n in range(HEADS)], 1)

    model, x = Attention(attend).eval(), torch.randn(1, TOKENS, WIDTH)
    with pytest.raises(CaptureError, match=r"attends part by part, in a loop, but .* of one call"):
        estimate(lambda: model(x).sum(), model)
    plain = Attention(PRODUCTS["baddbmm"]).eval()
    with pytest.raises(CaptureError, match="attends in several calls of the model"):
        estimate(lambda: plain(x).sum() + plain(x).sum(), plain)


def test_complex_values_are_refused():
    def attend(q, k, v):
        return (weights(q, k).to(torch.complex64) @ v.to(torch.complex64)).real

    model, x = Attention(attend).eval(), torch.randn(1, TOKENS, WIDTH)
    told = pytest.raises(CaptureError, match=r"complex values .* expected real ones")
    with told, torch.no_grad(), capturing(model):
        model(x)
