"""Attention that no door sees is told, so that layers are never misnumbered in silence."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

HEADS, DIM = 2, 4
WIDTH = HEADS * DIM


def softmax(q, k, v):
    return (q @ k.mT / DIM**0.5).softmax(-1) @ v


def exponentials(q, k, v):
    weights = (q @ k.mT / DIM**0.5).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def divided_late(q, k, v):
    weights = (q @ k.mT / DIM**0.5).exp()
    return (weights @ v) / weights.sum(-1, keepdim=True)


def key_by_key(q, k, v):
    total, output = 0, 0
    for some, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
        weights = (q @ some.mT / DIM**0.5).exp()
        total, output = total + weights.sum(-1, keepdim=True), output + weights @ values
    return output / total


def logarithms(q, k, v):
    return (q @ k.mT / DIM**0.5).log_softmax(-1).exp() @ v


def sigmoids(q, k, v):
    return (q @ k.mT / DIM**0.5).sigmoid() @ v


def linear(q, k, v):
    q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


class Layer(nn.Module):
    def __init__(self, way=softmax):
        super().__init__()
        self.qkv, self.way = nn.Linear(WIDTH, 3 * WIDTH), way

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        return x + self.way(q, k, v).transpose(1, 2).flatten(2)


class Other(Layer):
    pass


class LinearAttention(Layer):
    pass


class ChannelAttention(nn.Module):
    """Squeeze and excite: a gate on channels."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(WIDTH, 2), nn.ReLU(), nn.Linear(2, WIDTH))

    def forward(self, x):
        return x * self.gate(x.mean(1, keepdim=True)).sigmoid()


class AttentionPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Layer()

    def forward(self, x):
        return self.attn(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return (weights[..., None] * self.experts(x).unflatten(-1, (3, WIDTH))).sum(-2)


def bypassed():
    """A layer that does not attend in this model."""
    return Layer(lambda q, k, v: v)


def told(middle):
    """Warnings of a model whose second layer of three is another one."""
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), middle, Layer()).eval()
    with warnings.catch_warnings(record=True) as found, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model) as run:
            model(torch.randn(2, 6, WIDTH))
    assert run.traces
    return [str(one.message) for one in found]


@pytest.mark.parametrize("kind", [Layer, Other])
@pytest.mark.parametrize("way", [exponentials, divided_late, key_by_key, logarithms])
def test_a_softmax_that_is_written_out_is_told(way, kind):
    (said,) = told(kind(way))
    assert f"1 module of Sequential does not show its attention, 1 ({kind.__name__})" in said


@pytest.mark.parametrize("kind", [Layer, LinearAttention])
@pytest.mark.parametrize("way", [sigmoids, linear])
def test_what_is_called_attention_or_like_what_attends_is_told(way, kind):
    (said,) = told(kind(way))
    assert f"does not show its attention, 1 ({kind.__name__})" in said


@pytest.mark.parametrize("kind", [ChannelAttention, AttentionPool, Experts, Layer, bypassed])
def test_what_does_not_attend_or_shows_it_is_not_told(kind):
    assert told(kind()) == []


def test_several_are_counted_and_edits_tell_them_too():
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Other(exponentials), Other(exponentials)).eval()
    x = torch.randn(1, 6, WIDTH)
    says = r"2 modules of Sequential do not show their attention, such as 1 \(Other\)"
    with pytest.warns(UserWarning, match=says), edited(model, Cut(layer=0, key=1)):
        model(x)
