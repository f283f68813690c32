"""What code reads out of tensors may decide what it does; proofs then hold for these numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError, EditError

WIDTH, TOKENS = 16, 6


class Attention(nn.Module):
    """Reads tokens from a place on that it finds itself, and gives them back in their order."""

    def __init__(self, place):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.place = place

    def forward(self, x, times=None):
        order = self.place(x if times is None else times)
        order = order if isinstance(order, list) else [*range(order, TOKENS), *range(order)]
        x = x[:, order]
        y = (self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x)
        return y[:, torch.tensor(order).argsort()]


class Around(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.first, self.inner = nn.Linear(WIDTH, WIDTH), Attention(place)

    def forward(self, x):
        return self.inner(self.first(x)) + x


def dense(layer, x):
    return (layer.query(x) @ layer.key(x).mT).softmax(-1)


def by_mean(x):
    return 2 if x.mean() > 0 else 4 if (x.amax() > 2).item() else 0


def by_number(x):
    return int(x[..., 0].abs().sum() * 10) % TOKENS


def by_times(times):
    return sorted(range(TOKENS), key=lambda n: times[n].item())


def ordered_by_list(x):
    values = x[0, :, 0].tolist()
    return sorted(range(TOKENS), key=values.__getitem__)


def ordered_by_array(x):
    return x[0, :, 0].numpy().argsort().tolist()


def shuffled(x):
    return random.sample(range(TOKENS), TOKENS)


def turned(x):
    return int(np.random.randint(1, TOKENS))  # noqa: NPY002


@torch.no_grad()
@pytest.mark.parametrize("is_inner", [False, True])
@pytest.mark.parametrize("place", [by_mean, by_number])
def test_each_branch_is_proved(place, is_inner):
    torch.manual_seed(0)
    model = (Around if is_inner else Attention)(place).eval()
    layer = model.inner if is_inner else model
    places = set()
    for seed in range(6):
        x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
        x = x + 0.3 * (seed % 3 - 1)
        given = model.first(x) if is_inner else x
        places.add(place(given))
        with capturing(model) as run:
            model(x)
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, dense(layer, given)[0], atol=1e-6, rtol=0)
    assert len(places) > 1


@torch.no_grad()
def test_an_order_by_numbers_that_are_given_holds_for_these():
    torch.manual_seed(0)
    model, x = Attention(by_times).eval(), torch.randn(1, TOKENS, WIDTH)
    wanted = dense(model, x)
    cut = wanted.clone()
    cut[:, 2, 1] = 0
    cut /= cut.sum(-1, keepdim=True)
    for _ in range(3):
        times = torch.rand(TOKENS)
        with capturing(model) as run:
            model(x, times)
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, wanted[0], atol=1e-6, rtol=0)
        with edited(model, Cut(layer=0, head=0, query=2, key=1)):
            found = model(x, times)
        torch.testing.assert_close(found, cut @ model.value(x), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", [Attention, Around])
@pytest.mark.parametrize("place", [ordered_by_list, ordered_by_array, shuffled, turned])
def test_an_order_that_code_makes_itself_is_refused(place, kind):
    torch.manual_seed(0)
    model, x = kind(place).eval(), torch.randn(1, TOKENS, WIDTH)
    said = "at random" if place in (shuffled, turned) else "by their values"
    with pytest.raises(CaptureError, match=said), capturing(model):
        model(x)


@torch.no_grad()
def test_numbers_drawn_outside_of_attending_modules_change_nothing():
    torch.manual_seed(0)

    class Drawing(Around):
        def forward(self, x):
            random.random()
            return super().forward(x)

    model, x = Drawing(by_number).eval(), torch.randn(1, TOKENS, WIDTH)
    with pytest.warns(UserWarning, match="picks or orders tokens"), capturing(model) as run:
        model(x)
    found = torch.tensor(run.trace[0, 0].to_dense())
    torch.testing.assert_close(found, dense(model.inner, model.first(x))[0], atol=1e-6, rtol=0)


class Rolled(nn.Module):
    """Its second layer reads tokens one place on, or two, by what the first one gives."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (Attention(lambda x: 0) for _ in range(2))
        self.most, self.size = torch.inf, 0.0

    def forward(self, x):
        y = self.one(x)
        self.size = y.abs().mean().detach()
        place = -1 if self.size > self.most else -2
        return self.two((x + y).roll(place, 1)).roll(-place, 1)


@torch.no_grad()
def test_a_branch_that_moves_tokens_one_place_further_is_another_one():
    torch.manual_seed(0)
    model, x = Rolled().eval(), torch.randn(1, TOKENS, WIDTH)
    cuts = [Cut(layer=0, head=0, query=n, stack="one") for n in range(TOKENS)]
    model(x)
    plain = model.size
    with edited(model, *cuts):
        model(x)
    model.most = float(plain + model.size) / 2
    refused = pytest.raises(EditError, match="decides by numbers")
    with refused, edited(model, *cuts), capturing(model):
        model(x)


class AttendsSometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v if x.sum() > 0 else v


@torch.no_grad()
def test_a_call_in_which_the_model_itself_does_not_attend_is_refused_by_name():
    torch.manual_seed(0)
    model, x = AttendsSometimes().eval(), torch.rand(1, TOKENS, WIDTH)
    says = "showed no attention, though the model itself attends in others: its code does something"
    with capturing(model) as run:
        model(x)
        with pytest.raises(CaptureError, match=says):
            model(-x)
    assert len(run.traces) == 1
