"""Tokens that a model moves between layers without an index are numbered as the data has them."""

import warnings

import pytest
import torch
from torch import nn

from gattn import capturing

TOKENS, WIDTH = 8, 6
NAMES = list("abcdefgh")
TURNED = torch.eye(TOKENS).flip(0).double()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        self.attention = (self.query(x) @ self.key(x).mT / 3).softmax(-1)
        return x + self.attention @ self.value(x)


class Model(nn.Module):
    """Two layers, between which a function moves tokens; it may be given a number per token."""

    def __init__(self, move, dim=1):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.score = nn.Linear(WIDTH, 1)
        self.move, self.dim = move, dim
        self.double().eval()

    def forward(self, x):
        first, second = self.layers
        if self.dim == 2:  # (elements, channels, tokens)
            return second(first(self.move(x, None).mT))
        x = first(x)
        self.before, self.after = x, self.move(x, self.score(x))
        return second(self.after)


def in_slices(x, score):
    found = torch.empty_like(x)
    found[:, ::2], found[:, 1::2] = x[:, 1::2], x[:, ::2]
    return found


def by_convolution(x, score):
    kernel = torch.zeros(WIDTH, 1, 3).to(x)
    kernel[:, :, 0] = 1
    padded = nn.functional.pad(x.mT, (1, 1), mode="circular")
    return nn.functional.conv1d(padded, kernel, groups=WIDTH).mT


MOVES = {
    "stacked": lambda x, score: torch.stack([x[:, 1::2], x[:, ::2]], 2).flatten(1, 2),
    "unbound": lambda x, score: torch.stack([*x.unbind(1)][::-1], 1),
    "slices": in_slices,
    "matrix": lambda x, score: TURNED @ x,
    "linear": lambda x, score: nn.functional.linear(x.mT, TURNED).mT,
    "convolution": by_convolution,
    "weighed": lambda x, score: x.flip(1) * score.sigmoid(),
    "weighed by einsum": lambda x, score: torch.einsum("bn,bnd->bnd", score[..., 0], x.flip(1)),
}


def captured(model, x):
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model, tokens=NAMES) as run:
            model(x)
    return run.trace.only_stack, [str(one.message) for one in said]


@pytest.mark.parametrize("name", MOVES)
def test_tokens_have_the_numbers_of_the_data(name):
    model, x = Model(MOVES[name]), torch.randn(1, TOKENS, WIDTH).double()
    stack, said = captured(model, x)
    same = nn.functional.cosine_similarity(model.after[0][:, None], model.before[0], -1)
    order = same.abs().argmax(1)
    assert sorted(order.tolist()) == [*range(TOKENS)] != order.tolist()
    wanted = torch.empty(TOKENS, TOKENS).double()
    wanted[order[:, None], order] = model.layers[1].attention[0].detach()
    torch.testing.assert_close(torch.tensor(stack[1, 0].to_dense()), wanted, rtol=0, atol=1e-12)
    assert not said
    assert list(stack[1, 0].tokens) == NAMES


def a_step(score):
    soft = torch.sigmoid(score.mean())
    return soft + (soft.round() - soft).detach()


def between(x, gate):
    return (torch.stack([x, x.flip(1)]) * torch.stack([1 - gate, gate])[:, None, None, None]).sum(0)


def in_pairs(x, score):
    gate = (score[:, ::2] > score[:, 1::2]).to(x.dtype)
    even, odd = x[:, ::2], x[:, 1::2]
    pairs = even * gate + odd * (1 - gate), odd * gate + even * (1 - gate)
    return torch.stack(pairs, 2).flatten(1, 2)


def ranked(score):
    return nn.functional.one_hot(score[..., 0].argsort(-1), TOKENS).to(score.dtype)


def is_high(score):
    return (score.mean() > -9).to(score.dtype)


CHOICES = {
    "rounded": lambda x, score: x + (x.flip(1) - x) * torch.sigmoid(score.mean()).round(),
    "mask": lambda x, score: x + (x.flip(1) - x) * is_high(score),
    "straight through": lambda x, score: x + (x.flip(1) - x) * a_step(score),
    "of two": lambda x, score: between(x, (score.mean().sign() + 1) / 2),
    "einsum": lambda x, score: torch.einsum(
        "g,gbnd->bnd",
        torch.stack([1 - is_high(score), is_high(score)]),
        torch.stack([x, x.flip(1)]),
    ),
    "pairs": in_pairs,
    "permutation": lambda x, score: ranked(score) @ x,
}


@pytest.mark.parametrize("name", CHOICES)
def test_tokens_that_values_move_have_no_names(name):
    model, x = Model(CHOICES[name]), torch.randn(1, TOKENS, WIDTH).double()
    stack, said = captured(model, x)
    assert stack[1, 0].tokens == ()
    assert any("picks or orders tokens, by their values" in one for one in said)


@pytest.mark.parametrize("elements", [1, 2])
def test_tokens_that_come_last_are_followed_too(elements):
    x = torch.randn(elements, WIDTH, TOKENS).double()
    sorts = Model(lambda x, score: x.sort(-1).values, dim=2)
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(sorts, tokens=[NAMES] * elements) as run:
            sorts(x)
    assert run.traces[0].only_stack[0, 0].tokens == ()
    assert any("picks or orders tokens" in str(one.message) for one in said)
    turns = Model(lambda x, score: x.flip(-1), dim=2)
    with torch.no_grad(), capturing(turns, tokens=[NAMES] * elements) as run:
        turns(x)
    found = torch.tensor(run.traces[0].only_stack[0, 0].to_dense())
    wanted = turns.layers[0].attention[0].detach().flip(0, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
