"""Numbers that are not finite, or are changed behind torch's back, are told as what they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, TOKENS = 8, 7


class Layer(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        self.qkv, self.change = nn.Linear(WIDTH, 3 * WIDTH), change

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        attention = (scores if mask is None else scores + mask).softmax(-1)
        if self.change is not None:
            self.change(attention)
        return attention @ v


def made(*given):
    torch.manual_seed(0)
    return Layer(*given).eval(), torch.randn(2, TOKENS, WIDTH)


def wanted(model, x):
    q, k, _ = model.qkv(x).chunk(3, -1)
    return (q @ k.mT / WIDTH**0.5).softmax(-1).detach()


@torch.no_grad()
def test_inputs_that_are_not_finite_are_told_and_no_refusal_is_kept():
    model, x = made()
    broken = x.clone()
    broken[0, 2, 3] = torch.nan
    for _ in range(2):
        with pytest.raises(CaptureError, match="inputs hold NaN or inf"), capturing(model):
            model(broken)
    broken[0, 2, 3] = torch.inf
    told = "inputs hold NaN or inf|the model itself or its output is NaN or infinite"
    with pytest.raises(CaptureError, match=told), capturing(model):
        model(broken)
    with capturing(model) as run:
        model(x)
    for trace, oracle in zip(run.traces, wanted(model, x), strict=True):
        assert trace[0, 0].to_dense() == pytest.approx(oracle.numpy(), abs=1e-6)


class Masked(Layer):
    """Makes a mask of ids, (1 - real) * -inf, which is NaN where a token is real."""

    def __init__(self):
        super().__init__()
        self.ids = nn.Embedding(10, WIDTH)

    def forward(self, ids):
        q, k, v = self.qkv(self.ids(ids)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        real = (ids > 0)[:, None, None].float()
        attention = (q @ k.mT + (1 - real) * -torch.inf).softmax(-1)
        return (attention @ v).transpose(1, 2).flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("length", [TOKENS, TOKENS - 2])
def test_a_mask_of_nan_is_told(length):
    ids = torch.arange(1, TOKENS + 1).expand(2, -1) * (torch.arange(TOKENS) < length)
    model = Masked().eval()
    with pytest.raises(CaptureError, match="is NaN or infinite at"), capturing(model):
        model(ids)


@torch.no_grad()
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_weights_that_are_not_finite_are_told(value):
    model, x = made()
    before = model.qkv.weight[0, 0].clone()
    model.qkv.weight[0, 0] = value
    x[..., 0] = 4.0
    says = "queries, keys, values or scores are NaN or inf|attention .* is NaN or inf"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(x)
    model.qkv.weight[0, 0] = before
    with edited(model, Cut(query=3, key=1)):
        output = model(x)
    bias = torch.zeros(TOKENS, TOKENS)
    bias[3, 1] = -torch.inf
    assert torch.allclose(output, model(x, bias), atol=1e-6)


@torch.no_grad()
def test_infinite_masks_are_no_broken_numbers():
    model, x = made()
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
    with capturing(model) as run:
        model(x, mask)
    q, k, _ = model.qkv(x).chunk(3, -1)
    oracle = (q @ k.mT / WIDTH**0.5 + mask).softmax(-1)[1].numpy()
    assert run.traces[1][0, 0].to_dense() == pytest.approx(oracle, abs=1e-6)


@torch.no_grad()
def test_huge_scores_are_told_and_no_refusal_is_kept():
    model, x = made()
    with pytest.raises(CaptureError, match="scores exceed 9000"), capturing(model):
        model(x * 1e6)
    with capturing(model) as run:
        model(x)
    assert run.traces[0][0, 0].to_dense() == pytest.approx(wanted(model, x)[0].numpy(), abs=1e-6)


def by_data(row):
    def change(attention):
        attention.data[:, row] *= 0.5

    return change


def by_numpy(row):
    def change(attention):
        attention.detach().numpy()[1, row, 2] += 0.01

    return change


@torch.no_grad()
@pytest.mark.parametrize("row", range(TOKENS))
@pytest.mark.parametrize("way", [by_data, by_numpy])
def test_changes_that_torch_does_not_tell_are_refused_in_each_row(way, row):
    model, x = made(way(row))
    for context in (capturing(model), edited(model, Cut(query=0, key=1))):
        with pytest.raises(CaptureError, match=rf"changed between .* query {row} "), context:
            model(x)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_is_no_change(dtype):
    model, x = made()
    model, x = model.to(dtype), x.to(dtype) * 3
    with capturing(model) as run:
        model(x)
    exact = wanted(model.double(), x.double())[1].numpy()
    close = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-6)
    assert run.traces[1][0, 0].to_dense() == pytest.approx(exact, abs=close)
