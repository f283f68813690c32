"""Written-out sums over edges that are no attention to the values of keys are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError
from tests.written_edges import (
    DIM,
    EDGES,
    HEADS,
    NODES,
    WIDTH,
    Layer,
    Net,
    X,
    by_index_add,
    wide,
)


class Other(Layer):
    """Weighs other values than those of keys, or sums elsewhere."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x, edge_index):
        source, target = edge_index
        value = self.lin(x).view(-1, self.heads, DIM)
        scores = (value[source] * value[target]).sum(-1)
        alpha = self.softmax(scores, target, len(x))[..., None]
        message = {
            "queries": lambda: alpha * value[target],
            "another order": lambda: alpha * value[source].flip(0),
            "elsewhere": lambda: alpha * value[source],
            "none": lambda: alpha,
        }[self.how]()
        at = source if self.how == "elsewhere" else target
        out = value.new_zeros(len(x), *message.shape[1:])
        return out.index_add(0, at, message).flatten(1)


@torch.no_grad()
@pytest.mark.parametrize("how", ["queries", "another order", "elsewhere", "none"])
def test_what_does_not_weigh_the_values_of_keys_is_refused(how):
    torch.manual_seed(0)
    model = Other(how).eval()
    with pytest.raises(CaptureError, match=r"values of the node|summed up at"), capturing(model):
        model(X, EDGES)


@torch.no_grad()
def test_sums_of_something_else_are_no_softmax():
    def shares(scores, at, count):
        weights = scores.exp()
        return weights / (1 + weights.new_zeros(count, HEADS).index_add(0, at, weights)[at])

    net = Net(softmax=shares)
    with pytest.raises(CaptureError, match="cannot be seen"), capturing(net):
        net(X, EDGES)


@torch.no_grad()
def test_a_later_call_whose_sums_vanish_is_refused():
    def small(scores, at, count):
        weights = (scores - scores.max()).exp()
        total = weights.new_zeros(count, HEADS).index_add(0, at, weights)
        return weights / (total[at] + 1e-10)

    layer = Net(softmax=small).layers[0]
    with capturing(layer):
        layer(X, EDGES)
    with pytest.raises(CaptureError, match="divided exponentials"), capturing(layer):
        layer(X * 200, EDGES)


class Between(nn.Module):
    """Attends from nodes of one kind to nodes of another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.key, self.query = nn.Linear(WIDTH, DIM), nn.Linear(WIDTH, DIM)

    def forward(self, sources, targets, edge_index):
        source, target = edge_index
        key, query = self.key(sources), self.query(targets)
        scores = (key[source] * query[target]).sum(-1, keepdim=True)
        message = by_index_add(scores, target, len(targets)) * key[source]
        return torch.zeros_like(query).index_add(0, target, message)


@torch.no_grad()
@pytest.mark.parametrize("count", [6, NODES])
def test_nodes_of_two_kinds_are_not_taken_for_those_of_one(count):
    model, edges = Between().eval(), EDGES.clamp(max=5)
    with pytest.raises(CaptureError, match="other nodes than queries"), capturing(model):
        model(torch.randn(count, WIDTH), X, edges)


class Averaged(Layer):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x, edge_index):
        source, target = edge_index
        value = self.lin(x)
        scores = (value[source] * value[target]).sum(-1, keepdim=True)
        message = self.softmax(scores, target, len(x)) * value[source]
        out = torch.zeros_like(value)
        if self.how == "count":
            degree = target.bincount(minlength=len(x)).clamp(min=1)
            return out.index_add(0, target, message) / degree[:, None].float()
        return out.scatter_reduce(0, wide(target, message), message, self.how, include_self=False)


@torch.no_grad()
@pytest.mark.parametrize("how", ["count", "mean", "amax"])
def test_messages_that_are_averaged_are_refused(how):
    model = Averaged(how).eval()
    with pytest.raises(CaptureError, match="not added up"), edited(model, Cut(query=3, key=0)):
        model(X, EDGES)
