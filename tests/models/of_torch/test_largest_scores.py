"""Attention to the largest scores alone: keys that no query keeps are tokens, unlike padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

TOKENS, HEADS, DIM, KEPT = 9, 2, 3, 2
WIDTH = HEADS * DIM


def _by_threshold(scores):
    least = scores.topk(KEPT, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1)


def _where(scores):
    least = scores.kthvalue(scores.shape[-1] - KEPT + 1, -1, keepdim=True).values
    return torch.where(scores >= least, scores, torch.finfo(scores.dtype).min).softmax(-1)


def _in_place(scores):
    order = scores.argsort(-1, descending=True)
    return scores.scatter_(-1, order[..., KEPT:], -torch.inf).softmax(-1)


def _scattered(scores):
    values, index = scores.topk(KEPT, -1)
    return torch.full_like(scores, -torch.inf).scatter_(-1, index, values).softmax(-1)


def _then_divided(scores):
    attention = scores.softmax(-1)
    values, index = attention.topk(KEPT, -1)
    found = torch.zeros_like(attention).scatter(-1, index, values)
    return found / found.sum(-1, keepdim=True)


def _divided_first(scores):
    values, index = scores.softmax(-1).topk(KEPT, -1)
    values = values / values.sum(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, index, values)


def _masked_after(scores):
    attention = scores.softmax(-1)
    least = attention.topk(KEPT, -1).values[..., -1:]
    attention = attention * (attention >= least)
    return attention / attention.sum(-1, keepdim=True)


WAYS = [
    _by_threshold,
    _where,
    _in_place,
    _scattered,
    _then_divided,
    _divided_first,
    _masked_after,
]


class Attends(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.way, self.cut = way, None

    def forward(self, x, mask=None):
        q, k, v = (
            f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = 4 * q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        attention = self.way(scores)
        self.attention = attention.detach().clone()
        if self.cut is not None:  # The oracle of an edit.
            attention = attention.clone()
            attention[..., self.cut[0], self.cut[1]] = 0
            rows = attention[..., self.cut[0], :]
            attention[..., self.cut[0], :] = rows / rows.sum(-1, keepdim=True)
        return x + self.o((attention @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Attends(way) for _ in range(2))
        self.double().eval()

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        return x


def _x(count=2):
    return torch.randn(count, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("way", WAYS)
def test_keys_that_no_query_keeps_are_tokens(way):
    model, x = Model(way), _x()
    with torch.no_grad():
        plain = model(x)
        with capturing(model, tokens=[list("abcdefghi")] * 2, scores=True) as run:
            seen = model(x)
    assert torch.equal(plain, seen)
    assert any(bool((one.attention == 0).all(2).any()) for one in model.layers)
    for text, trace in enumerate(run.traces):
        for layer, one in enumerate(model.layers):
            for head in range(HEADS):
                graph = trace.only_stack[layer, head]
                wanted = one.attention[text, head]
                found = torch.tensor(graph.to_dense())
                torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
                assert list(graph.tokens) == list("abcdefghi")
                assert int((graph.attention > 0).sum()) == TOKENS * KEPT


@pytest.mark.parametrize("way", WAYS)
def test_an_edge_among_the_largest_is_cut(way):
    model, x = Model(way), _x(1)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    graph = run.trace.only_stack[0, 0]

    assert int((graph.attention > 0).sum()) == TOKENS * KEPT
    key = int(graph.graph.edge_index[0][graph.attention > 0][0])
    with torch.no_grad():
        with edited(model, Cut(layer=0, query=0, key=key)):
            found = model(x)
        model.layers[0].cut = 0, key
        wanted = model(x)
        model.layers[0].cut = None
        plain = model(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(found, plain)


@pytest.mark.parametrize("way", WAYS)
def test_padding_is_still_cut_off(way):
    model, x = Model(way), _x()
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    mask[1, 6:] = False
    with torch.no_grad(), capturing(model) as run:
        model(x, mask)
    sizes = [trace.only_stack[0, 0].graph.num_tokens for trace in run.traces]
    assert sizes == [TOKENS, 6]
    found = torch.tensor(run.traces[1].only_stack[1, 1].to_dense())
    wanted = model.layers[1].attention[1, 1, :6, :6]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


class MasksLate(Attends):
    """Masks padding, or what comes later, after the largest scores were taken."""

    def forward(self, x, mask=None):
        q, k = (f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (self.q, self.k))
        scores = 4 * q @ k.mT
        least = scores.topk(KEPT, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
        attention = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
        v = self.v(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
        return x + self.o((attention @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("name", ["padding", "causal"])
def test_what_is_masked_after_the_largest_were_taken_is_refused(name):
    torch.manual_seed(0)
    model, x = MasksLate(None).double().eval(), _x(1)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    mask = mask.tril() if name == "causal" else mask
    mask[:, 4 if name == "padding" else 8] = False
    with pytest.raises(CaptureError, match="keeps some scores alone"), capturing(model):
        model(x, mask)


@pytest.mark.parametrize("way", [_by_threshold, _then_divided])
def test_other_inputs_later_keep_other_keys(way):
    model = Model(way)
    for seed in range(4):
        x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
        with torch.no_grad(), capturing(model) as run:
            model(x)
        found = torch.tensor(run.trace.only_stack[1, 0].to_dense())
        torch.testing.assert_close(found, model.layers[1].attention[0, 0], rtol=0, atol=1e-12)
