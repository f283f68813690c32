"""Einsums that sum up more than the keys: one query, several that are pooled, heads, channels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited


class Pooling(nn.Module):
    """Attends by learned queries, each in heads, and pools what they read."""

    def __init__(self, shape: str, queries: int, heads: int, equation: str) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, heads, 4))
        self.key, self.value = nn.Linear(8, heads * 4), nn.Linear(8, heads * 4)
        self.shape, self.equation, self.heads = shape, equation, heads
        self.out = nn.Linear(8, 8)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention (batch, heads, queries, keys), and values."""
        k, v = (part(x).unflatten(-1, (self.heads, 4)) for part in (self.key, self.value))
        return torch.einsum("khd,bthd->bhkt", self.query, k).softmax(-1), v

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(x)
        weights, v = self.parts(x)
        order = ["bhkt".index(n) for n in self.shape]
        laid = weights.permute(order) if "h" in self.shape else weights[:, 0]
        laid = laid.mT if self.shape == "btk" else laid
        return torch.einsum(self.equation, laid, v if "h" in self.equation else v.flatten(2))


WAYS = {
    "one query": ("bkt", 1, 1, "bkt,btd->bd"),
    "one query, keys first": ("btk", 1, 1, "btk,btd->bd"),
    "any number of dimensions": ("btk", 1, 1, "...tk,...td->...d"),
    "queries summed": ("bkt", 3, 1, "bkt,btd->bd"),
    "heads summed": ("bhkt", 3, 2, "bhkt,bthd->bkd"),
    "heads and queries": ("bkth", 3, 2, "bkth,bthd->bd"),
    "channels summed": ("bkt", 3, 1, "bkt,btd->bk"),
}


def _summed(model: Pooling, weights: Tensor, v: Tensor) -> Tensor:
    """Take the products of all heads and queries, and sum them up as the model says."""
    out = (weights @ v.transpose(1, 2)).sum(1)  # In one head, or all of them.
    ends = model.equation.rpartition(">")[2].replace("...", "b")
    out = out if "k" in ends else out.sum(1)
    return out if "d" in ends else out.sum(-1)


@pytest.mark.parametrize("name", WAYS)
def test_einsums_that_sum_more_than_keys_are_read_and_edited(name: str) -> None:
    torch.manual_seed(0)
    model, x = Pooling(*WAYS[name]).double(), torch.randn(2, 5, 8).double()
    y = x + model.out(x)
    with torch.no_grad(), capturing(model) as run:
        plain = model(x)
    weights, v = model.parts(y)
    torch.testing.assert_close(plain, _summed(model, weights, v))
    for text, trace in zip(weights, run.traces, strict=True):
        for head, wanted in enumerate(text):
            found = torch.tensor(trace[0, head].to_dense())
            torch.testing.assert_close(found, wanted, check_dtype=False)
    with torch.no_grad(), edited(model, Cut(key=1)):
        cut = model(x)
    weights = weights.clone()
    weights[..., 1] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(cut, _summed(model, weights, v))


@pytest.mark.parametrize("name", ["one query", "queries summed", "heads and queries"])
def test_gradients_go_through_what_is_summed(name: str) -> None:
    torch.manual_seed(0)
    model, x = Pooling(*WAYS[name]).double(), torch.randn(2, 5, 8).double().requires_grad_()
    with edited(model, Cut(key=1)):
        found = torch.autograd.grad(model(x).square().sum(), x)[0]
    weights, v = model.parts(x + model.out(x))
    weights = weights * (torch.arange(5) != 1)
    out = _summed(model, weights / weights.sum(-1, keepdim=True), v)
    torch.testing.assert_close(found, torch.autograd.grad(out.square().sum(), x)[0])
