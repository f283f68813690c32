"""Layers of gattn have the names of tokens only where the model has not moved these before."""

import warnings

import pytest
import torch
from torch import nn

import gattn

pytest.importorskip("torch_geometric.nn")
TOKENS, WIDTH = 8, 6
NAMES = tuple("abcdefgh")
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])
CAUSAL = gattn.TokenGraph.causal(TOKENS)


class Model(nn.Module):
    """Two layers; `between` does something to tokens before the second."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (gattn.GraphAttention(WIDTH, WIDTH) for _ in range(2))
        self.embedding = nn.Embedding(10, WIDTH)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.between = between
        self.eval()

    def forward(self, x):
        x = x if x.is_floating_point() else self.embedding(x)
        return self.second(self.between(self, self.first(x, CAUSAL)), CAUSAL)


MOVES = {
    "order": lambda model, x: x[..., ORDER, :],
    "flip": lambda model, x: x.flip(-2),
    "grid": lambda model, x: x.unflatten(-2, (2, 4)).transpose(-3, -2).flatten(-3, -2),
    "sort": lambda model, x: x.gather(-2, x[..., :1].argsort(-2).expand_as(x)),
}
STAYS = {
    "nothing": lambda model, x: x,
    "there and back": lambda model, x: x.roll(1, -2).roll(-1, -2),
    "mixed": lambda model, x: model.convolution(x.mT).mT,
    "centred": lambda model, x: x - x.flip(-2).mean(-2, keepdim=True),
}


def inputs(kind):
    torch.manual_seed(0)
    return {
        "tokens": torch.randn(TOKENS, WIDTH),
        "batch": torch.randn(2, TOKENS, WIDTH),
        "ids": torch.randint(10, (2, TOKENS)),
    }[kind]


def names(model, x):
    """Return what the second layer's tokens are called in each sequence."""
    count = 1 if x.shape == (TOKENS, WIDTH) else len(x)
    given = NAMES if count == 1 else [NAMES] * count
    with torch.no_grad(), gattn.capturing(model, tokens=given) as run:
        model(x)
    assert all(trace.stacks["first"][0, 0].tokens == NAMES for trace in run.traces)
    return {trace.stacks["second"][0, 0].tokens for trace in run.traces}


@pytest.mark.parametrize("kind", ["tokens", "batch", "ids"])
@pytest.mark.parametrize("move", MOVES)
def test_tokens_that_are_moved_have_no_names(move, kind):
    with pytest.warns(UserWarning, match=r"second \(GraphAttention\) attends over"):
        assert names(Model(MOVES[move]), inputs(kind)) == {()}


@pytest.mark.parametrize("kind", ["tokens", "batch", "ids"])
@pytest.mark.parametrize("stay", STAYS)
def test_tokens_in_place_have_their_names(stay, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(Model(STAYS[stay]), inputs(kind)) == {NAMES}


def test_sequences_that_change_places_have_no_names():
    with pytest.warns(UserWarning, match=r"second \(GraphAttention\) attends over"):
        assert names(Model(lambda model, x: x.flip(0)), inputs("batch")) == {()}


class Mixed(nn.Module):
    """A layer of gattn, and one of torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.own = gattn.GraphAttention(WIDTH, WIDTH)
        self.torchs = nn.MultiheadAttention(WIDTH, 1, batch_first=True)
        self.eval()

    def forward(self, x):
        x = self.own(x, CAUSAL)
        return self.torchs(x, x, x, need_weights=False)[0]


def test_layers_of_torch_beside_those_of_gattn_are_proved():
    model, x = Mixed(), inputs("batch")[:1]
    with torch.no_grad(), gattn.capturing(model, tokens=NAMES) as run:
        model(x)
    with torch.no_grad():
        y = model.own(x, CAUSAL)
        dense = model.torchs(y, y, y)[1][0]
    assert {stack: one[0, 0].tokens for stack, one in run.trace.stacks.items()} == {
        "own": NAMES,
        "torchs": NAMES,
    }
    found = torch.from_numpy(run.trace.stacks["torchs"][0, 0].to_dense())
    torch.testing.assert_close(found, dense)
