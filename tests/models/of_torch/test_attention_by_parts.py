"""Sums of weighed values that are divided by those of the weights are named: no door sees them."""

import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError

WIDTH = 6


def over(k, v, add):
    return add(k.exp() * v) / add(k.exp())


def running(x):
    return x.cumsum(1)


def total(x):
    return x.sum(1, keepdim=True)


BIAS = torch.randn(5, 5, generator=torch.Generator().manual_seed(1)).tril().exp().tril()


def stepwise(k, v):
    """RWKV: the sums decay, and are kept relative to the largest score so far."""
    above, below, most, rows = 0.0, 0.0, torch.full_like(k[:, 0], -torch.inf), []
    for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
        now = torch.maximum(most - 0.1, key)
        old, new = torch.exp(most - 0.1 - now), torch.exp(key - now)
        above, below, most = above * old + new * value, below * old + new, now
        rows.append(above / below)
    return torch.stack(rows, 1)


def weighed(k, v, q):
    """The softmax in other words, of which the others are kinds."""
    causal = torch.full((5, 5), -torch.inf).triu(1)
    scores = k.mT[..., None, :] + causal  # (texts, channels, queries, keys)
    return (scores.softmax(-1) @ v.mT[..., None])[..., 0].mT


WAYS = {
    "running": lambda k, v, q: over(k, v, running),
    "gated": lambda k, v, q: q.sigmoid() * over(k - k.amax(1, keepdim=True), v, running),
    "with an epsilon": lambda k, v, q: running(k.exp() * v) / (running(k.exp()) + 1e-9),
    "inverse": lambda k, v, q: running(v * k.exp()) * (1 / running(k.exp())),
    "all": lambda k, v, q: over(k, v, total).expand_as(v),
    "means": lambda k, v, q: over(k, v, lambda x: x.mean(1, keepdim=True)).expand_as(v),
    "one weight a token": lambda k, v, q: over(k[..., :1], v, total).expand_as(v),
    "with a table": lambda k, v, q: over(k, v, lambda x: BIAS @ x),
    "in place": lambda k, v, q: running(k.exp().mul_(v)).div_(running(k.exp())),
    "step by step": lambda k, v, q: stepwise(k, v),
}


class Parts(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.sides, self.way = nn.Linear(WIDTH, 3 * WIDTH), way

    def forward(self, x):
        return x + self.way(*self.sides(x).chunk(3, -1))


class Softmax(nn.Module):
    def forward(self, x):
        self.seen = (x @ x.mT).softmax(-1)
        return x + self.seen @ x


@pytest.mark.parametrize("name", WAYS)
@torch.no_grad()
def test_attention_by_parts_is_named(name):
    torch.manual_seed(0)
    x, model = torch.randn(2, 5, WIDTH), nn.Sequential(Softmax(), Parts(WAYS[name])).eval()
    with pytest.warns(UserWarning, match=r"1 \(Parts\)"), capturing(model) as run:
        model(x)
    for number, trace in enumerate(run.traces):
        found = torch.tensor(
            trace["Softmax" if "Softmax" in trace.stacks else "0"][0, 0].to_dense()
        )
        torch.testing.assert_close(found, model[0].seen[number], check_dtype=False)
    with pytest.raises(CaptureError, match="Parts"), capturing(model[1]):
        model[1](x)


@torch.no_grad()
def test_running_sums_are_a_softmax():
    k, v = torch.randn(2, 2, 5, WIDTH)
    torch.testing.assert_close(WAYS["running"](k, v, None), weighed(k, v, None))


OTHERS = {
    "swish": lambda k, v, q: v * k.exp() / (1 + k.exp()),
    "branches": lambda k, v, q: (k.exp() * v + q.exp() * k) / (k.exp() + q.exp()),
    "channels": lambda k, v, q: (k.exp() * v).sum(-1, keepdim=True) / k.exp().sum(-1, keepdim=True),
    "noise": lambda k, v, q: v + q * (0.5 * k).exp() / (k.exp() * q).square().mean(1, keepdim=True),
    "two sums": lambda k, v, q: running(q.exp() * v) / running(k.exp()),
    "loss": lambda k, v, q: v * (k.exp().sum() / v.square().sum()),
}


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_what_is_no_softmax_over_tokens_is_not_named(name, recwarn):
    torch.manual_seed(0)
    x, model = torch.randn(2, 5, WIDTH), nn.Sequential(Softmax(), Parts(OTHERS[name])).eval()
    with capturing(model):
        model(x)
    assert not [one for one in recwarn if "Parts" in str(one.message)]
