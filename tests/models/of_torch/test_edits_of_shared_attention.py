"""Heads that share one softmax, expanded over them, are edited together or apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, edited

_HEADS, _DIM, _TOKENS = 3, 4, 6
_WIDTH = _HEADS * _DIM


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.cut = nn.Linear(_WIDTH, 3 * _WIDTH), None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, _DIM)).permute(2, 0, 3, 1, 4)
        scores = q[:, :1] @ k[:, :1].mT
        attention = scores.softmax(-1).expand(-1, _HEADS, -1, -1)
        if self.cut is not None:
            without = scores.clone()
            without[:, :, 3, 2] = -torch.inf
            attention = attention.clone()
            attention[:, self.cut] = without.softmax(-1)
        return x + (attention @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("heads", "own"), [({}, slice(None)), ({"head": 1}, slice(1, 2))])
def test_edits_of_a_softmax_that_heads_share_reach_those_that_are_named(heads, own):
    torch.manual_seed(0)
    model, x = _Shared().double().eval(), torch.randn(2, _TOKENS, _WIDTH).double()
    with torch.no_grad():
        with edited(model, Cut(layer=0, query=3, key=2, **heads)):
            found = model(x)
        model.cut = own
        torch.testing.assert_close(found, model(x))
