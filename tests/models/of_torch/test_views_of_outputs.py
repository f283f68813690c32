"""Attention that code takes a `view` of lies in memory as it did."""

import torch
from torch import nn

import gattn

TOKENS, WIDTH = 5, 12


class ChannelsFirst(nn.Module):
    """Weighs values (batch, heads, dim, keys, 1) with (batch, heads, 1, keys, queries)."""

    def __init__(self):
        super().__init__()
        self.project, self.cut = nn.Linear(WIDTH, 3 * WIDTH), None

    def forward(self, x):
        query, key, value = self.project(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 4, 1)
        scores = query.mT @ key
        if self.cut is not None:
            scores[..., *self.cut] = -torch.inf
        attention = scores.softmax(-1).mT.contiguous()
        output = (attention.unsqueeze(2) * value.contiguous().unsqueeze(-1)).sum(3)
        return x + output.view(len(x), WIDTH, TOKENS).mT


@torch.no_grad()
def test_channels_that_come_first_are_viewed():
    torch.manual_seed(0)
    layer, x = ChannelsFirst().double(), torch.randn(2, TOKENS, WIDTH).double()
    plain = layer(x)
    with gattn.capturing(layer) as run:
        assert torch.equal(layer(x), plain)
    assert len(run.traces) == 2
    with gattn.edited(layer, gattn.Cut(layer=0, query=3, key=1)):
        edited = layer(x)
    layer.cut = 3, 1
    torch.testing.assert_close(edited, layer(x))
    assert not torch.allclose(edited, plain)
