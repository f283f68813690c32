"""Attention that is used twice, changed in place, or masked after the softmax."""

from __future__ import annotations

import pytest
import torch
from hand_written import DIM, WIDTH, Layer, check
from torch import nn

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError


class Twice(Layer):
    """Attention is read by another function, before or after it meets the values."""

    def __init__(self, way):
        super().__init__(None)
        self.way = way

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        if self.way == "before":
            gate = -(attention * attention.log()).sum()
            self.gate = gate.item()
            return self.out((attention @ v).transpose(1, 2).flatten(2)) * gate
        if self.way == "set":
            attention[:, :, 1] = 0.1
        if self.way == "in place":
            attention[:, :, 1].mul_(0.5)
        other = attention.clone() if self.way == "copy" else attention
        y = self.out((attention @ v).transpose(1, 2).flatten(2))
        return y + (other @ v.flip(2)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["before", "copy"])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_edits_reach_what_reads_attention_before_it_meets_the_values(way, with_gradient):
    torch.manual_seed(0)
    model, x = Twice(way).double().eval(), torch.randn(1, 6, WIDTH).double()
    x.requires_grad_(with_gradient)
    with capturing(model) as run:
        plain = model(x)
    assert len(run.trace.stacks) == 1
    with edited(model, Scale(0.5, layer=0, key=1)):
        found = model(x)
    q, k, v = model.parts(x)
    factor = torch.where(torch.arange(6) == 1, 0.5, 1.0)
    attention = (q @ k.mT / DIM**0.5).softmax(-1) * factor
    wanted = model.out((attention @ v).transpose(1, 2).flatten(2))
    if way == "copy":
        wanted = wanted + (attention @ v.flip(2)).transpose(1, 2).flatten(2)
    else:
        gate = -(attention * attention.log()).sum()
        assert model.gate == pytest.approx(gate.item(), rel=1e-12)
        wanted = wanted * gate
    assert not torch.allclose(plain, wanted, rtol=1e-3)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    if with_gradient:
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, wanted)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_attention_that_is_used_twice_is_edited_twice():
    torch.manual_seed(0)
    model = Twice("same").double().eval()
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    with torch.no_grad(), edited(model, Cut(layer=0, key=1)):
        found = model(x)
    with edited(model, Cut(layer=0, key=1)):
        with_gradient = model(x)
    q, k, v = model.parts(x)
    keep = torch.arange(6) != 1
    attention = (q @ k.mT / DIM**0.5)[..., keep].softmax(-1)
    wanted = model.out((attention @ v[:, :, keep]).transpose(1, 2).flatten(2))
    wanted = wanted + (attention @ v.flip(2)[:, :, keep]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(with_gradient, wanted, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (with_gradient, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", ["set", "in place"])
def test_attention_that_is_changed_in_place_is_refused(way):
    model, x = Twice(way).eval(), torch.randn(1, 6, WIDTH)
    with pytest.raises(CaptureError, match="changed by"), torch.no_grad(), capturing(model):
        model(x)


class MaskedAfterwards(nn.Module):
    """Masks scores by a large number, and again by zeros after the softmax, as DeBERTa does."""

    def __init__(self, takes, way):
        super().__init__()
        self.qkv, self.takes, self.way = nn.Linear(16, 48), takes, way

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        before = mask if not self.takes else torch.zeros_like(mask)
        scores = (q @ k.mT / 2).masked_fill(before, torch.finfo(x.dtype).min)
        attention = scores.softmax(-1)
        self.attention = self.way(attention, mask)
        return (self.attention @ v).transpose(1, 2).flatten(2)


MASKING = {
    "masked_fill": lambda attention, mask: attention.masked_fill(mask, 0),
    "masked_fill_": lambda attention, mask: attention.masked_fill_(mask, 0),
    "where": lambda attention, mask: torch.where(mask, 0.0, attention),
    "mul": lambda attention, mask: attention * ~mask,
}


@pytest.mark.parametrize("way", MASKING)
def test_zeros_where_a_mask_left_no_attention_are_read(way):
    torch.manual_seed(0)
    model = MaskedAfterwards(False, MASKING[way]).double().eval()
    x, mask = torch.randn(2, 6, 16).double(), torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    mask[1, :, :, 4:] = mask[1, :, 4:] = True  # The last queries read nothing at all.
    with torch.no_grad():
        plain = model(x, mask)
        wanted = model.attention.clone()
        with capturing(model) as run:
            assert torch.equal(model(x, mask), plain)
        with edited(model, Scale(0.5, layer=0, head=2)):
            scaled = model(x, mask)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            size = (6, 4)[row]  # What nobody reads is padding.
            own = wanted[row, head, :size, :size].numpy()
            assert graph.to_dense() == pytest.approx(own, rel=1e-12)
    halves = plain.unflatten(-1, (4, 4)).clone()
    halves[:, :, 2] *= 0.5  # The last queries' outputs are zero.
    torch.testing.assert_close(scaled, halves.flatten(2), rtol=1e-12, atol=1e-12)


def test_zeros_are_read_where_a_softmax_without_memory_is_alive():
    torch.manual_seed(0)
    model = MaskedAfterwards(False, MASKING["masked_fill_"]).double().eval()
    x, mask = torch.randn(1, 6, 16).double(), torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 4:] = True
    alive = []

    def forward(x, mask):
        alive.append(torch.empty(1, 4, 6, 6, device="meta").softmax(-1))
        return MaskedAfterwards.forward(model, x, mask)

    model.forward = forward
    with torch.no_grad(), capturing(model) as run:
        model(x, mask)
    wanted = model.attention[0, 1, :4, :4].numpy()
    assert run.trace[0, 1].to_dense()[:4] == pytest.approx(wanted, rel=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("way", MASKING)
def test_zeros_that_take_attention_away_leave_rows_of_less(way):
    torch.manual_seed(0)
    model, x = MaskedAfterwards(True, MASKING[way]).double().eval(), torch.randn(2, 6, 16).double()
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    mask[1, :, 1, 4:] = True
    model(x, mask)
    wanted = model.attention.clone()
    with capturing(model) as run:
        model(x, mask)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            assert graph.to_dense() == pytest.approx(wanted[row, head].numpy(), rel=1e-12)
    q, k, v = model.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / 2
    scores[:, 2, 1, 0] = -torch.inf
    cut = (scores.softmax(-1) * ~mask @ v).transpose(1, 2).flatten(2)
    with edited(model, Cut(layer=0, head=2, query=1, key=0)):
        torch.testing.assert_close(model(x, mask), cut, rtol=1e-12, atol=1e-12)


class Summed(nn.Module):
    """Adds up what its steps attended to, which enters the scores of later steps."""

    def __init__(self):
        super().__init__()
        self.query, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(1, WIDTH)

    def forward(self, x, cuts=()):
        state, total = x.mean(1), None
        for step in range(3):
            scored = x if total is None else x + self.score(total[..., None])
            scores = (scored @ self.query(state)[..., None])[..., 0]
            for key in (key for of, key in cuts if of == step):
                scores = scores.masked_fill(torch.arange(x.shape[1]) == key, -torch.inf)
            attention = scores.softmax(-1)
            total = attention if total is None else total + attention
            state = (attention[:, None] @ x)[:, 0]
        return state


@pytest.mark.parametrize("takes_gradients", [False, True])
@pytest.mark.parametrize("cuts", [[(0, 2)], [(1, 3)], [(2, 3)], [(0, 1), (1, 3), (2, 0)]])
def test_edits_of_attention_that_is_added_to_an_earlier_one_reach_the_sum(cuts, takes_gradients):
    torch.manual_seed(0)
    model, x = Summed().double().eval(), torch.randn(2, 5, WIDTH).double()
    names = ["Summed:0", "Summed 2:0", "Summed 3:0"]
    edits = [Cut(names[step], key=key) for step, key in cuts]
    with torch.set_grad_enabled(takes_gradients), edited(model, *edits):
        found = model(x)
    torch.testing.assert_close(found, model(x, cuts), rtol=0, atol=1e-12)


class Averaged(Twice):
    """Attention is the mean of the layer's own and the layer's before it."""

    def forward(self, x, before=None):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        attention = attention if before is None else (attention + before) / 2
        return self.out((attention @ v).transpose(1, 2).flatten(2)), attention


class AveragedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Averaged("") for _ in range(2))

    def forward(self, x):
        attention = None
        for layer in self.layers:
            added, attention = layer(x, attention)
            x = x + added
        return x


def test_attention_averaged_with_an_earlier_layers_is_refused_for_that():
    model, x = AveragedModel().eval(), torch.randn(1, 6, WIDTH)
    mixed = r"attention of layers.0 \(Averaged\) is mixed into another's"
    with pytest.raises(CaptureError, match=mixed), capturing(model):
        model(x)


def _summed(attention, v):
    return (attention[..., None] * v[:, :, None]).sum(-2)


@pytest.mark.parametrize("way", [(_summed, torch.matmul), (torch.matmul, _summed)])
def test_attention_may_meet_values_in_a_sum_and_in_a_product(way):
    def attend(q, k, v):
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        return sum(one(attention, v) for one in way) / 2

    check(attend)
