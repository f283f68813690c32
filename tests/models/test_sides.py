"""Whether queries and keys are the same tokens, where each row of scores is changed as a whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import capturing


class Causal(nn.Module):
    """Attends causally, its queries made of other tokens by `moved`."""

    def __init__(self, softmax, moved=lambda x: x):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.softmax, self.moved = softmax, moved

    def attention(self, x):
        scores = self.to_q(self.moved(x)) @ self.to_k(x).mT / 4
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.softmax(scores.masked_fill(later, -torch.inf))

    def forward(self, x):
        return self.attention(x) @ x


def _without_largest(scores):
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1)


def _without_largest_detached(scores):
    return (scores - scores.max(-1, keepdim=True).values.detach()).softmax(-1)


def _exponentials(scores):
    found = scores.exp()
    return found / found.sum(-1, keepdim=True)


def _exponentials_without_largest(scores):
    return _exponentials(scores - scores.amax(-1, keepdim=True))


@pytest.mark.parametrize(
    "softmax",
    [
        _without_largest,
        _without_largest_detached,
        _exponentials,
        _exponentials_without_largest,
    ],
)
@pytest.mark.parametrize("is_cross", [False, True])
def test_a_row_less_its_maximum_keeps_its_sides(softmax, is_cross):
    torch.manual_seed(0)
    first = (lambda x: x[:, :1].expand_as(x)) if is_cross else (lambda x: x)
    model, x = Causal(softmax, first).eval(), torch.randn(2, 6, 16)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    wanted = model.attention(x).detach()
    for n, trace in enumerate(run.traces):
        assert trace[0, 0].graph.is_bipartite is is_cross
        found = torch.tensor(trace[0, 0].to_dense())
        torch.testing.assert_close(found, wanted[n], atol=1e-5, rtol=0)
