"""Modules that are given queries and keys with heads apart, beside series folded into the batch."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from gattn import Cut, capturing, edited

SERIES, PATCHES, PATCH, WIDTH, HEADS = 3, 6, 4, 8, 2


class Attend(nn.Module):
    """Takes (batch, tokens, heads, dim), as in many libraries of time series."""

    def __init__(self, is_kernel):
        super().__init__()
        self.is_kernel, self.cut = is_kernel, None

    def forward(self, query, key, value):
        scores = torch.einsum("blhe,bshe->bhls", query, key) / math.sqrt(WIDTH // HEADS)
        if self.cut is not None:
            series, row, column = self.cut
            scores.unflatten(0, (-1, SERIES))[:, series, :, row, column] = -math.inf
        self.weights = scores.softmax(-1)
        if self.is_kernel and self.cut is None:
            apart = (x.transpose(1, 2) for x in (query, key, value))
            return scaled_dot_product_attention(*apart).transpose(1, 2).contiguous()
        return torch.einsum("bhls,bshd->blhd", self.weights, value).contiguous()


class Layer(nn.Module):
    def __init__(self, is_kernel):
        super().__init__()
        self.attend, self.project = Attend(is_kernel), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        parts = self.project(x).chunk(3, -1)
        heads = (part.unflatten(-1, (HEADS, -1)) for part in parts)
        return x + self.out(self.attend(*heads).flatten(2))


class Forecaster(nn.Module):
    def __init__(self, *, is_kernel, is_scaled):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.is_scaled = nn.Linear(PATCH, WIDTH), is_scaled
        self.layers = nn.ModuleList(Layer(is_kernel) for _ in range(2))
        self.head = nn.Linear(PATCHES * WIDTH, 2)
        self.double().eval()

    def forward(self, x):
        if self.is_scaled:
            x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt()
        patches = x.mT.unfold(-1, PATCH, PATCH).flatten(0, 1)
        x = self.embed(patches)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.unflatten(0, (-1, SERIES)).flatten(2))


@pytest.mark.filterwarnings("ignore:Beside the softmax that meets the values")
@pytest.mark.parametrize("is_kernel", [False, True])
@pytest.mark.parametrize("is_scaled", [False, True])
@torch.no_grad()
def test_heads_are_heads_and_each_series_reads_itself(is_kernel, is_scaled):
    model = Forecaster(is_kernel=is_kernel, is_scaled=is_scaled)
    x = torch.randn(2, PATCHES * PATCH, SERIES, generator=torch.Generator().manual_seed(1)).double()
    with capturing(model) as run:
        plain = model(x)
    for n, trace in enumerate(run.traces):
        assert {head for (_, head), _ in trace.only_stack.items()} == {0, 1}
        for layer in range(2):
            weights = model.layers[layer].attend.weights.unflatten(0, (2, SERIES))[n]
            for head in range(HEADS):
                graph = trace.only_stack[layer, head]
                assert not graph.graph.is_bipartite
                wanted = torch.block_diag(*weights[:, head])
                torch.testing.assert_close(torch.tensor(graph.to_dense()), wanted)
    with edited(model, Cut(layer=0, query=PATCHES + 3, key=PATCHES + 1)):
        found = model(x)
    model.layers[0].attend.cut = 1, 3, 1
    wanted = model(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(wanted, plain)
