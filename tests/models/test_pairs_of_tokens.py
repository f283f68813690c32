"""Attention between pairs of tokens, along the sides of triangles, with a batch and without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited

WIDTH, HEADS = 8, 2


class Triangle(nn.Module):
    """Lets a pair (i, j) read the pairs (i, k), by the bias of (j, k), or of columns for rows."""

    def __init__(self, starts: bool) -> None:
        super().__init__()
        self.starts, self.norm = starts, nn.LayerNorm(WIDTH)
        self.qkv, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, HEADS)
        self.gate, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def parts(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Give scores (..., i, heads, j, k), and values."""
        q, k, v = self.qkv(pairs).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-2, -3)
        bias = self.bias(pairs).movedim(-1, -3).unsqueeze(-4)
        return q @ k.mT / q.shape[-1] ** 0.5 + bias, v

    def forward(self, z: Tensor) -> Tensor:
        pairs = self.norm(z if self.starts else z.transpose(-2, -3))
        scores, v = self.parts(pairs)
        y = (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
        y = self.out(y * self.gate(pairs).sigmoid())
        return z + (y if self.starts else y.transpose(-2, -3))

    def wanted(self, z: Tensor) -> Tensor:
        """Give the attention between all pairs of one sequence, (heads, queries, keys)."""
        count = len(z)
        pairs = self.norm(z if self.starts else z.transpose(0, 1))
        along = self.parts(pairs)[0].softmax(-1)
        found = z.new_zeros(HEADS, count, count, count, count)
        for n in range(count):
            if self.starts:
                found[:, n, :, n] = along[n]
            else:
                found[:, :, n, :, n] = along[n]
        return found.flatten(3).flatten(1, 2)


def _pairs(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 4), (5, 5), (1, 4, 4), (2, 4, 4)])
@torch.no_grad()
def test_pairs_attend_along_rows_and_columns(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Triangle(starts=True), Triangle(starts=False)).double().eval()
    z = _pairs(*shape)
    with capturing(model) as run:
        model(z)
    each = z.reshape(-1, *z.shape[-3:])
    for trace, one in zip(run.traces, each, strict=True):
        first, second = model
        wanted = torch.stack([first.wanted(one), second.wanted(first(one))])
        assert len(list(trace.heads())) == 2 * HEADS
        for graph, own in zip(trace.heads(), wanted.flatten(0, 1), strict=True):
            found = torch.from_numpy(graph.to_dense())
            torch.testing.assert_close(found, own, rtol=0, atol=1e-12)


@torch.no_grad()
def test_an_edge_between_pairs_without_a_batch_is_cut() -> None:
    torch.manual_seed(0)
    model = Triangle(starts=True).double().eval()
    z = _pairs(4, 4)
    with edited(model, Cut(layer=0, head=1, query=6, key=7)):
        found = model(z)
    scores, v = model.parts(model.norm(z))
    scores[1, 1, 2, 3] = -torch.inf
    y = (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
    wanted = z + model.out(y * model.gate(model.norm(z)).sigmoid())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(found, model(z))
