"""Attention over listed edges is shown only where its messages are summed up at its queries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

pyg = pytest.importorskip("torch_geometric.nn")
utils = pytest.importorskip("torch_geometric.utils")

NODES, WIDTH = 6, 4
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 5, 2], [1, 2, 3, 4, 5, 3, 0, 0]])


def spread(index, like):
    return index[:, None].expand(-1, like.shape[1])


WAYS = {
    "index_add": lambda out, at, x: out.index_add(0, at, x),
    "index_add_": lambda out, at, x: out.index_add_(0, at, x),
    "by keywords": lambda out, at, x: out.index_add(dim=0, index=at, source=x),
    "scatter_add": lambda out, at, x: torch.scatter_add(out, 0, spread(at, x), x),
    "scatter_reduce": lambda out, at, x: out.scatter_reduce(0, spread(at, x), x, "sum"),
    "scatter": lambda out, at, x: utils.scatter(x, at, 0, len(out)),
}


class Written(nn.Module):
    """Takes its softmax at one end of edges, values from an end, and sums messages up at an end."""

    def __init__(self, way, softmax, value, total):
        super().__init__()
        self.lin, self.way = nn.Linear(WIDTH, WIDTH), way
        self.ends = softmax, value, total

    def forward(self, x, edges):
        softmax, value, total = (edges[n] for n in self.ends)
        hidden = self.lin(x)
        scores = (hidden[edges[0]] * hidden[edges[1]]).sum(-1)
        alpha = utils.softmax(scores, softmax, num_nodes=len(x))
        return self.way(torch.zeros_like(hidden), total, alpha[:, None] * hidden[value])


class Passing(pyg.MessagePassing):
    """Takes the softmax before messages pass."""

    def __init__(self, softmax, flow="source_to_target"):
        super().__init__(aggr="add", flow=flow)
        self.lin, self.softmax = nn.Linear(WIDTH, WIDTH), softmax

    def forward(self, x, edges):
        hidden = self.lin(x)
        scores = (hidden[edges[0]] * hidden[edges[1]]).sum(-1)
        alpha = utils.softmax(scores, edges[self.softmax], num_nodes=len(x))
        return self.propagate(edges, x=hidden, alpha=alpha)

    def message(self, x_j, alpha):
        return x_j * alpha[:, None]


def made(model):
    torch.manual_seed(0)
    return model.eval(), torch.randn(NODES, WIDTH)


def check_edits(model, x, key, query):
    """Each cut gives what the model gives without the edge."""
    for edge in range(EDGES.shape[1]):
        cut = Cut(layer=0, query=int(EDGES[query, edge]), key=int(EDGES[key, edge]))
        with edited(model, cut):
            found = model(x, EDGES)
        left = torch.arange(EDGES.shape[1]) != edge
        torch.testing.assert_close(found, model(x, EDGES[:, left]))


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", [0, 1])
def test_messages_that_are_summed_up_at_the_queries_are_shown(way, query):
    torch.manual_seed(0)
    model, x = made(Written(WAYS[way], query, 1 - query, query))
    check_edits(model, x, 1 - query, query)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", [0, 1])
def test_a_softmax_over_the_edges_out_of_a_node_is_refused(way, query):
    torch.manual_seed(0)
    model, x = made(Written(WAYS[way], query, query, 1 - query))
    for context in (capturing(model), edited(model, Cut(query=3, key=0))):
        with pytest.raises(CaptureError, match="summed up at others"), context:
            model(x, EDGES)


@torch.no_grad()
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_a_softmax_before_messages_pass_must_be_where_they_are_summed_up(flow):
    query = int(flow == "source_to_target")
    torch.manual_seed(0)
    model, x = made(Passing(query, flow))
    check_edits(model, x, 1 - query, query)
    model, x = made(Passing(1 - query, flow))
    with pytest.raises(CaptureError, match="summed up at others"), capturing(model):
        model(x, EDGES)


@torch.no_grad()
def test_attention_that_is_only_counted_elsewhere_is_no_message():
    class Counting(Written):
        def forward(self, x, edges):
            hidden = self.lin(x)
            scores = (hidden[edges[0]] * hidden[edges[1]]).sum(-1)
            alpha = utils.softmax(scores, edges[1], num_nodes=len(x))
            self.sent = x.new_zeros(len(x)).index_add(0, edges[0], alpha)
            return self.way(torch.zeros_like(hidden), edges[1], alpha[:, None] * hidden[edges[0]])

    torch.manual_seed(0)
    model, x = made(Counting(WAYS["index_add"], 1, 0, 1))
    check_edits(model, x, 0, 1)
