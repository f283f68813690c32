"""Edits that change which nodes a model picks say so where later layers are not found."""

import pytest
import torch
from torch import nn

import gattn
from gattn import Cut, edited
from gattn.errors import CaptureError, EditError

pyg = pytest.importorskip("torch_geometric.nn")
pytestmark = pytest.mark.filterwarnings("ignore:second .* attends over nodes")
NODES, WIDTH = 12, 6
SAID = r"'second' is a stack of its own in this run.*Edit only layers after it picks nodes"


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first = pyg.GATConv(WIDTH, WIDTH, heads=2, concat=False)
        self.pool, self.second = kind(WIDTH, 0.6), pyg.GATConv(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 3)
        self.eval()

    def forward(self, x, edges):
        x, edges, _, _, self.nodes, _ = self.pool(self.first(x, edges).relu(), edges)
        return self.out(self.second(x, edges).mean(0, keepdim=True))


@pytest.fixture(params=["TopKPooling", "SAGPooling"])
def run(request):
    """A model, a run of it, and the nodes that it picks."""
    model = Model(getattr(pyg, request.param))
    x, edges = torch.randn(NODES, WIDTH), torch.randint(NODES, (2, 40))
    model(x, edges)
    return model, lambda: model(x, edges), model.nodes.tolist()


def edges_of(run, model, layer):
    trace = gattn.capture(run, model)
    return trace.stacks["graph"][layer, 0].graph.edge_index.T.tolist()


@torch.no_grad()
def test_a_cut_behind_a_pool_of_other_nodes_says_why_it_is_not_met(run):
    model, call, nodes = run
    (_, query), *_ = edges_of(call, model, 1)
    cuts = [Cut(layer=0, query=one, stack="graph") for one in nodes[:3]]
    with (
        pytest.raises(EditError, match=SAID),
        edited(model, *cuts, Cut(layer=1, query=query, stack="graph")),
    ):
        call()
    assert model.nodes.tolist() != nodes


@torch.no_grad()
def test_layers_behind_a_pool_are_edited_alone(run):
    model, call, nodes = run
    (key, query), *_ = edges_of(call, model, 1)
    before = call()
    with edited(model, Cut(layer=1, query=query, key=key, stack="graph")):
        assert not torch.equal(call(), before)
    assert model.nodes.tolist() == nodes


def test_estimates_and_circuits_say_why_they_stop(run):
    model, call, _ = run
    with pytest.raises((EditError, CaptureError), match=SAID):
        gattn.estimate(call, model, target=0, other=1, sample=20, progress=False)
    with pytest.raises((EditError, CaptureError), match=SAID):
        gattn.circuit(call, model, target=0, progress=False)
