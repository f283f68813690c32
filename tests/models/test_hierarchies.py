"""Attention within parts of a text and between them, as in hierarchical attention networks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gattn import All, Cut, capturing, edited

WIDTH, SENTENCES, WORDS = 4, 3, 5


class Pool(nn.Module):
    """One learned query for the tokens of each element, softmax(u tanh(W h)) h."""

    def __init__(self, style: str, has_network: bool = False) -> None:
        super().__init__()
        self.style, self.to_hidden = style, nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1, bias=False)
        half = WIDTH // 2
        self.network = (
            nn.GRU(WIDTH, half, batch_first=True, bidirectional=True) if has_network else None
        )
        self.seen = torch.empty(0)

    def attention(self, states: Tensor) -> Tensor:
        return self.score(torch.tanh(self.to_hidden(states))).softmax(1)

    def forward(self, states: Tensor) -> Tensor:
        if self.network is not None:
            states = self.network(states)[0]
        weights = self.attention(states)
        self.seen = weights[..., 0].detach()
        if self.style == "sum":
            return (weights * states).sum(1)
        return torch.bmm(weights.mT, states)[:, 0]


class Hierarchy(nn.Module):
    def __init__(self, style: str, inside: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.network = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.words, self.sentences = Pool(style, inside), Pool(style)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.embed(ids).flatten(0, 1)
        return self.sentences(self.words(self.network(words)[0]).unflatten(0, ids.shape[:2]))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("style", ["sum", "bmm"])
@torch.no_grad()
def test_words_and_sentences_are_shown_and_cut(style: str, batch: int) -> None:
    torch.manual_seed(0)
    model, ids = Hierarchy(style).eval(), torch.randint(0, 50, (batch, SENTENCES, WORDS))
    with capturing(model) as run:
        model(ids)
    for n, trace in enumerate(run.traces):
        wanted = torch.block_diag(*model.words.seen.view(batch, SENTENCES, 1, WORDS)[n])
        found = torch.tensor(trace["words"][0, 0].to_dense())
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
        found = torch.tensor(trace["sentences"][0, 0].to_dense())
        torch.testing.assert_close(found, model.sentences.seen[n][None], atol=1e-6, rtol=0)
    with edited(model, Cut(layer=0, query=1, key=7, stack="words")):  # Sentence 1, its word 2.
        output = model(ids)
    states = model.network(model.embed(ids).flatten(0, 1))[0]
    weights = model.words.attention(states).view(batch, SENTENCES, WORDS)
    weights[:, 1, 2] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    pooled = torch.einsum("bsw,bswd->bsd", weights, states.view(batch, SENTENCES, WORDS, WIDTH))
    torch.testing.assert_close(output, model.sentences(pooled), atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_sum_over_states_of_a_network_is_not_taken_for_a_gate() -> None:
    model = Hierarchy("sum", inside=True).eval()
    said = r"^words \(\w+\) sums with the weights of a softmax, which may be attention"
    with pytest.warns(UserWarning, match=said), capturing(model) as run:
        model(torch.randint(0, 50, (2, SENTENCES, WORDS)))
    assert set(run.traces[0].stacks) == {"sentences"}


class Statistics(nn.Module):
    """Attention of each channel by itself, beside attention of all."""

    def __init__(self, *, values_first: bool) -> None:
        super().__init__()
        self.values_first = values_first
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.first, self.last = nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.attend(x, x, x)[0]).mT
        attention = self.last(self.first(x).tanh()).softmax(2)
        return (x * attention if self.values_first else attention * x).sum(2)


@pytest.mark.parametrize("values_first", [False, True])
@torch.no_grad()
def test_attention_of_single_channels_is_that_of_heads(values_first: bool) -> None:
    model = Statistics(values_first=values_first).eval()
    x = torch.randn(2, WORDS, WIDTH)
    with capturing(model, keep=All()) as run:
        model(x)
    y = (x + model.attend(x, x, x)[0]).mT
    attention = model.last(model.first(y).tanh()).softmax(2)
    for trace, expected in zip(run.traces, attention, strict=True):
        heads = trace.stacks["Statistics"]
        found = np.concatenate([heads[0, head].to_dense() for head in range(WIDTH)])
        np.testing.assert_allclose(found, expected, atol=1e-6)


class Kernels(nn.Module):
    """Weighs two convolutions of an image by the whole of it, and then attends between pixels."""

    def __init__(self, steps: int, way: str) -> None:
        super().__init__()
        self.steps, self.way = steps, way
        self.small = nn.Conv2d(WIDTH, WIDTH, 3, steps, 1)
        self.large = nn.Conv2d(WIDTH, WIDTH, 3, steps, 2, dilation=2)
        self.of_image, self.of_pixel = nn.Linear(WIDTH, 2 * WIDTH), nn.Conv2d(WIDTH, 2, 1)
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.stack([self.small(x), self.large(x)], 1)
        if self.way == "image":
            scores = self.of_image(maps.sum(1).mean((2, 3))).view(-1, 2, WIDTH, 1, 1)
        else:
            scores = self.of_pixel(x)[:, :, None]
        y = (maps * scores.softmax(1)).sum(1).flatten(2).mT
        return self.attend(y, y, y)[0]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("steps", "way"), [(1, "image"), (2, "image"), (1, "pixel")])
@torch.no_grad()
def test_weights_of_branches_are_gates(steps: int, way: str, batch: int) -> None:
    model = Kernels(steps, way).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capturing(model) as run:
            model(torch.randn(batch, WIDTH, 16, 15))
    assert all(set(trace.stacks) == {"attend"} for trace in run.traces)
