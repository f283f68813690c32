"""Linear (efficient) attention computes no weight for a pair of tokens, so none is shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError

WIDTH = 8


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def _written(x, dim):
    """A softmax in other words."""
    x = x.exp()
    return x / x.sum(dim, keepdim=True)


WAYS = {
    "softmax of both": lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
    "softmax of keys": lambda q, k, v: q @ (k.softmax(-2).mT @ v),
    "scaled": lambda q, k, v: (q.softmax(-1) * 0.3) @ (k.softmax(-2).mT @ v / 5),
    "written out": lambda q, k, v: q @ (_written(k, -2).mT @ v),
    "both written out": lambda q, k, v: _written(q, -1) @ (_written(k, -2).mT @ v),
    "spread": lambda q, k, v: (
        q.softmax(-1)[..., None]
        * (k.softmax(-2)[..., None] * v[..., None, :]).sum(-3)[..., None, :, :]
    ).sum(-2),
    "turned": lambda q, k, v: (v.mT @ k.softmax(-2) @ q.softmax(-1).mT).mT,
    "einsum": lambda q, k, v: torch.einsum(
        "...nd,...de->...ne", q.softmax(-1), torch.einsum("...nd,...ne->...de", k.softmax(-2), v)
    ),
}


class Linear(nn.Module):
    """Linear (efficient) attention, in some way."""

    def __init__(self, way, heads=None):
        super().__init__()
        self.qkv, self.way, self.heads = nn.Linear(WIDTH, 3 * WIDTH), way, heads

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.heads is None:
            return WAYS[self.way](q, k, v)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        return WAYS[self.way](q, k, v).transpose(1, 2).flatten(2)


class Softmax(nn.Module):
    """Attention of tokens to tokens."""

    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize(("shape", "heads"), [((1, 5), None), ((2, 5), 2), ((1, WIDTH), None)])
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_channels_of_linear_attention_are_no_rows(way, shape, heads):
    model = Linear(way, heads).eval()
    said = pytest.raises(CaptureError, match=r"linear \(efficient\)|\(linear\) attention")
    with said, capturing(model):
        model(torch.randn(*shape, WIDTH))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("way", ["softmax of both", "softmax of keys", "written out"])
@torch.no_grad()
def test_linear_attention_is_left_out_beside_attention(way, is_first):
    some = [Linear(way, 2), Softmax()]
    model = nn.Sequential(*(some if is_first else some[::-1])).eval()
    x = torch.randn(1, 5, WIDTH)
    with pytest.warns(UserWarning, match=r"\(Linear\)"), capturing(model) as run:
        model(x)
    x = model[0](x) if is_first else x
    assert list(run.trace.stacks) == ["Softmax"]
    head = run.trace.stacks["Softmax"][0, 0].to_dense()
    np.testing.assert_allclose(head, (x @ x.mT).softmax(-1)[0], atol=1e-6)
