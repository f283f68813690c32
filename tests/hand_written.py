"""A small model whose attention is any function of q, k and v, and the same by the formula."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gattn import Cut, Scale, capturing, edited

HEADS, DIM, TOKENS = 4, 8, 6
WIDTH = HEADS * DIM
ROOT = DIM**0.5
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


class Layer(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), way

    def parts(self, x):
        return self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        return self.out(self.way(*self.parts(x)).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, way, layers=2):
        super().__init__()
        self.blocks = nn.ModuleList(Layer(way) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

    def dense(self, x, change=lambda attention, layer: attention, is_causal=False):
        """Compute attention of all layers, and the output, by the formula."""
        found = []
        for n, block in enumerate(self.blocks):
            q, k, v = block.parts(x)
            scores = q @ k.mT / ROOT
            scores = scores.masked_fill(~CAUSAL, -torch.inf) if is_causal else scores
            attention = change(torch.softmax(scores, -1), n)
            found.append(attention)
            x = x + block.out((attention @ v).transpose(1, 2).flatten(2))
        return found, x


def made(way, batch=2, layers=2):
    torch.manual_seed(0)
    return Model(way, layers).double().eval(), torch.randn(batch, TOKENS, WIDTH).double()


def without(attention, layer, heads=slice(2, 3)):
    """Cut an edge of the last layer."""
    if layer == 1:
        attention = attention.clone()
        attention[:, heads, 4, 3] = 0
        attention = attention / attention.sum(-1, keepdim=True)
    return attention


def halved(attention, layer):
    factor = torch.ones_like(attention)
    factor[:, 1, 2:] = 0.5
    return attention * factor if layer == 0 else attention


EDITS = {
    "cut": (Cut(layer=1, head=2, query=4, key=3), without),
    "cut in all heads": (
        Cut(layer=1, query=4, key=3),
        lambda attention, layer: without(attention, layer, slice(None)),
    ),
    "scale": (Scale(0.5, layer=0, head=1, query=slice(2, None)), halved),
}


def check(way, is_causal=False, batch=2, atol=1e-12):
    """Check what is shown of a way to attend, and what edits of it give, by the formula."""
    model, x = made(way, batch)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), plain)
        found, output = model.dense(x, is_causal=is_causal)
        torch.testing.assert_close(plain, output, rtol=0, atol=atol)
        assert len(run.traces) == batch
        for row, trace in enumerate(run.traces):
            assert list(trace.stacks) == ["blocks"]
            assert sorted(place for place, _ in trace.only_stack.items()) == [
                (layer, head) for layer in range(2) for head in range(HEADS)
            ]
            for (layer, head), graph in trace.only_stack.items():
                wanted = found[layer][row, head].numpy()
                assert graph.graph.num_tokens == TOKENS
                assert not graph.graph.is_bipartite
                assert graph.to_dense() == pytest.approx(wanted, rel=0, abs=atol)
        for edit, change in EDITS.values():
            with edited(model, edit):
                now = model(x)
            wanted = model.dense(x, change, is_causal)[1]
            assert not torch.allclose(wanted, output, rtol=0, atol=1e-6)
            torch.testing.assert_close(now, wanted, rtol=0, atol=10 * atol)
