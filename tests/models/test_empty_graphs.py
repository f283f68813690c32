"""Layers on a graph without edges are shown without edges, and keep the nodes of the data."""

import warnings

import pytest
import torch
from torch_geometric.nn import GATConv, TransformerConv
from torch_geometric.utils import softmax

from gattn import capturing
from gattn.errors import CaptureError

NOTHING = torch.empty(2, 0, dtype=torch.long)


@torch.no_grad()
def test_a_graph_without_edges_is_shown():
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = TransformerConv(6, 4, heads=2).eval()
        with capturing(model, tokens=list("abcde")) as run:
            model(x, NOTHING)
    graph = run.trace.only_stack[0, 1]
    assert graph.graph.num_edges == 0
    assert graph.labels() == list("abcde")


class Listed(torch.nn.Module):
    """Attention of one head along listed edges, without message passing."""

    def forward(self, x, edge_index):
        source, target = edge_index
        scores = (x[target] * x[source]).sum(-1)
        alpha = softmax(scores, target, num_nodes=len(x))
        return torch.zeros_like(x).index_add(0, target, alpha[:, None] * x[source])


@torch.no_grad()
def test_listed_edges_may_be_none():
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    model = Listed()
    with capturing(model) as run:
        model(x, NOTHING)
    assert run.trace.only_stack[0, 0].graph.num_edges == 0
    assert run.trace.only_stack[0, 0].graph.num_tokens == 5


@torch.no_grad()
def test_a_layer_that_takes_no_softmax_then_says_so():
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    model = GATConv(6, 4, add_self_loops=False).eval()
    with pytest.raises(CaptureError, match="graph without edges"), capturing(model):
        model(x, NOTHING)
