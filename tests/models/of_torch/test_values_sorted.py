"""Values that are sorted by themselves are those of no single key: their attention is refused."""

import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError

TOKENS, WIDTH = 6, 8


class Layer(nn.Module):
    """Attention, of one head or two, whose queries, keys or values are changed before."""

    def __init__(self, change, which, meet, heads) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.change, self.which, self.meet, self.heads = change, which, meet, heads
        self.eval()

    def forward(self, x):
        parts = [y.unflatten(-1, (self.heads, -1)) for y in self.qkv(x).chunk(3, -1)]
        if self.heads == 1:
            parts = [y.squeeze(2) for y in parts]
        parts = [self.change(y) if n == self.which else y for n, y in enumerate(parts)]
        q, k, v = parts if self.heads == 1 else (y.transpose(1, 2) for y in parts)
        self.attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        y = self.meet(q, k, v)
        return x + (y if self.heads == 1 else y.transpose(1, 2).flatten(2))


def by_product(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def by_einsum(q, k, v):
    return torch.einsum("...qk,...kd->...qd", (q @ k.mT).softmax(-1), v)


MEETS = {
    "@": by_product,
    "einsum": by_einsum,
    "kernel": nn.functional.scaled_dot_product_attention,
}
ORDERS = {
    "sort": lambda x: x.sort(1).values,
    "msort": lambda x: x.transpose(0, 1).msort().transpose(0, 1),
    "topk": lambda x: x.topk(x.shape[1], 1).values,
    "scaled": lambda x: x.sort(1).values * 2,
    "half": lambda x: torch.cat([x[:, :4].sort(1).values, x[:, 4:]], 1),
    "gather": lambda x: x.gather(1, x.argsort(1)),
}


def refused(name, which, meet, heads):
    model = Layer(ORDERS[name], which, meet, heads)
    with (
        pytest.raises(CaptureError, match="orders numbers by their values"),
        torch.no_grad(),
        capturing(model),
    ):
        model(torch.randn(2, TOKENS, WIDTH))


@pytest.mark.parametrize("meet", MEETS.values(), ids=MEETS)
@pytest.mark.parametrize("name", ORDERS)
def test_values_that_are_sorted_are_refused(name, meet):
    refused(name, 2, meet, 2)


@pytest.mark.parametrize("meet", [by_product, MEETS["kernel"]])
@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_what_one_head_sorts_is_refused(which, meet):
    refused("sort", which, meet, 1)


KEEPS = {
    "back": lambda x: x.gather(1, x.argsort(1)).gather(1, x.argsort(1).argsort(1)),
    "channels": lambda x: x * (x >= x.topk(2, -1).values[..., -1:]),
    "clipped": lambda x: x.clamp(max=0.5),
}


@pytest.mark.parametrize("meet", [by_product, MEETS["kernel"]])
@pytest.mark.parametrize("name", KEEPS)
def test_values_that_are_in_place_are_shown(name, meet):
    model, x = Layer(KEEPS[name], 2, meet, 2), torch.randn(1, TOKENS, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    found = torch.tensor(run.trace[0, 1].to_dense(), dtype=torch.float)
    torch.testing.assert_close(found, model.attention[0, 1].detach(), rtol=0, atol=1e-6)
