"""Rows of attention that stand for no token: learned and pooled queries, by models' own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited

WIDTH, TOKENS = 8, 6


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Pool(nn.Module):
    """Embeds ids if it is given some, mixes tokens, and pools them; keeps its attention."""

    def __init__(self, mix, way):
        super().__init__()
        self.embed, self.score = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 1)
        self.mix, self.way, self.cut = mix(), way, None

    def forward(self, x):
        x = x if x.is_floating_point() else self.embed(x)
        h = self.mix(x.mT).mT if isinstance(self.mix, nn.Conv1d) else self.mix(x)
        h = h[0] if isinstance(h, tuple) else h
        scores = self.score(torch.tanh(h))
        if self.cut is not None:
            scores = scores.index_fill(1, torch.tensor(self.cut), -torch.inf)
        weights = scores.softmax(1)
        self.seen = weights.mT.detach()
        return self.way(weights, h)


def convolution():
    return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)


def recurrent():
    return nn.GRU(WIDTH, WIDTH, batch_first=True)


def summed(weights, h):
    return (weights * h).sum(1)


def multiplied(weights, h):
    return torch.bmm(weights.mT, h)[:, 0]


def inputs(batch, kind):
    if kind == "ids":
        return torch.randint(0, 20, (batch, TOKENS))
    return torch.randn(batch, TOKENS, WIDTH)


def shown(run):
    """Attention of each element of the batch, the only stack and head of a trace."""
    (places,) = {tuple(trace.stacks) for trace in run.traces}
    (stack,) = places
    return np.stack([trace[stack][0, 0].to_dense() for trace in run.traces])


@pytest.mark.parametrize("way", [summed, multiplied])
@pytest.mark.parametrize(
    ("mix", "kind"),
    [
        (recurrent, "ids"),
        (convolution, "ids"),
        (recurrent, "vectors"),
        (convolution, "vectors"),
        (nn.Identity, "vectors"),
    ],
)
def test_a_learned_query_is_no_token(mix, way, kind):
    model, x = Pool(mix, way).eval(), inputs(2, kind)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)
    with torch.no_grad(), edited(model, Cut(layer=0, query=0, key=[0, 3])):
        found = model(x)
    model.cut = [0, 3]
    torch.testing.assert_close(found, model(x).detach())


class Queries(nn.Module):
    """Learned queries read tokens, perhaps each only the first ones, or mixed ones."""

    def __init__(self, count, causal=False, mix=nn.Identity):
        super().__init__()
        self.query = nn.Parameter(torch.randn(count, WIDTH))
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix, self.causal, self.cut = mix(), causal, None

    def forward(self, x):
        x = self.mix(x)
        x = x[0] if isinstance(x, tuple) else x
        scores = self.query @ self.key(x).mT / WIDTH**0.5
        if self.causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, -torch.inf)
        if self.cut is not None:
            scores = scores.clone()
            scores[..., self.cut[0], self.cut[1]] = -torch.inf
        weights = scores.softmax(-1)
        self.seen = weights.detach()
        return weights @ self.value(x)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "model", [lambda: Queries(4), lambda: Queries(TOKENS, True), lambda: Queries(4, mix=recurrent)]
)
def test_learned_queries_of_scores_belong_to_the_tokens_that_they_read(model, batch):
    model, x = model().eval(), inputs(batch, "vectors")
    with torch.no_grad(), capturing(model) as run:
        model(x)
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)
    assert all(head.graph.is_bipartite for trace in run.traces for head in trace.heads())
    with torch.no_grad(), edited(model, Cut(layer=0, query=2, key=1)):
        found = model(x)
    model.cut = 2, 1
    torch.testing.assert_close(found, model(x).detach())


class OneSlot(nn.Module):
    """One side has one slot, made of all tokens: their last state, or what a convolution gives."""

    def __init__(self, side):
        super().__init__()
        self.gru, self.pool = recurrent(), nn.Conv1d(WIDTH, WIDTH, TOKENS)
        self.side = side

    def forward(self, x):
        if self.side == "query":
            h = self.gru(x)[0]
            q, k = h[:, -1:], h
        else:
            q, k = x, self.pool(x.mT).mT
        self.seen = (q @ k.mT / WIDTH**0.5).softmax(-1).detach()
        return F.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("side", ["query", "key"])
def test_a_side_with_one_slot_has_none_to_tell_apart(side, batch):
    model, x = OneSlot(side).eval(), inputs(batch, "vectors")
    with torch.no_grad(), capturing(model) as run:
        model(x)
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)
