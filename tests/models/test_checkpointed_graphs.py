"""Gradients of edits of layers that a checkpoint computes again, where no edit reaches them."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gattn
from gattn import Scale, edited
from gattn.errors import EditError

pyg = pytest.importorskip("torch_geometric.nn")
NODES, WIDTH = 6, 4
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 3], [1, 2, 3, 4, 5, 0, 3, 0]])


def conv():
    return pyg.GATConv(WIDTH, WIDTH, add_self_loops=False)


def own():
    return gattn.GraphAttention(WIDTH, WIDTH)


class Block(nn.Module):
    def __init__(self, kind, edges):
        super().__init__()
        self.layer, self.edges = kind(), edges

    def forward(self, x):
        return self.layer(x, self.edges)


class Model(nn.Module):
    def __init__(self, kind, edges, is_reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Block(kind, edges), Block(kind, edges)
        self.is_reentrant = is_reentrant
        self.eval()

    def forward(self, x):
        x = self.first(x)
        if self.is_reentrant is None:
            return self.second(x)
        return checkpoint(self.second, x, use_reentrant=self.is_reentrant)


def gradient(kind, edges, is_reentrant, *edits):
    model = Model(kind, edges, is_reentrant).double()
    x = torch.linspace(-1, 1, NODES * WIDTH, dtype=torch.float64).reshape(NODES, WIDTH)
    x.requires_grad_()
    if not edits:
        model(x).square().sum().backward()
        return x.grad
    with edited(model, *edits):
        model(x).square().sum().backward()
    return x.grad


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize(
    ("kind", "edges", "where"),
    [
        (conv, EDGES, {"stack": "graph", "layer": 1}),
        (own, EDGES, {"stack": "graph", "layer": 1}),
        (own, gattn.TokenGraph.causal(NODES), {"stack": "second.layer", "layer": 0}),
    ],
)
def test_gradients_that_edits_do_not_reach_are_refused(kind, edges, where, is_reentrant):
    edit = Scale(0.5, query=1, key=0, **where)
    torch.testing.assert_close(
        gradient(kind, edges, is_reentrant), gradient(kind, edges, None), rtol=1e-9, atol=1e-12
    )
    assert not torch.allclose(gradient(kind, edges, None, edit), gradient(kind, edges, None))
    with pytest.raises(EditError, match="where no edit reaches it: run the model without"):
        gradient(kind, edges, is_reentrant, edit)
