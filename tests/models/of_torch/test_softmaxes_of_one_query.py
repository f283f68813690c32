"""Softmaxes of one query, (batch, keys), or of keys before queries: what logs them reads edits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gattn import Cut, edited

WIDTH, KEYS, STEPS = 16, 6, 4


class Decoder(nn.Module):
    """Attends once a step, and logs that."""

    def __init__(self, attend, keep):
        super().__init__()
        self.embed, self.encoder = nn.Embedding(30, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.decoder, self.out = nn.GRUCell(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 30)
        self.of_state, self.of_keys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score, self.attend, self.keep = nn.Linear(WIDTH, 1, bias=False), attend, keep

    def forward(self, source, target, change=lambda attention, step: attention):
        keys, hidden = self.encoder(self.embed(source))
        state, rows = hidden[0], []
        for step, word in enumerate(self.embed(target).unbind(1)):
            read = self.attend(self, state, keys, step, change)
            state = self.decoder(torch.cat([word, read], -1), state)
            rows.append(self.out(state))
        return torch.stack(rows, 1)


def luong(model, state, keys, step, change):
    attention = torch.softmax(keys @ state[..., None], 1)  # (batch, keys, 1)
    attention = change(attention.mT, step).mT
    model.keep(attention[..., 0])
    return (attention.mT @ keys)[:, 0]


def bahdanau(model, state, keys, step, change):
    scores = model.score(torch.tanh(model.of_state(state)[:, None] + model.of_keys(keys)))[..., 0]
    attention = change(torch.softmax(scores, -1), step)
    model.keep(attention)
    return torch.bmm(attention[:, None], keys)[:, 0]


def summed(model, state, keys, step, change):
    attention = change(torch.softmax((keys @ state[..., None])[..., 0], -1), step)
    model.keep(attention)
    return torch.einsum("bk,bkd->bd", attention, keys)


class Pool(nn.Module):
    """Pools its tokens by attention, which it logs."""

    def __init__(self, keep):
        super().__init__()
        self.embed, self.score = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, 1)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
        self.out, self.keep = nn.Linear(WIDTH, 5), keep

    def forward(self, source, change=lambda attention: attention):
        x = self.encoder(self.embed(source))
        attention = change(self.score(x)[..., 0].softmax(-1))
        self.keep(attention)
        return self.out((attention[:, None] @ x)[:, 0])


KEEPS = {
    "itself": lambda a: a,
    "copy": lambda a: a.detach().clone(),
    "list": lambda a: torch.tensor(a.tolist(), dtype=a.dtype),
    "mean": lambda a: a.mean(0),
}


def without(attention, step=STEPS - 1):
    if step != STEPS - 1:
        return attention
    others = torch.arange(KEYS) != 2
    return attention * others / (attention * others).sum(-1, keepdim=True)


def compared(model, kept, edit, given, change):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with edited(model, edit):
            found = model(*given)
    logged = list(kept)
    kept.clear()
    torch.testing.assert_close(found, model(*given, change), rtol=0, atol=1e-12)
    assert kept
    for one, wanted in zip(logged[-len(kept) :], kept, strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attend", [luong, bahdanau, summed])
@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_steps_of_a_decoder_log_what_edits_wrote(attend, keep, with_gradients):
    torch.manual_seed(0)
    kept = []
    model = Decoder(attend, lambda a: kept.append(keep(a))).double().eval()
    given = torch.randint(30, (2, KEYS)), torch.randint(30, (2, STEPS))
    with torch.set_grad_enabled(with_gradients):
        compared(model, kept, Cut(query=-1, key=2), given, without)


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_pooling_layer_logs_what_edits_wrote(keep, with_gradients):
    torch.manual_seed(0)
    kept = []
    model = Pool(lambda a: kept.append(keep(a))).double().eval()
    with torch.set_grad_enabled(with_gradients):
        cut = Cut(query=0, key=2, stack="Pool")
        compared(model, kept, cut, (torch.randint(30, (2, KEYS)),), without)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_heads_of_one_query_log_what_edits_wrote(with_gradients):
    class Heads(Pool):
        def forward(self, source, change=lambda attention: attention):
            x = self.encoder(self.embed(source))
            keys = x.unflatten(-1, (4, 4)).transpose(1, 2)  # (batch, heads, keys, dim)
            scores = (keys @ self.out.weight[:4, :4].mT[:, :1])[..., 0]
            attention = change(scores.softmax(-1))  # (batch, heads, keys)
            self.keep(attention)
            return (attention[:, :, None] @ keys)[:, :, 0]

    torch.manual_seed(0)
    kept = []
    model = Heads(lambda a: kept.append(a.detach().clone())).double().eval()
    with torch.set_grad_enabled(with_gradients):
        cut = Cut(query=0, key=2, stack="Heads")
        compared(model, kept, cut, (torch.randint(30, (2, KEYS)),), without)
