"""More ways to write attention: heads averaged before the product, masks of torch's own class."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

TOKENS, HEADS, DIM = 6, 2, 4


class Attends(nn.Module):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(3))
        self.way, self.bias = way, causal_lower_right(TOKENS, TOKENS)
        self.double().eval()

    def forward(self, x):
        sides = (f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.way(self, *sides).transpose(1, 2).flatten(2)


def _softmax(module, q, k, zero=()):
    attention = (q @ k.mT).softmax(-1)
    module.attention = attention.detach()
    return attention


def _x():
    return torch.randn(2, TOKENS, HEADS * DIM, generator=torch.Generator().manual_seed(1)).double()


MEANS = {
    "mean": lambda a: a.mean(1, keepdim=True),
    "expanded": lambda a: a.mean(1, keepdim=True).expand(-1, HEADS, -1, -1),
    "sum": lambda a: a.sum(dim=1)[:, None] / HEADS,
}


@pytest.mark.parametrize("name", MEANS)
@torch.no_grad()
def test_heads_that_are_averaged_are_shown_one_by_one(name):
    module = Attends(lambda self, q, k, v: MEANS[name](_softmax(self, q, k)) @ v)
    x = _x()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with capturing(module) as run:
            module(x)
    assert any("mixes the attention of its heads" in str(one.message) for one in said)
    wanted = module.attention
    for text, trace in enumerate(run.traces):
        for head in range(HEADS):
            found = torch.tensor(trace.only_stack[0, head].to_dense())
            torch.testing.assert_close(found, wanted[text, head], rtol=0, atol=1e-12)
    with warnings.catch_warnings(), edited(module, Cut(layer=0, head=1, query=2, key=3)):
        warnings.simplefilter("ignore")
        found = module(x)
    wanted[:, 1, 2, 3] = 0
    wanted[:, 1, 2] /= wanted[:, 1, 2].sum(-1, keepdim=True)
    v = module.v(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
    wanted = x + (MEANS[name](wanted) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 2])
@torch.no_grad()
def test_a_mean_over_texts_or_queries_is_no_mixture_of_heads(dim):
    module = Attends(lambda self, q, k, v: _softmax(self, q, k).mean(dim, keepdim=True) @ v)
    with pytest.raises(CaptureError, match="changed by mean"), capturing(module):
        module(_x())


@torch.no_grad()
def test_a_causal_bias_is_a_causal_mask():
    def way(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)

    module = Attends(way)
    with capturing(module) as run:
        module(_x())
    q, k = (f(_x()).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (module.q, module.k))
    scores = q @ k.mT / DIM**0.5
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    wanted = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    for text, trace in enumerate(run.traces):
        found = torch.tensor(trace.only_stack[0, 1].to_dense())
        torch.testing.assert_close(found, wanted[text, 1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_causal_bias_that_is_made_as_the_model_runs_is_refused():
    def way(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, causal_upper_left(TOKENS, TOKENS))

    module = Attends(way)
    with pytest.raises(CaptureError, match="make them once before"), capturing(module):
        module(_x())


NARROW = [torch.float32, torch.bfloat16]


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
@torch.no_grad()
@pytest.mark.parametrize("dtype", NARROW)
def test_a_softmax_in_float64_may_meet_narrower_values(dtype):
    def attend(self, q, k, v):
        attention = _softmax(self, q, k)
        if self.is_cut:
            attention[:, 1, 4, 2] = 0
            attention = attention / attention.sum(-1, keepdim=True)
        return (attention.to(dtype) @ v.to(dtype)).double()

    module, x = Attends(attend), _x()
    module.is_cut = False
    plain = module(x)
    wanted = module.attention
    with capturing(module) as run:
        assert torch.equal(module(x), plain)
    for text, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            found = torch.tensor(graph.to_dense())
            torch.testing.assert_close(found, wanted[text, head], atol=1e-7, rtol=0)
    with edited(module, Cut(layer=0, head=1, query=4, key=2)):
        found = module(x)
    module.is_cut = True
    torch.testing.assert_close(found, module(x), atol=torch.finfo(dtype).eps, rtol=0)
    assert not torch.allclose(found, plain, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("name", ["kernel", "softmax"])
def test_modules_without_numbers_are_refused(name):
    ways = {
        "kernel": lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v),
        "softmax": lambda self, q, k, v: _softmax(self, q, k) @ v,
    }
    module = Attends(ways[name]).to("meta")
    with pytest.raises(CaptureError, match="without numbers"), capturing(module):
        module(_x().to("meta"))


MAXIMA = {
    "of each row": lambda x: x - x.max(-1, keepdim=True)[0],
    "of all": lambda x: x - x.max().detach(),
    "of each head": lambda x: x - x.amax((-2, -1), keepdim=True),
    "clamped": lambda x: torch.clamp(x - x.max(), min=-50000),
}


class Reads(Attends):
    def forward(self, x, y):
        of = zip((self.q, self.k, self.v), (x, y, y), strict=True)
        sides = (f(z).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f, z in of)
        return x + self.way(self, *sides).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("name", MAXIMA)
@torch.no_grad()
def test_a_maximum_that_scores_lose_mixes_no_tokens(name):
    def attend(self, q, k, v):
        self.attention = MAXIMA[name](q @ k.mT).softmax(-1)
        return self.attention @ v

    module, x = Reads(attend), _x()
    with capturing(module) as run:
        module(x[:, 1:] * 2, x)
    for text, trace in enumerate(run.traces):
        for head in range(HEADS):
            found = torch.tensor(trace[0, head].to_dense())
            torch.testing.assert_close(found, module.attention[text, head])
