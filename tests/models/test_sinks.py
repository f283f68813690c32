"""Attention of which a slice of the keys meets values: the rest went to sinks without a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError, EditError

WIDTH, HEADS, DIM, TOKENS = 8, 2, 4, 6


def last(layer, scores, sink, v):
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v


def first(layer, scores, sink, v):
    attention = torch.cat([sink, scores], -1).softmax(-1)
    return nn.functional.dropout(attention[:, :, :, 1:].to(v.dtype), 0.1, training=False) @ v


def without_the_largest(layer, scores, sink, v):
    both = torch.cat([scores, sink], -1)
    both = both - both.amax(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", both.softmax(-1)[..., :TOKENS], v)


def both_sides(layer, scores, sink, v):
    attention = torch.cat([sink[..., :1], scores, sink[..., 1:]], -1).softmax(-1)
    return attention[..., 1:][..., :TOKENS] @ v


def turned(layer, scores, sink, v):
    attention = torch.cat([sink, scores], -1).softmax(-1).transpose(1, 2)[:, None, ..., 1:]
    return attention[:, 0:].transpose(2, 3).squeeze(1) @ v


def nothing_dropped(layer, scores, sink, v):
    return scores.softmax(-1)[:, :, 0:, :TOKENS] @ v


WAYS = [last, first, without_the_largest, both_sides, turned]


class Layer(nn.Module):
    """Attends to tokens and sinks, which are learned numbers, or depend on the query."""

    def __init__(self, way, of_query):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sink = nn.Parameter(torch.randn(HEADS, 1, 2 if way is both_sides else 1))
        self.of_query = nn.Linear(DIM, self.sink.shape[-1]) if of_query else None
        self.way = way

    def parts(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        scores = (q @ k.mT).masked_fill(future, -torch.inf)
        sink = self.sink.expand(len(x), -1, TOKENS, -1)
        return scores, sink if self.of_query is None else sink + self.of_query(q), v

    def forward(self, x):
        y = self.way(self, *self.parts(x))
        return x + self.out(y.transpose(1, 2).flatten(2))

    def dense(self, x, cut=None, scaled=None):
        """Compute attention and output by exponentials, without a softmax."""
        scores, sink, v = self.parts(x)
        if cut is not None:
            scores = scores.masked_fill(cut, -torch.inf)
        each = scores.exp()
        attention = each / (each.sum(-1, keepdim=True) + sink.exp().sum(-1, keepdim=True))
        if scaled is not None:
            attention = attention * scaled
        return attention, x + self.out((attention @ v).transpose(1, 2).flatten(2))


def made(way, *, of_query=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Layer(way, of_query)).double().eval()
    return model, torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)


EDGE = torch.zeros(HEADS, TOKENS, TOKENS, dtype=torch.bool)
EDGE[1, 4, 2] = True


@pytest.mark.parametrize("of_query", [False, True])
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_attention_is_what_tokens_have_of_the_softmax(way, of_query):
    model, x = made(way, of_query=of_query)
    with capturing(model) as run:
        found = model(x)
    assert torch.equal(found, model(x))
    expected, _ = model[1].dense(model[0](x))
    for trace, attention in zip(run.traces, expected, strict=True):
        for h, own in enumerate(attention):
            head = trace[0, h]
            np.testing.assert_allclose(head.to_dense(), own, atol=1e-6)
            np.testing.assert_allclose(head.sink, 1 - own.sum(-1), atol=1e-6)


@pytest.mark.parametrize("of_query", [False, True])
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_edits_keep_the_sinks_in_the_softmax(way, of_query):
    model, x = made(way, of_query=of_query)
    with edited(model, Cut(layer=0, head=1, query=4, key=2)):
        found = model(x)
    torch.testing.assert_close(found, model[1].dense(model[0](x), cut=EDGE)[1])
    with edited(model, Scale(0.5, layer=0, head=1, query=4, key=2)):
        found = model(x)
    half = torch.where(EDGE, 0.5, 1.0).double()
    torch.testing.assert_close(found, model[1].dense(model[0](x), scaled=half)[1])


@pytest.mark.parametrize("of_query", [False, True])
def test_gradients_of_an_edit_reach_the_sinks(of_query):
    model, x = made(last, of_query=of_query)
    with edited(model, Cut(layer=0, head=1, query=4, key=2)):
        model(x).square().sum().backward()
    found = model[1].sink.grad.clone()
    model.zero_grad()
    model[1].dense(model[0](x), cut=EDGE)[1].square().sum().backward()
    torch.testing.assert_close(found, model[1].sink.grad)
    assert bool(found.any())


@torch.no_grad()
def test_masked_sinks_take_nothing():
    model, x = made(last)
    model[1].sink[1] = -torch.inf
    with capturing(model) as run:
        model(x)
    expected, _ = model[1].dense(model[0](x))
    np.testing.assert_allclose(run.traces[0][0, 1].to_dense(), expected[0, 1], atol=1e-6)
    np.testing.assert_allclose(run.traces[0][0, 1].sink, 0, atol=1e-6)


@torch.no_grad()
def test_a_slice_of_all_keys_leaves_no_sink():
    model, x = made(nothing_dropped)
    with capturing(model) as run:
        model(x)
    model[1].sink[:] = -torch.inf
    expected, _ = model[1].dense(model[0](x))
    np.testing.assert_allclose(run.traces[1][0, 0].to_dense(), expected[1, 0], atol=1e-6)
    assert run.traces[1][0, 0].sink is None


def test_a_capture_leaves_checkpoints_as_they_are():
    model, x = made(first, of_query=True)
    x.requires_grad_()
    with capturing(model):
        checkpoint(model, x, use_reentrant=False).sum().backward()
    found = x.grad.clone()
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(found, x.grad)


# What slices cannot say


def memory(layer, scores, sink, v):
    attention = torch.cat([sink, scores], -1).softmax(-1)
    return attention[..., 1:] @ v + attention[..., :1] @ layer.memory(v[:, :, :1])


def memory_first(layer, scores, sink, v):
    attention = torch.cat([sink, scores], -1).softmax(-1)
    return attention[..., :1] @ layer.learned + attention[..., 1:] @ v


@pytest.mark.parametrize("way", [memory, memory_first])
def test_slots_with_values_of_their_own_are_no_sinks(way):
    model, x = made(way)
    model[1].memory = nn.Linear(DIM, DIM).double()
    model[1].learned = nn.Parameter(torch.randn(1, HEADS, 1, DIM).double())
    says = r"1.* is changed by slices, which meet values in several products"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(x)


def sink_before(layer, scores, sink, v):
    attention = torch.cat([sink, scores], -1).softmax(-1)
    return attention[..., :1] * layer.sink[..., :1] + attention[..., 1:] @ v


def sink_after(layer, scores, sink, v):
    attention = torch.cat([sink, scores], -1).softmax(-1)
    return attention[..., 1:] @ v + attention[..., :1] * layer.sink[..., :1]


@pytest.mark.parametrize(("way", "says"), [(sink_before, "by mul before"), (sink_after, "again")])
def test_edits_do_not_reach_what_reads_the_sink(way, says):
    model, x = made(way)
    says = rf"^1 \(Layer\) reads its attention {says}"
    cut = Cut(layer=0, query=4, key=2)
    with torch.no_grad(), edited(model, cut), pytest.raises(EditError, match=says):
        model(x)


def gated(layer, scores, sink, v):
    return (torch.cat([scores, sink], -1).softmax(-1)[..., :-1] * layer.sink[..., :1]) @ v


def some_queries(layer, scores, sink, v):
    return torch.cat([scores.softmax(-1)[:, :, :2], scores.softmax(-1)[:, :, 2:]], 2) @ v


def every_second(layer, scores, sink, v):
    return scores.softmax(-1)[..., ::2] @ v[:, :, ::2]


def one_head(layer, scores, sink, v):
    return scores.softmax(-1)[:, 0, None] @ v


@pytest.mark.parametrize("way", [gated, some_queries, every_second, one_head])
def test_other_slices_are_refused(way):
    model, x = made(way)
    says = r"In 1 \(Layer\) the attention is changed by|expected .* a multiple of the keys' heads"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(x)
