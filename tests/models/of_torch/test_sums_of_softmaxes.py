"""Softmaxes over classes or experts beside attention: what sums them runs as before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gattn

WIDTH, EXPERTS = 8, 6


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.attention = (q @ k.mT / 3).softmax(-1)
        return x + self.attention @ v


class Dice(nn.Module):
    """A loss of classes: twice what two masks share, divided by what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        found = self.classes(x).softmax(-1)
        target = nn.functional.one_hot(found.argmax(-1), EXPERTS).float()
        return 2 * (found * target).sum(1) / (found.sum(1) + target.sum(1))


class Experts(nn.Module):
    """Experts side by side, weighed by the largest of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        weights = weights * (weights >= weights.topk(4, -1).values[..., -1:])
        found = torch.stack([expert(x) for expert in self.experts], -2)
        return (found * weights[..., None]).sum(-2) / weights.sum(-1, keepdim=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Dice, Experts])
def test_what_follows_attention_runs_as_before(kind):
    torch.manual_seed(0)
    model = nn.Sequential(Attends(), kind()).eval()
    x = torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        expected = model(x)
        with gattn.capturing(model, keep=gattn.All()) as run:
            assert torch.equal(model(x), expected)
    for trace, attention in zip(run.traces, model[0].attention, strict=True):
        torch.testing.assert_close(torch.tensor(trace[0, 0].to_dense()), attention)
