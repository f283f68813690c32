"""Attention to other tokens is told from self-attention, also where both have as many."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import capturing

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    """Takes queries, keys and values, as in "The Annotated Transformer"."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def weights(self, query, key):
        q, k = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part, x in zip(self.parts, (query, key), strict=False)
        )
        return (q @ k.mT / 2).softmax(-1)

    def forward(self, query, key, value):
        value = self.parts[2](value).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return (self.weights(query, key) @ value).transpose(1, 2).flatten(2)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.reads, self.own, self.cross = (
            nn.ModuleList(Attention() for _ in range(2)) for _ in range(3)
        )

    def forward(self, source, target):
        x, y = source, target
        for layer in self.reads:
            x = x + layer(x, x, x)
        for own, cross in zip(self.own, self.cross, strict=True):
            y = y + own(y, y, y)
            y = y + cross(y, x, x)
        return y


class Layer(nn.Module):
    """Given its input twice, it attends to itself; normalized apart, these are two tensors."""

    def __init__(self):
        super().__init__()
        self.inner = Attention()

    def forward(self, x, given):
        given = F.layer_norm(given, (WIDTH,))
        return x + self.inner(F.layer_norm(x, (WIDTH,)), given, given)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.cross = Layer(), Layer()

    def forward(self, source, target):
        return self.cross(self.own(target, target), source)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [Translator, Reader])
def test_cross_attention_has_two_sides(kind, count):
    torch.manual_seed(0)
    model = kind().eval()
    with torch.no_grad():
        for tokens in (5, 6, 5):
            with capturing(model) as run:
                model(torch.randn(count, 5, WIDTH), torch.randn(count, tokens, WIDTH))
            for trace in run.traces:
                for stack, heads in trace.stacks.items():
                    crosses = {head.graph.is_bipartite for head in heads.values()}
                    assert crosses == {stack.startswith("cross")}, stack


def test_a_module_is_proved_again_when_it_is_given_two_tensors():
    torch.manual_seed(0)
    model = Attention().double().eval()
    x, y = torch.randn(2, 1, 5, WIDTH).double()
    with torch.no_grad():
        for query, key in ((x, x), (x, y), (x, x)):
            with capturing(model) as run:
                model(query, key, key)
            head = run.trace[0, 1]
            assert head.graph.is_bipartite == (key is y)
            wanted = model.weights(query, key)[0, 1]
            np.testing.assert_allclose(head.to_dense(), wanted, rtol=0, atol=1e-12)
