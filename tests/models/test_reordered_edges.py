"""Layers that put their edges in another order, or compute their attention more than once."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import leaky_relu

from gattn import Cut, Scale, capturing, edited, estimate
from gattn.errors import CaptureError
from tests.written_edges import DIM, EDGES, HEADS, NODES, PAIRS, Layer, X, dense, left


def sorted_edges(target):
    return target.argsort(stable=True)


def mixed_edges(target):
    return torch.randperm(len(target), generator=torch.Generator().manual_seed(0))


class Ordered(Layer):
    """Puts weights, values and targets in another order, before or after they meet."""

    def __init__(self, order=sorted_edges, when="before"):
        super().__init__()
        self.order, self.when = order, when

    def forward(self, x, edge_index):
        source, target = edge_index
        value = self.lin(x).view(-1, HEADS, DIM)
        scores = (value * self.of).sum(-1)[source] + (value * self.at).sum(-1)[target]
        self.alpha = self.softmax(leaky_relu(scores, 0.2), target, len(x))
        order = self.order(target)
        if self.when == "before":
            message = self.alpha[order][..., None] * value[source[order]]
        elif self.when == "after":
            message = (self.alpha[..., None] * value[source]).index_select(0, order)
        elif self.when == "twice":
            half = self.alpha[order.flip(0)][..., None] * value[source][order.flip(0)]
            message = half[torch.arange(len(order)).flip(0)]
        elif self.when == "weights alone":
            message = self.alpha[order][..., None] * value[source]
        elif self.when == "values alone":
            message = self.alpha[..., None] * value[source[order]]
        elif self.when == "but the targets":
            order, message = slice(None), self.alpha[order][..., None] * value[source[order]]
        elif self.when == "by a flip":
            order, message = slice(None), (self.alpha[..., None] * value[source]).flip(0)
            target = target.flip(0)
        return value.new_zeros(value.shape).index_add_(0, target[order], message).flatten(1)


def made(kind, *options):
    torch.manual_seed(0)
    return kind(*options).double().eval()


def check(layer, x):
    """Compare what is shown, and each cut, with the layer's own attention and the other edges."""
    with torch.no_grad():
        plain = layer(x, EDGES)
        alpha = layer.alpha.clone()
        with capturing(layer) as run:
            assert torch.equal(layer(x, EDGES), plain)
        assert len(run.trace.only_stack.layers) == 1
        for head in range(HEADS):
            found = torch.from_numpy(run.trace[0, head].to_dense())
            torch.testing.assert_close(found, dense(alpha[:, head]), atol=1e-12, rtol=0)
        for edge, (key, query) in enumerate(PAIRS):
            with edited(layer, Cut(layer=0, query=query, key=key)):
                found = layer(x, EDGES)
            expected = layer(x, EDGES[:, left(edge)])
            torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("when", ["before", "after", "twice"])
@pytest.mark.parametrize("order", [sorted_edges, mixed_edges])
def test_edges_that_an_index_reorders_are_read(order, when):
    check(made(Ordered, order, when), X.double())


@pytest.mark.parametrize("when", ["weights alone", "values alone"])
def test_weights_of_other_edges_values_are_refused(when):
    layer = made(Ordered, mixed_edges, when)
    with pytest.raises(CaptureError, match="cannot be read"), capturing(layer):
        layer(X.double(), EDGES)


@pytest.mark.parametrize("when", ["but the targets", "by a flip"])
def test_the_reason_names_an_order_that_is_not_followed(when):
    layer = made(Ordered, mixed_edges, when)
    says = "summed up at others.* or the edges were put in another order, and not by an index"
    with pytest.raises(CaptureError, match=says), capturing(layer):
        layer(X.double(), EDGES)


class Again(Layer):
    """Divides exponentials by their sums as often as it needs attention."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x, edge_index):
        source, target = edge_index
        value = self.lin(x).view(-1, HEADS, DIM)
        scores = (value * self.of).sum(-1)[source] + (value * self.at).sum(-1)[target]
        weights = (leaky_relu(scores, 0.2) - scores.max()).exp()
        total = weights.new_zeros(NODES, HEADS).index_add(0, target, weights)[target]
        start = value.new_zeros(value.shape)
        if self.way == "kept first":
            self.alpha = weights / total
            return start.index_add_(0, target, (weights / total)[..., None] * value[source]).mean(1)
        first = start.index_add(0, target, (weights / total)[..., None] * value[source])
        second = start.index_add(0, target, (weights / total)[..., None] * value[source].tanh())
        self.alpha = weights / total
        weights / weights.sum()  # Other numbers, of which nothing is made.
        return (first * second).mean(1)


@pytest.mark.parametrize("way", ["kept first", "two sums"])
def test_attention_that_is_computed_again_is_one_layer(way):
    check(made(Again, way), X.double())


def test_gradients_of_edits_do_not_stop_at_the_first_of_two():
    layer, x = made(Again, "two sums"), X.double().requires_grad_()
    says = "computes its attention twice, and an edit of it has a gradient"
    with pytest.raises(CaptureError, match=says), edited(layer, Scale(0.5, layer=0)):
        layer(x, EDGES)


def test_estimates_of_one_use_alone_are_refused():
    layer, x = made(Again, "two sums"), X.double()
    with pytest.raises(CaptureError, match="computes its attention twice"):
        estimate(lambda: layer(x, EDGES).sum(), layer, renormalize=False, sample=0)
