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


class Biased(Single):
    """Adds a bias of all pairs to the scores of its heads, given or looked up."""

    def __init__(self, bias):
        super().__init__(SCORES["heads"])
        self.bias, self.table = bias, nn.Embedding(8, HEADS)

    def forward(self, x, pairs):
        given = self.scores
        self.scores = lambda q, k: given(q, k) + self.bias(self, pairs)
        try:
            scores = self.scores(self.q(x), self.k(x))
            if self.cut is not None:
                scores[self.cut] = -torch.inf
            self.seen = scores.softmax(-1)
            return (self.seen @ heads(self.v(x))).transpose(0, 1).flatten(1)
        finally:
            self.scores = given


class Spatial(nn.Module):
    """Layers that share a bias by the distances of all pairs, with a virtual node or without."""

    def __init__(self, rows=0):
        super().__init__()
        self.layers = nn.ModuleList(Biased(lambda self, pairs: pairs) for _ in range(2))
        self.table, self.rows = nn.Embedding(8, HEADS), nn.Parameter(torch.randn(rows, WIDTH))

    def forward(self, x, distances):
        x, more = torch.cat((self.rows, x)), len(self.rows)
        bias = F.pad(self.table(distances).permute(2, 0, 1), (more, 0, more, 0))
        for layer in self.layers:
            x = x + layer(x, bias)
        return x


def as_given(self, pairs):
    return pairs


BIASES = {
    "heads first": (as_given, torch.randn(HEADS, TOKENS, TOKENS)),
    "one of one": (lambda self, pairs: pairs[0], torch.randn(1, HEADS, TOKENS, TOKENS)),
    "looked up": (
        lambda self, pairs: self.table(pairs).permute(2, 0, 1),
        torch.randint(8, (TOKENS, TOKENS)),
    ),
    "paths": (
        lambda self, pairs: self.table(pairs).mean(2).permute(2, 0, 1),
        torch.randint(8, (TOKENS, TOKENS, 3)),
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_of_all_pairs_is_no_batch(name):
    bias, pairs = BIASES[name]
    model = Biased(bias).eval()
    check(model, [model], torch.randn(TOKENS, WIDTH), pairs)


def test_ids_of_tokens_beside_ids_of_pairs():
    model = Spatial().eval()
    embedded = nn.ModuleDict({"table": nn.Embedding(50, WIDTH), "model": model}).eval()
    embedded.forward = lambda pairs, ids: model(embedded["table"](ids), pairs)
    pairs = torch.randint(8, (TOKENS, TOKENS))
    check(embedded, list(model.layers), pairs, torch.randint(50, (TOKENS,)))


def test_a_virtual_node_beside_the_tokens():
    model = Spatial(1).eval()
    x, pairs = torch.randn(TOKENS, WIDTH), torch.randint(8, (TOKENS, TOKENS))
    with torch.no_grad(), capturing(model) as run:
        model(x, pairs)
    for one in run.trace.only_stack.heads.values():
        wanted = model.layers[one.layer].seen[one.head]
        np.testing.assert_allclose(one.to_dense(), wanted.numpy(), atol=1e-6)


class AcrossBeside(nn.Module):
    """All elements of a batch attend to each other, beside a place for each token."""

    def __init__(self):
        super().__init__()
        self.layer = Single(SCORES["products"])

    def forward(self, x, places):
        return (self.layer(x.flatten(0, 1))).view_as(x) + places


def test_a_batch_beside_as_many_rows_is_no_sequence():
    model = AcrossBeside().eval()
    x = torch.randn(TOKENS, TOKENS, TOKENS, WIDTH)[0]
    with pytest.raises(CaptureError, match=r"element.*x\[None\]"), capturing(model):
        model(torch.randn(2, TOKENS, WIDTH), torch.randn(TOKENS, WIDTH))
    texts = nn.ModuleDict({"table": nn.Embedding(50, WIDTH), "model": model}).eval()
    texts.forward = lambda ids, places: model(texts["table"](ids), places)
    with pytest.raises(CaptureError, match="element"), capturing(texts):
        texts(torch.randint(50, (TOKENS, TOKENS)), x[0])


class Embedding(nn.Module):
    """Embeds ids itself before it attends, beside other numbers of each text."""

    def __init__(self):
        super().__init__()
        self.table, self.q, self.of_text = (
            nn.Embedding(50, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, ids, features):
        x = self.table(ids)
        self.seen = (self.q(x) @ x.mT).softmax(-1)
        return self.seen @ x + self.of_text(features)[:, None]


@pytest.mark.parametrize("texts", [2, TOKENS])
def test_a_batch_of_as_many_texts_as_tokens_stays_one(texts):
    model = Embedding().eval()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randint(50, (texts, TOKENS)), torch.randn(texts, WIDTH))
    assert len(run.traces) == texts
    for trace, wanted in zip(run.traces, model.seen, strict=True):
        np.testing.assert_allclose(trace.only_stack[0, 0].to_dense(), wanted.numpy(), atol=1e-6)
