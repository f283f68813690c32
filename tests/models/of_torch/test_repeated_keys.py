"""Keys that stand for one token together are no edges of a graph, but a cut reaches them all."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError


class Repeating(nn.Module):
    """Has each key twice."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cut = nn.Linear(8, 24), None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.repeat_interleave(2, 1).mT
        if self.cut is not None:
            query, key = self.cut
            scores[:, query, 2 * key : 2 * key + 2] = -torch.inf
        return scores.softmax(-1) @ v.repeat_interleave(2, 1)


@torch.no_grad()
def test_a_token_that_is_a_key_twice():
    torch.manual_seed(0)
    model, x = Repeating().double().eval(), torch.randn(2, 5, 8).double()
    with capturing(model) as run:
        model(x)
    with pytest.raises(CaptureError, match="several slots of the same token"):
        _ = run.traces
    with edited(model, Cut(layer=0, query=3, key=2)):
        found = model(x)
    model.cut = 3, 2
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-12)
