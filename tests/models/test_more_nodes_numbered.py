"""Which nodes of the data layers have: several graphs at once, pools that are undone, own code."""

import warnings

import pytest
import torch
from torch import nn

from gattn import capturing

pyg = pytest.importorskip("torch_geometric.nn")
NODES, WIDTH = 8, 8
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 3, 5], [1, 2, 3, 4, 5, 6, 7, 0, 3, 0, 2]])
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])
X = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """One layer, of what a function makes of the features; `nodes` says which nodes these are."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.pool = pyg.TopKPooling(WIDTH, 0.6)
        self.first, self.conv = (pyg.GATConv(WIDTH, WIDTH, add_self_loops=False) for _ in "ab")
        self.jumping = pyg.JumpingKnowledge("max")
        self.make, self.nodes = make, torch.arange(NODES)
        self.eval()

    def forward(self, x, edges):
        return self.conv(self.make(self, x, edges), edges)


def flattened(model, x, edges):
    model.nodes = torch.arange(NODES).flip(0)
    return x.flatten(0, 1).flip(0)


def unpooled(model, x, edges):
    """Nodes that were not picked are zero."""
    some, _, _, _, nodes, _ = model.pool(x, edges)
    found = torch.zeros_like(x)
    found[nodes] = some
    return found


def unpooled_elsewhere(model, x, edges):
    model.nodes = ORDER
    return unpooled(model, x, edges)[ORDER]


def jumping(model, x, edges):
    model.nodes = ORDER
    x = x[ORDER]
    return model.jumping([x, model.first(x, ORDER.argsort()[edges])])


def listed(model, x, edges):
    return torch.tensor(x.tolist()[::-1])


def as_array(model, x, edges):
    return torch.from_numpy(x.numpy()[::-1].copy())


def captured(model, x):
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model) as run:
            model(x, EDGES)
    is_unknown = ["cannot be proved which nodes" in str(one.message) for one in said]
    heads = run.trace.stacks["conv" if is_unknown else "graph"]
    return sorted(heads[max(heads)].graph.edge_index.T.tolist()), is_unknown


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (flattened, X.view(2, 4, WIDTH)),
        (lambda model, x, edges: x.flatten(0, 1), X.view(2, 4, WIDTH)),
        (unpooled, X),
        (jumping, X),
    ],
)
def test_nodes_of_the_data_are_told(make, x):
    model = Model(make)
    found, is_unknown = captured(model, x)
    assert found == sorted(model.nodes[EDGES].T.tolist())
    assert not is_unknown


@pytest.mark.parametrize("make", [unpooled_elsewhere, listed, as_array])
def test_nodes_that_are_not_told_are_numbered_as_they_come(make):
    assert captured(Model(make), X) == (sorted(EDGES.T.tolist()), [True])
