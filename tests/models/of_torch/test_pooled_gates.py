"""Gates that pool all tokens: what exchanges tokens has no names, what only weighs them has."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_moved_without_an_index import NAMES, TOKENS, WIDTH, Model, captured
from torch import nn


def _far(score):
    return score.mean() * 1e6


def _of_two(x, score):
    gates = torch.stack([_far(score), -_far(score)]).softmax(0)
    return (torch.stack([x, x.flip(1)]) * gates[:, None, None, None]).sum(0)


EXCHANGES = {
    "sigmoid": lambda x, score: x + (x.flip(1) - x) * _far(score).sigmoid(),
    "clamp": lambda x, score: x + _far(score).clamp(0, 1) * (x.flip(1) - x),
    "two gates": lambda x, score: (
        x * (1 - _far(score).relu().clamp(max=1)) + x.flip(1) * _far(score).relu().clamp(max=1)
    ),
    "lerp": lambda x, score: torch.lerp(x, x.flip(1), (_far(score).tanh() + 1) / 2),
    "softmax": _of_two,
    "open gate": lambda x, score: x + (x.flip(1) - x) * score.mean().sigmoid(),
    "by channel": lambda x, score: x + (x.flip(1) - x) * x.mean(1, keepdim=True).sigmoid(),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_tokens_that_a_gate_exchanges_have_no_names(name):
    model, x = Model(EXCHANGES[name]), torch.randn(1, TOKENS, WIDTH).double()
    stack, said = captured(model, x)
    assert list(stack[0, 0].tokens) == NAMES or not stack[0, 0].tokens
    assert stack[1, 0].tokens == ()
    assert any("picks or orders tokens" in one for one in said)


class Squeeze(nn.Module):
    """A convolution over tokens and channels that a gate of all tokens weighs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1).double()
        self.gate = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x, score):
        y = self.conv(x.mT).mT
        return x + y * self.gate(y.mean(1, keepdim=True)).sigmoid()


WEIGHS = {
    "squeeze and excitation": Squeeze(),
    "channels": lambda x, score: x * x.mean(1, keepdim=True).sigmoid(),
    "bias": lambda x, score: x + x.mean(1, keepdim=True),
    "highway": lambda x, score: (
        x * score.mean().sigmoid() + x.cumsum(1) * (-score.mean()).sigmoid()
    ),
}


@pytest.mark.parametrize("name", WEIGHS)
def test_tokens_that_a_gate_only_weighs_keep_their_names(name):
    model, x = Model(WEIGHS[name]), torch.randn(1, TOKENS, WIDTH).double()
    stack, said = captured(model, x)
    wanted = model.layers[1].attention[0].detach()
    torch.testing.assert_close(torch.tensor(stack[1, 0].to_dense()), wanted, rtol=0, atol=1e-12)
    assert not said
    assert list(stack[1, 0].tokens) == NAMES


MOVES = {
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(3, 1),
    "halves": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
}


@pytest.mark.parametrize("size", [TOKENS, 20])
@pytest.mark.parametrize("name", MOVES)
def test_tokens_that_are_moved_after_a_gate_have_no_names(name, size):
    model = Model(lambda x, score: MOVES[name](WEIGHS["channels"](x, score)))
    names = [str(n) for n in range(size)]
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing_all(model, names) as run:
            model(torch.randn(1, size, WIDTH).double())
    assert run.trace.only_stack[1, 0].tokens == ()
    assert said


def capturing_all(model, names):
    from gattn import capturing

    return capturing(model, tokens=names)


@pytest.mark.parametrize("elements", [1, 2])
def test_tokens_that_come_last_among_as_many_channels(elements):
    from gattn import capturing

    x = torch.randn(elements, WIDTH, WIDTH).double()
    names = list("abcdef")
    turns = Model(lambda x, score: x.flip(-1), dim=2)
    with torch.no_grad(), capturing(turns, tokens=[names] * elements) as run:
        turns(x)
    found = torch.tensor(run.traces[0].only_stack[0, 0].to_dense())
    wanted = turns.layers[0].attention[0].detach().flip(0, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
