"""Contexts on a model and on a part of it number the same tokens and nodes, or are refused."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

TOKENS, WIDTH = 8, 6
X = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]])
BOTH_WAYS = torch.cat([EDGES, EDGES.flip(0)], 1)
CUT = Cut(layer=0, query=2, key=1)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + (self.query(x) @ self.key(x).mT / 3).softmax(-1) @ self.value(x)


class Model(nn.Module):
    """Two layers, before the second of which tokens may be moved."""

    def __init__(self, kind, moves):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.moves = kind(), kind(), moves
        self.eval()

    def between(self, x):
        return x[:, ORDER] if self.moves else x

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Graph(Model):
    def forward(self, x):
        return self.second(self.between(self.first(x[0], BOTH_WAYS)[None])[0], BOTH_WAYS)


def gat():
    return pytest.importorskip("torch_geometric.nn").GATConv(WIDTH, WIDTH, add_self_loops=False)


def made(kind, moves):
    return Graph(gat, moves) if kind == "graph" else Model(Head, moves)


def rows(model, outer, inner):
    """Return the rows of the output that two contexts change."""
    before = model(X)
    with outer, inner:
        return (model(X) != before).reshape(TOKENS, WIDTH).any(1).nonzero()[:, 0].tolist()


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "graph"])
def test_what_a_whole_moves_before_a_part_is_refused(kind, is_inside):
    model = made(kind, True)
    contexts = [capturing(model), edited(model.second, CUT)]
    with pytest.raises(CaptureError, match=r"on a model and on a part of it, and .* have other"):
        rows(model, *(contexts if is_inside else contexts[::-1]))


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "graph"])
def test_a_part_whose_numbers_are_those_of_the_whole_is_edited(kind, is_inside):
    model = made(kind, False)
    contexts = [capturing(model), edited(model.second, CUT)]
    assert rows(model, *(contexts if is_inside else contexts[::-1])) == [2]
