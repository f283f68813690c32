"""Attention of which masks that a model makes by values take some, divided by its sums or not."""

from __future__ import annotations

import pytest
import torch
from hand_written import ROOT, made
from torch.nn import functional

from gattn import Cut, Scale, capturing, edited

KEEPS, LEAST = 3, 0.12


def top(a):
    return torch.zeros_like(a).scatter(-1, a.topk(KEEPS, -1).indices, 1.0)


def least(a):
    return a.kthvalue(a.shape[-1] - KEEPS + 1, -1, keepdim=True).values


def put_zeros(a):
    a[a <= LEAST] = 0
    return a


def put_in_columns(a):
    a[..., 3:, 1] = 0
    a[:, 0, :, 3:5] = 0.0
    return a


def multiplied_into(a):
    a *= a > LEAST
    return a


BY_NUMBER = {
    "above a number": lambda a: torch.where(a > LEAST, a, torch.zeros_like(a)),
    "times above a number": lambda a: a * (a > LEAST),
    "threshold": lambda a: functional.threshold(a, LEAST, 0.0),
    "shrunk": lambda a: functional.hardshrink(a, LEAST),
    "zeros put": put_zeros,
    "multiplied into": multiplied_into,
}
MASKS = {
    "scattered": lambda a: torch.zeros_like(a).scatter(-1, *a.topk(KEEPS, -1)[::-1]),
    "times the largest": lambda a: a * top(a),
    "filled below the largest": lambda a: a.masked_fill(top(a) == 0, 0.0),
    "from the k-th": lambda a: torch.where(a >= least(a), a, torch.zeros_like(a)),
    "zeros put in columns": put_in_columns,
    "filled in place": lambda a: a.masked_fill_(a <= LEAST, 0.0),
    **BY_NUMBER,
}
SHARES = {
    "not divided": lambda a: a,
    "divided": lambda a: a / a.sum(-1, keepdim=True),
    "normalized": lambda a: functional.normalize(a, p=1, dim=-1),
}


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
def test_what_a_mask_leaves_is_shown_and_edited(mask, share):
    kept, cuts, factors = [], [], []

    def way(q, k, v):
        scores = q @ k.mT / ROOT
        a = mask(scores.softmax(-1))
        if cuts:  # of edges: what the mask took is none
            is_kept = a != 0
            left = scores.masked_fill(cuts.pop(0) & is_kept, -torch.inf)
            a = left.softmax(-1) * is_kept
        a = share(a)
        kept.append(a)
        return (a * factors.pop(0) if factors else a) @ v

    model, x = made(way)
    plain = model(x)
    wanted = kept[-2:]
    with capturing(model) as run:
        assert torch.equal(model(x), plain)
    for row, trace in enumerate(run.traces):
        assert len(trace.only_stack) == 8
        for (layer, head), graph in trace.only_stack.items():
            own = wanted[layer][row, head].numpy()
            assert graph.to_dense() == pytest.approx(own, rel=0, abs=1e-12)
    sums = wanted[0].sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums)) == (share is not SHARES["not divided"])

    none = torch.zeros_like(wanted[0], dtype=torch.bool)
    one = none.clone()
    key = int(wanted[1][0, 2, 4].argmax())
    one[:, 2, 4, key] = True
    with edited(model, Cut(layer=1, head=2, query=4, key=key)):
        found = model(x)
    cuts += [none, one]
    by_hand = model(x)
    assert not torch.allclose(by_hand, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, by_hand, rtol=0, atol=1e-11)

    with edited(model, Scale(0.5, layer=0, head=1)):
        found = model(x)
    factors += [torch.where(torch.arange(4) == 1, 0.5, 1.0)[:, None, None], torch.ones(())]
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("name", BY_NUMBER)
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("is_padded", [False, True])
def test_a_token_whose_attention_is_below_a_number_is_no_padding(name, share, is_padded):
    kept, factors = [], []

    def way(q, k, v):
        scores = q @ k.mT / ROOT
        scores[:, :, :, 2] -= 9
        if is_padded:
            scores[..., 5] = -torch.inf
        a = share(MASKS[name](scores.softmax(-1)))
        kept.append(a)
        return (a * factors.pop(0) if factors else a) @ v

    model, x = made(way)
    with capturing(model) as run:
        model(x)
    own, tokens = kept[-2:], 5 if is_padded else 6
    for row, trace in enumerate(run.traces):
        for (layer, head), graph in trace.only_stack.items():
            assert graph.to_dense().shape == (tokens, tokens)
            assert (graph.to_dense()[:, 2] == 0).all()
            wanted = own[layer][row, head, :tokens, :tokens].numpy()
            assert graph.to_dense() == pytest.approx(wanted, rel=0, abs=1e-12)
    with edited(model, Scale(0.5, layer=1, key=3)):
        found = model(x)
    factors += [torch.ones(()), torch.where(torch.arange(6) == 3, 0.5, 1.0)]
    by_hand = model(x)
    torch.testing.assert_close(found[:, :tokens], by_hand[:, :tokens], rtol=0, atol=1e-11)
