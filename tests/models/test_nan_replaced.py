"""Code that replaces NaN, or looks for it, says nothing of which token is which."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn

HEADS = 2


def same(one, other):
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)


BEFORE = {
    "nan_to_num": torch.nan_to_num,
    "in place": lambda x: (x * 1).nan_to_num_(),
    "isnan": lambda x: torch.where(torch.isnan(x), torch.zeros_like(x), x),
    "isfinite": lambda x: x.masked_fill(~torch.isfinite(x), 0.0),
}


class Reader(nn.Module):
    def __init__(self, before=None, scores=None, after=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.steps, self.lost = [one or (lambda x: x) for one in (before, scores, after)], ()

    def forward(self, x, mask=None):
        before, scored, after = self.steps
        q, k, v = self.qkv(before(x)).unflatten(-1, (3, HEADS, 4)).permute(2, 0, 3, 1, 4)
        scores = scored(q @ k.mT)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None], -torch.inf)
        for query, key in self.lost:
            scores = scores.index_fill(-1, torch.tensor([key]), -torch.inf).where(
                (torch.arange(scores.shape[-2]) == query)[:, None], scores
            )
        attention = after(torch.softmax(scores, -1))
        self.seen = attention.detach()
        return x + self.out((attention @ v).transpose(1, 2).flatten(2))


class Two(nn.Module):
    def __init__(self, **steps):
        super().__init__()
        self.blocks = nn.ModuleList(Reader(**steps) for _ in range(2))

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask)
        return x


@pytest.mark.parametrize(
    "steps",
    [
        *({"before": one} for one in BEFORE.values()),
        {"scores": torch.nan_to_num},
        {"after": torch.nan_to_num},
    ],
    ids=[*BEFORE, "scores", "attention"],
)
def test_attention_is_read_where_code_replaces_nan(steps):
    torch.manual_seed(0)
    model, x = Two(**steps).eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        plain = model(x)
        wanted = [block.seen for block in model.blocks]
        with gattn.capturing(model) as run:
            assert torch.equal(model(x), plain)
        for n, trace in enumerate(run.traces):
            for layer, attention in enumerate(wanted):
                for head in range(HEADS):
                    same(trace[layer, head].to_dense(), attention[n, head])
        with gattn.edited(model, gattn.Cut(layer=1, query=3, key=2)):
            cut = model(x)
        model.blocks[1].lost = [(3, 2)]
        same(cut, model(x))


def test_rows_without_a_key_stay_without_one():
    torch.manual_seed(0)
    model, x = Two(after=torch.nan_to_num).eval(), torch.randn(2, 5, 8)
    mask = torch.zeros(2, 5, 5, dtype=torch.bool)
    mask[1, 3] = True
    with torch.no_grad():
        with gattn.capturing(model) as run:
            model(x, mask)
        wanted = [block.seen for block in model.blocks]
        same(run.traces[1][1, 1].to_dense(), wanted[1][1, 1])
        assert not run.traces[1][1, 1].to_dense()[3].any()
        with gattn.edited(model, gattn.Cut(layer=0, query=2, key=1)):
            cut = model(x, mask)
        model.blocks[0].lost = [(2, 1)]
        same(cut, model(x, mask))
