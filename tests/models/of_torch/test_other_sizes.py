"""A model that was proved is proved anew for inputs of other sizes."""

from __future__ import annotations

import pytest
import torch
from attending_models import HEADS, WIDTH, Attention
from torch import nn

from gattn.models.doors.proof import proving
from gattn.models.doors.proof.layouts.sameness import is_same
from gattn.models.doors.proof.plans import plan_of


class Numbered(Attention):
    """A layer that knows its number, so that none is alike, and may change many tokens."""

    def __init__(self, number, change=None):
        super().__init__()
        self.number, self.change = number, change

    def forward(self, x):
        is_changed = self.change is not None and x.shape[1] > 8
        return super().forward(self.change(x) if is_changed else x)


class Layers(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        self.layers = nn.ModuleList(Numbered(n, change if n == 3 else None) for n in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture
def counts(monkeypatch):
    """How many runs of parts of a model each proof took."""
    made = []

    class Counted(proving.Reruns):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(proving, "Reruns", Counted)
    return lambda: [one.count for one in made]


def is_plain(layout, tokens):
    known = layout.tokens
    has_own_order = not known.is_told and not known.is_cross
    return has_own_order and (known.num_queries, known.num_keys) == (tokens, tokens)


def test_layers_that_differ_take_as_many_runs_as_words_are_long(counts):
    model = Layers().eval()
    for tokens in (6, 12, 20):
        plan = plan_of(model, model, (torch.randn(1, tokens, WIDTH),), {})
        for place in plan.sites:
            assert is_plain(plan.layout(*place, (1, HEADS)), tokens)
    # Words of 6, 12 and 20 tokens: comb(4, 2) = 6, comb(6, 3) = 20.
    assert counts() == [4 * 4, 4 * 6, 4 * 6]


def pooled_last(x):
    return torch.cat((x[:, :-1], x.mean(1, keepdim=True)), 1)


def without_last(x):
    return torch.cat((x[:, :-1], torch.zeros_like(x[:, :1])), 1)


def swapped(x):
    return torch.cat((x[:, :7], x[:, 8:9], x[:, 7:8], x[:, 9:]), 1)


CHANGES = [lambda x: x.flip(1), lambda x: x.roll(2, 1), swapped]


@pytest.mark.parametrize("change", [*CHANGES, pooled_last, without_last])
def test_a_layer_that_changes_at_some_size_is_proved_anew(change):
    model, tokens = Layers(change).eval(), 12
    for size in (6, 8, tokens):
        plan = plan_of(model, model, (torch.randn(1, size, WIDTH),), {})
    assert is_plain(plan.layout("layers.2", 0, (1, HEADS)), tokens)
    found = plan.layout("layers.3", 0, (1, HEADS))
    if change in CHANGES:
        order = change(torch.arange(tokens)[None])
        assert torch.equal(found.tokens.queries, order)
        assert torch.equal(found.tokens.keys, order)
    other = Layers(change).eval()
    plan = plan_of(other, other, (torch.randn(1, tokens, WIDTH),), {})
    assert is_same(found, plan.layout("layers.3", 0, (1, HEADS)))
