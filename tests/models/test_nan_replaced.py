"""Code that replaces NaN, or looks for it, says nothing of which token is which."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

HEADS = 2


def same(one, other):
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)


BEFORE = {
    "nan_to_num": torch.nan_to_num,
    "in place": lambda x: (x * 1).nan_to_num_(),
    "isnan": lambda x: torch.where(torch.isnan(x), torch.zeros_like(x), x),
    "isfinite": lambda x: x.masked_fill(~torch.isfinite(x), 0.0),
    "not itself": lambda x: torch.where(x != x, torch.zeros_like(x), x),
    "itself": lambda x: torch.where(torch.eq(x, other=x), x, torch.zeros_like(x)),
    "not equal": lambda x: x.masked_fill(x.not_equal(x), 0.0),
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


SMALL = 1.0
TESTS = {
    "isfinite": torch.isfinite,
    "isinf": lambda x: ~torch.isinf(x),
    "isposinf": lambda x: ~torch.isposinf(x.abs()),
    "itself": lambda x: (y := x * 0) == y,
}


def first_for_infinite(test):
    """Put the first token in place of those that are so small that a division overflows."""

    def put(x):
        scaled = x / (x.abs().sum(-1, keepdim=True) > SMALL)
        return torch.where(test(scaled).all(-1, keepdim=True), x, x[:, :1])

    return put


class Keepless(Reader):
    """Keeps nothing from call to call, so that what was proved of one may hold of the next."""

    def __setattr__(self, name, value):
        if name != "seen":
            super().__setattr__(name, value)


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_tokens_in_place_of_infinite_ones_are_not_taken_for_these(test):
    torch.manual_seed(0)
    model, x = Keepless(first_for_infinite(test)).eval(), torch.randn(1, 5, 8)
    other = x.clone()
    other[0, 1] *= 0.01
    put = model.steps[0](other)
    assert torch.equal(put[0, 1], other[0, 0])
    with torch.no_grad():
        for calls in ([other], [x, other]):
            with pytest.raises(CaptureError, match="several times"), gattn.capturing(model):
                list(map(model, calls))
        with gattn.capturing(model, tokens=list("abcde")) as run:
            model(x)
    assert run.traces[0][0, 0].tokens == tuple("abcde")


@pytest.mark.parametrize(
    "found",
    [torch.isinf, torch.isneginf, lambda x: ~torch.isfinite(x)],
    ids=["isinf", "isneginf", "isfinite"],
)
def test_infinite_scores_may_be_made_finite(found):
    torch.manual_seed(0)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)

    def scores(x):
        x = x.masked_fill(causal, -torch.inf)
        return x.masked_fill(found(x), -1e9)

    model, x = Two(scores=scores).eval(), torch.randn(2, 5, 8)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(x)
    for layer, block in enumerate(model.blocks):
        for n, trace in enumerate(run.traces):
            same(trace[layer, 1].to_dense(), block.seen[n, 1])
