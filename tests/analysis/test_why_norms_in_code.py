"""Norms that a layer's own code computes are held like those that are modules."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import gattn
from gattn.errors import CaptureError

WIDTH, HEADS, EPS = 16, 4, 1e-6


def centred(x):
    return x - x.mean(-1, keepdim=True)


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True) + EPS


NORMS = {
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:], eps=EPS),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:], eps=EPS),
    "normalize": lambda x: functional.normalize(x, dim=-1),
    "rsqrt": lambda x: x * torch.rsqrt(mean_square(x)),
    "power": lambda x: x * mean_square(x) ** -0.5,
    "sqrt": lambda x: x / mean_square(x).sqrt(),
    "var": lambda x: centred(x) / (x.var(-1, keepdim=True, correction=0) + EPS).sqrt(),
    "std": lambda x: centred(x) / (x.std(-1)[..., None] + EPS),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
}


class Module(nn.Module):
    """A norm that is a module."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x)


class Layer(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)
        self.gain = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.norm = norm

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for y in self.qkv(self.norm(x) * self.gain).split(WIDTH, -1)
        )
        y = functional.scaled_dot_product_attention(self.norm(q), self.norm(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(60, WIDTH), nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Layer(norm) for _ in range(3))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return x


def why(norm, ids=(5, 17, 42, 17, 8)):
    torch.manual_seed(0)
    model = Model(norm).double().eval()
    return gattn.why(lambda: model(torch.tensor([ids])), model, layer=2, head=1)


@pytest.mark.parametrize("name", NORMS)
def test_norms_in_code_are_held_like_modules(name):
    found, wanted = why(NORMS[name]), why(Module(NORMS[name]))
    assert found.writers == wanted.writers
    for side in ("queries", "keys"):
        mine, theirs = (torch.as_tensor(getattr(one, side)) for one in (found, wanted))
        assert theirs.abs().amax((1, 2)).min() > 0
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


GATES = {
    "sigmoid": lambda x: x * x.mean(-1, keepdim=True).sigmoid(),
    "fourth root": lambda x: x * mean_square(x) ** 0.25,
    "root of a gate": lambda x: x * x.mean(-1, keepdim=True).sigmoid().sqrt(),
    "size of something else": lambda x: x * x.flip(-1).norm(dim=-1, keepdim=True),
    "root of each feature": lambda x: x / (1 + x.square()).sqrt(),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_in_code_are_not_held(name):
    with pytest.raises(CaptureError, match="are not linear in the residual stream"):
        why(GATES[name])
