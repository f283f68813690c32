"""Attention of which masks that a model makes by values take some, divided by its sums or not."""

from __future__ import annotations

import pytest
import torch
from hand_written import ROOT, made
from torch.nn import functional

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError

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


def masked_in_a_view(a):
    a[:, 0][a[:, 0] < LEAST] = 0
    return a


def multiplied_in_a_view(a):
    a[:, 1:3] *= torch.tensor([1, 1, 0, 1, 1, 0]).to(a)
    return a


def filled_in_views(a):
    for head in a.unbind(1):
        head[..., 4:, 1:2].zero_()
    a.data[..., 2:3].masked_fill_(torch.arange(6)[:, None] < 2, 0.0)
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
    "masked in a view": masked_in_a_view,
    "multiplied in a view": multiplied_in_a_view,
    "filled in views": filled_in_views,
    "lower triangle": lambda a: a.tril(2),
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


def zeros_on_the_diagonal(a):
    a.diagonal(dim1=-2, dim2=-1).fill_(0)
    a[..., 3, 1] = 0
    return a


REAL = torch.tensor([1, 1, 1, 1, 1, 0]).double()
ROWS = {
    "rows times a mask": (lambda a: a * REAL[:, None], 6),
    "rows and columns times a mask": (lambda a: a * REAL[:, None] * REAL, 5),
    "index filled": (lambda a: a.index_fill(-2, torch.tensor([2, 5]), 0.0), 6),
    "index filled in place": (lambda a: a.index_fill_(-2, torch.tensor([2, 5]), 0.0), 6),
    "columns index filled": (lambda a: a.index_fill(-1, torch.tensor([5]), 0.0), 5),
    "zeros on the diagonal": (zeros_on_the_diagonal, 6),
    "joined with a row of zeros": (
        lambda a: torch.cat((torch.zeros_like(a[:, :, :1]), a[:, :, 1:]), 2),
        6,
    ),
    "padded with a row": (lambda a: functional.pad(a[:, :, 1:], (0, 0, 1, 0)), 6),
    "padded with a column": (lambda a: functional.pad(a[..., :-1], (0, 1)), 5),
}


@torch.no_grad()
@pytest.mark.parametrize(("change", "size"), ROWS.values(), ids=ROWS)
def test_rows_and_columns_that_are_zeroed_are_empty_or_padding(change, size):
    kept = []

    def way(q, k, v):
        a = change((q @ k.mT / ROOT).softmax(-1))
        kept.append(a)
        return a @ v

    model, x = made(way)
    with capturing(model) as run:
        model(x)
    for row, trace in enumerate(run.traces):
        for (layer, head), graph in trace.only_stack.items():
            wanted = kept[layer - 2][row, head, :size, :size].numpy()
            assert graph.to_dense() == pytest.approx(wanted, rel=0, abs=1e-12)


def put_others(a):
    a[:, 0][...] = 0.1
    return a


def scaled_in_a_view(a):
    a[:, 0] *= 0.5
    return a


def added_to_zeros(a):
    a[..., 1].zero_()
    a[..., 2].add_(0.1)
    return a


def turned_in_place(a):
    a[...] = a.flip(-1)
    return a


def joined_with_others(a):
    return torch.cat((torch.full_like(a[:, :, :1], 1 / 6), a[:, :, 1:]), 2)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [put_others, scaled_in_a_view, added_to_zeros, turned_in_place, joined_with_others],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("is_even", [False, True])
def test_what_a_view_changes_otherwise_is_refused(change, is_even):
    def way(q, k, v):
        return change((q @ k.mT * (not is_even)).softmax(-1)) @ v

    model, x = made(way)
    with pytest.raises(CaptureError, match="the attention is changed by"), capturing(model):
        model(x)
