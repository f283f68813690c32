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


class Attend(nn.Module):
    """Attention of queries to keys."""

    def forward(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v


class Norm(nn.Module):
    """RMSNorm in code."""

    def forward(self, x):
        return nn.functional.normalize(x, dim=-1) * WIDTH**0.5


class Heads(nn.Module):
    """The projections around two heads of attention."""

    def __init__(self):
        super().__init__()
        self.sides = nn.ModuleList(nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False) for _ in range(3))
        self.attend, self.out = Attend(), nn.Linear(2 * WIDTH, 2 * WIDTH)

    def forward(self, x):
        sides = (side(x).unflatten(-1, (2, WIDTH)).transpose(1, 2) for side in self.sides)
        return self.out(self.attend(*sides).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Adds what heads read of a normalized stream."""

    def __init__(self):
        super().__init__()
        self.norm, self.heads = Norm(), Heads()

    def forward(self, x):
        return x + self.heads(self.norm(x))


@pytest.mark.parametrize("tokens", [WIDTH, WIDTH + 1])
@torch.no_grad()
def test_what_a_later_layer_multiplies_makes_no_attention_linear(tokens):
    """Also where tokens are as many as a head's channels."""
    model = nn.Sequential(nn.Embedding(20, 2 * WIDTH), Layer(), Layer()).eval()
    ids = torch.randint(20, (3, tokens))
    with capturing(model) as run:
        model(ids)
    sides = []
    for layer in model[1:]:
        layer.heads.attend.register_forward_pre_hook(lambda module, given: sides.append(given))
    model(ids)
    for layer, (q, k, _) in enumerate(sides):
        for element, trace in enumerate(run.traces):
            head = trace[layer, 1].to_dense()
            np.testing.assert_allclose(head, (q @ k.mT).softmax(-1)[element, 1], atol=1e-6)
