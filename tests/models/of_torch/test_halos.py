"""Attention from blocks of pixels to larger windows around them, whose padding is no token."""

from __future__ import annotations

import pytest
import torch
from attending_models import HEADS, WIDTH
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited

BLOCK, HALO, SIDE = 2, 1, 4
PATCHES = SIDE * SIDE


class Halo(nn.Module):
    """Blocks of pixels of a picture (batch, channels, side, side) attend to windows around them."""

    def __init__(self):
        super().__init__()
        self.q = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
        self.kv = nn.Conv2d(WIDTH, 2 * WIDTH, 1, bias=False)

    def forward(self, x):
        batch, _, side, _ = x.shape
        count = side // BLOCK
        q = self.q(x).reshape(-1, WIDTH // HEADS, count, BLOCK, count, BLOCK)
        q = q.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)
        kv = F.pad(self.kv(x), (HALO,) * 4)
        size = BLOCK + 2 * HALO
        kv = kv.unfold(2, size, BLOCK).unfold(3, size, BLOCK)
        kv = kv.reshape(batch * HEADS, 2 * WIDTH // HEADS, count * count, -1).permute(0, 2, 3, 1)
        k, v = kv.chunk(2, -1)
        y = (q @ k.mT).softmax(-1) @ v
        y = y.unflatten(2, (BLOCK, BLOCK)).unflatten(1, (count, count))
        return y.permute(0, 5, 1, 3, 2, 4).reshape(batch, WIDTH, side, side)


def dense(model, x, query=None, key=None):
    """Attention between pixels, (batch, heads, pixels, pixels), by the formula; and the output.

    Padding has the score 0 and the value 0.
    """
    batch, _, side, _ = x.shape
    q = model.q(x).reshape(batch, HEADS, -1, side * side).mT
    k, v = model.kv(x).reshape(batch, HEADS, -1, side * side).mT.chunk(2, -1)
    row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
    of_row, of_column = row // BLOCK * BLOCK, column // BLOCK * BLOCK
    near = [
        (of[:, None] - HALO <= at) & (at < of[:, None] + BLOCK + HALO)
        for of, at in ((of_row, row), (of_column, column))
    ]
    inside = near[0] & near[1]
    padding = (BLOCK + 2 * HALO) ** 2 - inside.sum(1)
    weights = (q @ k.mT).exp() * inside
    if query is not None:
        weights[:, :, query, key] = 0
    attention = weights / (weights.sum(-1, keepdim=True) + padding[:, None])
    return attention, (attention @ v).mT.reshape(batch, WIDTH, side, side)


@pytest.fixture(params=[1, 2])
def example(request):
    torch.manual_seed(0)
    return Halo().eval(), torch.randn(request.param, WIDTH, SIDE, SIDE)


def test_padding_stands_for_no_pixel(example):
    model, x = example
    with torch.no_grad(), capturing(model) as run:
        model(x)
    with torch.no_grad():
        wanted, output = dense(model, x)
        torch.testing.assert_close(model(x), output)
    for trace, attention in zip(run.traces, wanted, strict=True):
        for head in range(HEADS):
            found = torch.as_tensor(trace[0, head].to_dense(), dtype=torch.float32)
            torch.testing.assert_close(found[:PATCHES, :PATCHES], attention[head])
            torch.testing.assert_close(found[:PATCHES].sum(1), torch.ones(PATCHES))
            assert not found[PATCHES:].any()


def test_one_window_around_all_pixels():
    torch.manual_seed(0)
    model, x = Halo().eval(), torch.randn(2, WIDTH, BLOCK, BLOCK)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    with torch.no_grad():
        wanted, _ = dense(model, x)
    pixels = BLOCK * BLOCK
    for trace, attention in zip(run.traces, wanted, strict=True):
        graph = trace[0, 1]
        assert not graph.graph.is_bipartite
        found = torch.as_tensor(graph.to_dense(), dtype=torch.float32)
        torch.testing.assert_close(found[:pixels, :pixels], attention[1])
        assert not found[pixels:].any()


def test_an_edge_to_a_pixel_of_another_block_is_cut(example):
    model, x = example
    query, key = 1, 2
    with torch.no_grad():
        _, wanted = dense(model, x, query, key)
        with edited(model, Cut(query=query, key=key)):
            output = model(x)
        assert not torch.allclose(output, model(x))
    torch.testing.assert_close(output, wanted)


def test_values_of_pixels_in_several_windows_are_those_of_the_pixels():
    torch.manual_seed(0)
    model, x = Halo().double().eval(), torch.randn(1, WIDTH, SIDE, SIDE).double()
    with torch.no_grad(), capturing(model, contributions="value") as run:
        model(x)
    attention, _ = dense(model, x)
    values = model.kv(x).reshape(1, HEADS, -1, PATCHES).mT.chunk(2, -1)[1]
    lengths = (attention * values.norm(dim=-1)[:, :, None])[0].detach()
    for head in run.trace.heads():
        key, query = head.graph.edge_index
        is_pixel = (key < PATCHES) & (query < PATCHES)
        expected = lengths[head.head, query[is_pixel], key[is_pixel]]
        torch.testing.assert_close(torch.as_tensor(head.value_norm)[is_pixel], expected)


class Neighbours(nn.Module):
    """Tokens attend to those at some distances from them, in this order."""

    def __init__(self, distances):
        super().__init__()
        self.distances = distances
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def parts(self, x):
        return self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.parts(x)
        k, v = (torch.stack([x.roll(-n, 2) for n in self.distances], 3) for x in (k, v))
        attention = (q[:, :, :, None] * k).sum(-1).softmax(-1)
        return self.out((attention[..., None] * v).sum(3).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("distances", [(-1, 0, 1), (1, 0, -1), (0, 2, 5), (4, 1)])
def test_contributions_do_not_depend_on_the_order_of_a_window(distances):
    torch.manual_seed(0)
    model, x = Neighbours(distances).double().eval(), torch.randn(2, 7, WIDTH).double()
    with torch.no_grad(), capturing(model, contributions=True) as run:
        model(x)
    values = model.parts(x)[2]
    written = model.out.weight.unflatten(1, (HEADS, -1))
    lengths = torch.einsum("bhkd,chd->bhkc", values, written).norm(dim=-1).detach()
    for n, trace in enumerate(run.traces):
        for head in trace.heads():
            key = head.graph.edge_index[0]
            expected = torch.as_tensor(head.attention) * lengths[n, head.head, key]
            torch.testing.assert_close(torch.as_tensor(head.contribution), expected)
