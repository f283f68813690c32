"""Tokens whose numbers code reads one by one and puts elsewhere have no names; complex ones do."""

import warnings

import pytest
import torch
from torch import nn

import gattn

WIDTH, NAMES = 4, tuple("abcde")


class Layer(nn.Module):
    def __init__(self, turns=lambda x: x):
        super().__init__()
        self.qkv, self.turns = nn.Linear(WIDTH, 3 * WIDTH), turns

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + (self.turns(q) @ self.turns(k).mT / 2).softmax(-1) @ v


class Rebuilt(nn.Module):
    def __init__(self, is_read):
        super().__init__()
        self.layers, self.is_read = nn.Sequential(Layer(), Layer()), is_read

    def forward(self, x):
        first, second = self.layers
        x = first(x)
        if self.is_read:
            rows = [[number.item() for number in token] for token in x[0].flip(0)]
            return second(torch.tensor(rows, dtype=x.dtype)[None])
        return second(x * (2 if x.mean().item() > -9 else 1))


def shown(model):
    torch.manual_seed(0)
    x = torch.randn(1, len(NAMES), WIDTH).double()
    with torch.no_grad(), gattn.capturing(model.double().eval(), tokens=NAMES) as run:
        model(x)
    return run.trace


def test_tokens_that_code_put_back_have_no_names():
    with pytest.warns(UserWarning, match="picks or orders tokens"):
        trace = shown(Rebuilt(is_read=True))
    _, second = trace.heads()
    assert second.tokens == ()


def test_names_stay_where_a_number_is_only_compared():
    assert [graph.tokens for graph in shown(Rebuilt(is_read=False)).heads()] == [NAMES] * 2


def rotary(x):
    """Turn pairs of channels as complex numbers, by the position of their token."""
    angles = torch.arange(len(NAMES)).double()[:, None] * torch.tensor([1.0, 0.1]).double()
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).flatten(-2)


def test_names_stay_under_rotary_positions_by_complex_numbers():
    graphs = list(shown(nn.Sequential(Layer(rotary), Layer(rotary))).heads())
    assert [graph.tokens for graph in graphs] == [NAMES] * 2


class Logged(Layer):
    """Keeps a number of its attention, read by Python."""

    def __init__(self, read):
        super().__init__()
        self.read, self.log = read, []

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        attention = (q @ k.mT).softmax(-1)
        self.log.append(self.read(attention))
        return x + attention @ v


class OfPixels(nn.Module):
    """A small vision transformer, whose layers may make tokens of numbers that they have read."""

    def __init__(self, read, is_put=False):
        super().__init__()
        self.patches, self.is_put = nn.Conv2d(3, WIDTH, 4, 4), is_put
        self.layers = nn.ModuleList(Logged(read) for _ in range(2))

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        for layer in self.layers:
            x = layer(x)
            if self.is_put:
                rows = [[number.item() for number in token] for token in x[0].flip(0)]
                x = torch.tensor(rows, dtype=x.dtype)[None]
        return x


READS = {
    "item": lambda a: a.max().item(),
    "float": lambda a: float(a.mean()),
    "entropy": lambda a: -(a * a.log()).sum(-1).mean().item(),
    "close": lambda a: torch.allclose(a.sum(-1), torch.ones_like(a[..., 0])),
}


@torch.no_grad()
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_patches_keep_their_places_where_code_only_keeps_numbers(read):
    torch.manual_seed(0)
    model, x = OfPixels(read).double().eval(), torch.randn(1, 3, 16, 16).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gattn.capturing(model) as run:
            model(x)
    assert [graph.graph.num_tokens for graph in run.trace.heads()] == [16] * 2
    assert [graph.geometry.cells.tolist() for graph in run.trace.heads()] == [[*range(16)]] * 2


@torch.no_grad()
def test_patches_that_code_put_back_have_no_places():
    torch.manual_seed(0)
    model = OfPixels(READS["item"], is_put=True).double().eval()
    with pytest.warns(UserWarning, match="picks or orders tokens"), gattn.capturing(model) as run:
        model(torch.randn(1, 3, 16, 16).double())
    *_, last = run.trace.heads()
    assert last.geometry is None
