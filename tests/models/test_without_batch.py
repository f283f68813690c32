"""Attention over one sequence that has no dimension for a batch, against the model's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

HEADS, DIM, TOKENS = 2, 4, 6
WIDTH = HEADS * DIM


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Single(nn.Module):
    """Scores (tokens, tokens) of one head, by any function of the tokens."""

    def __init__(self, scores):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scores, self.cut, self.seen = scores, None, None

    def forward(self, x):
        scores = self.scores(self.q(x), self.k(x))
        if self.cut is not None:
            scores = scores.clone()
            scores[self.cut] = -torch.inf
        attention = scores.softmax(-1)
        self.seen = attention.detach().reshape(-1, TOKENS, TOKENS)
        if self.scores is not SCORES["heads"]:
            return attention @ self.v(x)
        return (attention @ heads(self.v(x))).transpose(0, 1).flatten(1)


def heads(x):
    return x.unflatten(-1, (HEADS, DIM)).transpose(0, 1)


SCORES = {
    "products": lambda q, k: q @ k.T / WIDTH**0.5,
    "sums": lambda q, k: F.leaky_relu(q[:, :1] + k[:, :1].T),
    "masked": lambda q, k: (q @ k.T).masked_fill(~torch.ones(TOKENS, TOKENS).bool().tril(), -1e9),
    "heads": lambda q, k: heads(q) @ heads(k).mT,
}


def check(model, layers, *inputs):
    """What is shown is what each layer computed, and an edit does as the change by hand does."""
    with torch.no_grad(), capturing(model) as run:
        plain = model(*inputs)
    (trace,) = run.traces
    (stack,) = trace.stacks.values()
    assert {one.layer for one in stack.heads.values()} == set(range(len(layers)))
    for one in stack.heads.values():
        wanted = layers[one.layer].seen
        np.testing.assert_allclose(one.to_dense(), wanted[one.head].numpy(), atol=1e-6)
    last = layers[-1]
    head = len(last.seen) - 1
    last.cut = (head, 4, 1) if head else (4, 1)
    with torch.no_grad():
        wanted = model(*inputs)
        last.cut = None
        with edited(model, Cut(layer=len(layers) - 1, head=head, query=4, key=1)):
            found = model(*inputs)
    assert (wanted - plain).abs().max() > 1e-4
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scores", SCORES)
def test_tokens_by_channels(scores):
    model = Single(SCORES[scores]).eval()
    check(model, [model], torch.randn(TOKENS, WIDTH))


class Text(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.embedding, self.place = nn.Embedding(50, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*layers)

    def forward(self, ids):
        return self.layers(self.embedding(ids) + self.place(torch.arange(len(ids))))


@pytest.mark.parametrize("scores", SCORES)
def test_ids_of_one_sequence(scores):
    model = Text(Single(SCORES[scores]), Single(SCORES[scores])).eval()
    check(model, list(model.layers), torch.randint(50, (TOKENS,)))


class Kernel(Single):
    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def test_torchs_kernel_on_a_sequence():
    model, x = Kernel(None).eval(), torch.randn(TOKENS, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
        wanted = (model.q(x) @ model.k(x).T / WIDTH**0.5).softmax(-1)
    np.testing.assert_allclose(run.trace[0, 0].to_dense(), wanted.numpy(), atol=1e-6)


class Features(nn.Module):
    """Each row of a table is an element of the batch, whose features are its tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.attention = Single(None)

    def forward(self, x):
        tokens = x[..., None] * self.embedding
        one = self.attention
        scores = one.q(tokens) @ one.k(tokens).mT
        one.seen = scores.softmax(-1).detach()
        return scores.softmax(-1) @ one.v(tokens)


def test_rows_of_a_table_stay_elements_of_a_batch():
    model = Features().eval()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(3, TOKENS))
    assert len(run.traces) == 3
    for trace, wanted in zip(run.traces, model.attention.seen, strict=True):
        (stack,) = trace.stacks.values()
        np.testing.assert_allclose(stack[0, 0].to_dense(), wanted.numpy(), atol=1e-6)


class Across(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Single(SCORES["products"])

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).view_as(x)


def test_a_batch_whose_elements_attend_to_each_other_is_no_sequence():
    model = Across().eval()
    with pytest.raises(CaptureError, match="element"), capturing(model):
        model(torch.randn(2, TOKENS // 2, WIDTH))


class OneByOne(Single):
    def forward(self, x):
        return torch.cat([super(OneByOne, self).forward(x[n : n + 1]) for n in range(len(x))])


def test_elements_that_are_taken_one_at_a_time():
    torch.manual_seed(0)
    model, x = OneByOne(lambda q, k: q @ k.mT).eval(), torch.randn(3, TOKENS, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    for row, trace in enumerate(run.traces):
        with torch.no_grad(), capturing(model) as alone:
            model(x[row : row + 1])
        assert trace.only_stack[0, 0].to_dense() == pytest.approx(
            alone.trace.only_stack[0, 0].to_dense(), abs=1e-6
        )
