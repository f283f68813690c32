"""Windows whose heads lie between texts and windows in one leading dimension, in any order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from gattn import All, capturing

SIZES = {"text": 2, "window": 4, "head": 2}
SLOTS, DIM = 3, 4
WIDTH = SIZES["head"] * DIM


class Windows(nn.Module):
    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.order, self.qkv = order, nn.Linear(WIDTH, 3 * WIDTH)
        self.double().eval()

    def forward(self, x):
        dims = {"text": 0, "window": 1, "head": 3}
        turned = [dims[name] for name in self.order]
        parts = [
            part.unflatten(1, (SIZES["window"], SLOTS)).unflatten(-1, (SIZES["head"], DIM))
            for part in self.qkv(x).chunk(3, -1)
        ]
        q, k, v = (part.permute(*turned, 2, 4).reshape(-1, SLOTS, DIM) for part in parts)
        attention = (q @ k.mT).softmax(-1)
        sizes = [SIZES[name] for name in self.order]
        self.shown = attention.unflatten(0, sizes).permute(
            *(self.order.index(name) for name in ("text", "head", "window")), 3, 4
        )
        out = (attention @ v).unflatten(0, sizes)
        places = [self.order.index(name) for name in ("text", "window")]
        return out.permute(*places, 3, self.order.index("head"), 4).reshape(x.shape)


@pytest.mark.parametrize("order", list(itertools.permutations(SIZES)))
def test_heads_may_lie_anywhere(order):
    model = Windows(order)
    x = torch.randn(SIZES["text"], SIZES["window"] * SLOTS, WIDTH).double()
    with torch.no_grad(), capturing(model, keep=All()) as run:
        model(x)
    for text, trace in enumerate(run.traces):
        for head in range(SIZES["head"]):
            wanted = torch.block_diag(*model.shown[text, head]).detach().numpy()
            np.testing.assert_allclose(trace[0, head].to_dense(), wanted, atol=1e-12)
