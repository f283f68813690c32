"""Tokens that a model learned attend to each other, before they read what the model is given."""

import numpy as np
import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, HEADS, TOKENS = 8, 2, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def weights(self, x, given):
        q, k = (
            part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part, y in ((self.query, x), (self.key, given))
        )
        return (q @ k.mT / 2).softmax(-1)

    def forward(self, x, given, change=None):
        attention = self.weights(x, given)
        attention = attention if change is None else change(attention)
        value = self.value(given).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return (attention @ value).transpose(1, 2).flatten(2)


class Reader(nn.Module):
    """Learned queries attend to each other, then to the input, as in DETR and BLIP-2."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.own, self.cross = (nn.ModuleList(Attention() for _ in range(2)) for _ in range(2))

    def begin(self, count):
        return self.tokens.expand(count, -1, -1)

    def forward(self, given, change=None):
        x = self.begin(len(given))
        for n, (own, cross) in enumerate(zip(self.own, self.cross, strict=True)):
            x = x + own(x, x, change if n == 0 else None)
            x = x + cross(x, given)
        return x


class AsTargets(Reader):
    """Positions are learned, and what they stand for begins at zero."""

    def forward(self, given, change=None):
        x = given.new_zeros(len(given), TOKENS, WIDTH)
        for n, (own, cross) in enumerate(zip(self.own, self.cross, strict=True)):
            x = x + own(x + self.tokens, x + self.tokens, change if n == 0 else None)
            x = x + cross(x + self.tokens, given)
        return x


class Mixing(Reader):
    """All texts are mixed in the end: which is which cannot be told."""

    def forward(self, given, change=None):
        return super().forward(given).mean(0)


def without(attention):
    """Cut key 1 from query 3."""
    attention = attention.clone()
    attention[:, :, 3, 1] = 0
    return attention / attention.sum(-1, keepdim=True)


@pytest.mark.parametrize("count", [1, 3, TOKENS])
@pytest.mark.parametrize("kind", [Reader, AsTargets])
def test_learned_tokens_that_attend_to_each_other_are_read(kind, count):
    torch.manual_seed(0)
    model = kind().double().eval()
    given = torch.randn(count, 4, WIDTH).double()
    with torch.no_grad():
        plain = model(given)
        with capturing(model) as run:
            assert torch.equal(model(given), plain)
        wanted = model.own[0].weights(model.begin(1), model.begin(1))[0]
        assert len(run.traces) == count
        for trace in run.traces:
            for head in range(HEADS):
                found = trace.stacks["own"][0, head].to_dense()
                np.testing.assert_allclose(found, wanted[head], rtol=0, atol=1e-12)
            assert trace.stacks["own"][1, 0].graph.num_tokens == TOKENS
        changed = model(given, without)
        assert not torch.allclose(changed, plain)
        with edited(model, Cut(layer=0, query=3, key=1, stack="own")):
            torch.testing.assert_close(model(given), changed, rtol=0, atol=1e-12)


def test_learned_tokens_whose_texts_cannot_be_told_are_refused():
    model = Mixing().eval()
    with torch.no_grad(), pytest.raises(CaptureError, match="element of the batch"):  # noqa: SIM117
        with capturing(model):
            model(torch.randn(3, 4, WIDTH))


class OnGraph(nn.Module):
    """A GAT by dense algebra, on nodes (nodes, channels) and a matrix of which are neighbours."""

    def __init__(self):
        super().__init__()
        self.value, self.ends = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def weights(self, x, adjacency):
        of = self.ends(self.value(x))
        scores = nn.functional.leaky_relu(of[:, :1] + of[:, 1:].T, 0.2)
        return scores.masked_fill(adjacency == 0, -9e15).softmax(1)

    def forward(self, x, adjacency):
        return self.weights(x, adjacency) @ self.value(x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float64])
def test_nodes_without_a_batch_may_come_with_integers_for_each_pair(dtype):
    torch.manual_seed(0)
    model, x = OnGraph().double().eval(), torch.randn(6, WIDTH).double()
    adjacency = (torch.rand(6, 6) > 0.5) | torch.eye(6, dtype=torch.bool)
    with torch.no_grad():
        wanted = model.weights(x, adjacency)
        with capturing(model) as run:
            model(x, adjacency.to(dtype))
    np.testing.assert_allclose(run.trace[0, 0].to_dense(), wanted, rtol=0, atol=1e-12)
