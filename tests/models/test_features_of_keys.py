"""Attention whose scores are made of other tensors than its values: keys' features, made once."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gattn import All, Cut, capturing, edited

WIDTH, TOKENS, STEPS, WORDS = 8, 6, 3, 20


def filled(score: Tensor, mask: Tensor) -> Tensor:
    return score.masked_fill(mask == 0, -1e9).softmax(-1)


def divided(score: Tensor, mask: Tensor) -> Tensor:
    left = score.softmax(-1) * mask
    return left / left.sum(-1, keepdim=True)


def zeroed(score: Tensor, mask: Tensor) -> Tensor:
    left = score.softmax(-1).masked_fill(mask == 0, 0)
    return left / left.sum(-1, keepdim=True)


class Additive(nn.Module):
    """Reads states by features of theirs, which may be rows of one matrix for all texts."""

    def __init__(self, way, *, is_flat: bool) -> None:
        super().__init__()
        self.query, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.way, self.is_flat = way, is_flat
        self.shown: list[Tensor] = []
        self.cut: tuple[int, int] | None = None

    def forward(self, given, states, features, mask):
        query = self.query(given)[:, None].expand_as(states)
        query = query.reshape(-1, WIDTH) if self.is_flat else query
        score = self.score(torch.tanh(features + query)).view(states.shape[:2])
        attention = self.way(score, mask)
        if self.cut is not None and self.cut[0] == len(self.shown):
            attention = attention.index_fill(1, torch.tensor(self.cut[1]), 0)
            attention = attention / attention.sum(-1, keepdim=True)
        self.shown.append(attention.detach().clone())
        return (attention[:, None] @ states)[:, 0]


class Decoder(nn.Module):
    """Reads texts both ways, and then attends once a step."""

    def __init__(self, way=filled, *, is_flat: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.feature, self.cell = nn.Linear(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.attend = Additive(way, is_flat=is_flat)
        self.double().eval()

    def forward(self, ids):
        states = self.encoder(self.embed(ids))[0].contiguous()
        features = self.feature(states)
        features = features.view(-1, WIDTH) if self.attend.is_flat else features
        state, found, self.attend.shown = states.mean(1), [], []
        for _ in range(STEPS):
            read = self.attend(state, states, features, (ids > 0).double())
            state = self.cell(read, state)
            found.append(state)
        return torch.stack(found, 1)


def texts(count: int, *padded: int) -> Tensor:
    ids = torch.randint(1, WORDS, (count, TOKENS), generator=torch.Generator().manual_seed(1))
    ids[-1, TOKENS - len(padded) :] = 0
    return ids


def check(model: Decoder, trace, text: int) -> None:
    (stack,) = trace.stacks.values()
    rows = np.concatenate([stack[layer, 0].to_dense() for layer in stack.layers])
    wanted = torch.stack(model.attend.shown, 1)[text].numpy()
    assert rows.shape[0] == STEPS
    width = min(rows.shape[1], TOKENS)
    np.testing.assert_allclose(rows[:, :width], wanted[:, :width], atol=1e-12)
    assert not rows[:, width:].any()
    assert not wanted[:, width:].any()


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("way", [filled, divided, zeroed])
@pytest.mark.parametrize("count", [1, 2])
def test_keys_keep_their_positions_under_any_padding(way, is_flat, count):
    plain = Decoder(way, is_flat=is_flat)
    one, other = texts(count, 0, 0), texts(count)
    for order in ((one, other), (other, one)):
        model = copy.deepcopy(plain)
        with torch.no_grad(), capturing(model, keep=All()) as run:
            for ids in order:
                model(ids)
        for number, ids in enumerate(order):
            with torch.no_grad():
                model(ids)
            for text in range(count):
                check(model, run.traces[number * count + text], text)


@pytest.mark.filterwarnings("ignore:attend .* is edited where its attention meets the values")
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("way", [filled, divided])
def test_cuts_reach_the_key_they_name(way, is_flat):
    model, ids = Decoder(way, is_flat=is_flat), texts(2, 0, 0)
    with torch.no_grad():
        plain = model(ids)
        with capturing(model) as run:
            model(ids)
        (stack,) = run.traces[0].stacks.values()
        where = {"query": 1} if len(stack.layers) == 1 else {"layer": 1}
        with edited(model, Cut(key=3, **where)):
            found = model(ids)
        model.attend.cut = 1, 3
        wanted = model(ids)
    assert (wanted - plain).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_padded_steps_are_one_layer():
    model, ids = Decoder(), texts(2, 0, 0)
    with torch.no_grad(), capturing(model) as run:
        model(ids)
    (stack,) = run.traces[0].stacks.values()
    assert stack.layers == [0]


class Weights(nn.Module):
    """Only makes the weights, as of a sum of states that is written elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, states):
        return self.score(states)[..., 0].softmax(-1)


class Reader(nn.Module):
    """Runs several networks before one makes the weights of its sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first, self.second = (
            nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True) for _ in range(2)
        )
        self.weigh = Weights()
        self.double().eval()

    def forward(self, ids):
        states = self.second(self.first(self.embed(ids))[0])[0]
        self.shown = self.weigh(states)
        return (self.shown[:, None] @ states)[:, 0]


def test_the_module_that_makes_the_weights_tells_the_keys():
    model, ids = Reader(), texts(2)
    with torch.no_grad(), capturing(model, keep=All()) as run:
        model(ids)
    for text, trace in enumerate(run.traces):
        np.testing.assert_allclose(trace[0, 0].to_dense()[0], model.shown[text].numpy(), atol=1e-12)


class Pools(nn.Module):
    """Divides what a mask leaves by a sum that is a single number, where there is one text."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.score = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 1)
        self.double().eval()

    def forward(self, ids):
        states = self.embed(ids)
        self.shown = divided(self.score(states)[..., 0], (ids > 0).double())
        return (self.shown[:, None] @ states)[:, 0]


@pytest.mark.parametrize("padded", [(), (0, 0)])
def test_one_text_is_divided_by_one_number(padded):
    model, ids = Pools(), texts(1, *padded)
    with torch.no_grad(), capturing(model, keep=All()) as run:
        model(ids)
    found, wanted = run.trace[0, 0].to_dense()[0], model.shown[0].numpy()
    np.testing.assert_allclose(found, wanted[: len(found)], atol=1e-12)
    assert not wanted[len(found) :].any()
