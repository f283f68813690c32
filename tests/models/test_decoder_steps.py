"""A decoder that attends to an encoder's states once a step, written in one module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

WIDTH, TOKENS, STEPS = 8, 6, 3


class Decoder(nn.Module):
    """Its queries are made of all tokens, since the encoder's last state begins them."""

    def __init__(self, way):
        super().__init__()
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.key, self.query = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score, self.way = nn.Linear(WIDTH, 1), way

    def forward(self, x, way=None, cut=None):
        states, (h, c) = self.encoder(x)
        h, c, given = h[0], c[0], x[:, 0]
        self.shown, found = [], []
        for step in range(STEPS):
            h, c = self.cell(given, (h, c))
            score = self.score(torch.tanh(self.key(states) + self.query(h)[:, None]))
            if cut == step:
                score = score.index_fill(1, torch.tensor(3), -torch.inf)
            given = (way or self.way)(score, states)
            self.shown.append(score.exp()[..., 0] / score.exp().sum(1))
            found.append(given)
        return torch.stack(found, 1)


def product(score, states):
    return torch.bmm(score.squeeze(-1).softmax(-1)[:, None], states)[:, 0]


def sum_of_products(score, states):
    return (score.softmax(1) * states).sum(1)


def dense(score, states):
    """Average states by exponentials of scores, without a softmax."""
    each = score.exp() / score.exp().sum(1, keepdim=True)
    return torch.einsum("btn,btd->bd", each, states)


@pytest.fixture(params=[product, sum_of_products])
def model(request):
    torch.manual_seed(0)
    return Decoder(request.param).double().eval()


@torch.no_grad()
def test_each_step_attends_to_the_states(model):
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    with capturing(model) as run:
        found = model(x)
    torch.testing.assert_close(found, model(x, dense))
    for n, trace in enumerate(run.traces):
        assert len(trace.stacks) == STEPS
        for step, stack in enumerate(trace.stacks.values()):
            expected = model.shown[step][n, None]
            np.testing.assert_allclose(stack[0, 0].to_dense(), expected, atol=1e-6)


@torch.no_grad()
def test_an_edge_of_one_step_is_cut(model):
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    with capturing(model) as run:
        model(x)
    stack = list(run.traces[0].stacks)[1]
    with edited(model, Cut(layer=0, query=0, key=3, stack=stack)):
        found = model(x)
    torch.testing.assert_close(found, model(x, dense, cut=1))
