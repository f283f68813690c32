"""A softmax over edges that a layer writes out is read like torch-geometric's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import leaky_relu

from gattn import Cut, Scale, Swap, capturing, edited, effect
from gattn.normalizers import Sparsemax
from tests.written_edges import (
    DIM,
    EDGES,
    HEADS,
    NODES,
    PAIRS,
    WAYS,
    Layer,
    Net,
    X,
    by_index_add,
    by_scatter_reduce,
    dense,
    left,
    wide,
)


@torch.no_grad()
@pytest.mark.parametrize("softmax", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_is_that_of_the_layer(softmax, dtype):
    net = Net(softmax=softmax).to(dtype)
    x = X.to(dtype)
    plain = net(x, EDGES)
    alphas = [layer.alpha.clone() for layer in net.layers]
    with capturing(net, scores=True) as run:
        assert torch.equal(net(x, EDGES), plain)
    assert list(run.trace.stacks) == ["graph"]
    for layer, alpha in enumerate(alphas):
        for head in range(HEADS):
            found = torch.from_numpy(run.trace[layer, head].to_dense())
            torch.testing.assert_close(found.to(dtype), dense(alpha[:, head]), atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("softmax", WAYS)
def test_each_cut_is_the_layer_without_the_edge(softmax):
    layer = Net(softmax=softmax).layers[0]
    for edge, (key, query) in enumerate(PAIRS):
        with edited(layer, Cut(layer=0, query=query, key=key)):
            found = layer(X, EDGES)
        expected = layer(X, EDGES[:, left(edge)])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_edits_of_a_net_with_edge_features_and_of_nested_contexts():
    net, features = Net(edge=True), torch.randn(EDGES.shape[1], 3)
    first, second = net.layers
    hidden = first(X, EDGES[:, left(5)], features[left(5)]).tanh()
    expected = second(hidden, EDGES, features).tanh()
    with edited(net, Cut(layer=0, query=3, key=0)), capturing(net) as run:
        found = net(X, EDGES, features)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert [0, 3] not in run.trace[0, 0].graph.edge_index.T.tolist()
    with edited(net, Scale(0.5, layer=1, query=3, head=1)):
        found = net(X, EDGES, features)
    second(first(X, EDGES, features).tanh(), EDGES, features)
    assert torch.equal(found[:, :DIM], net(X, EDGES, features)[:, :DIM])
    assert not torch.equal(found[3, DIM:], net(X, EDGES, features)[3, DIM:])


@torch.no_grad()
def test_another_normalizer_reads_the_scores_before_their_maximum_was_taken_away():
    layer = Net(softmax=by_scatter_reduce).layers[0]
    source, target = EDGES
    value = layer.lin(X).view(-1, HEADS, DIM)
    scores = (value * layer.of).sum(-1)[source] + (value * layer.at).sum(-1)[target]
    with capturing(layer, scores=True) as run, edited(layer, Swap(layer=0, normalizer=Sparsemax())):
        layer(X, EDGES)
    table = run.trace[0, 0].to_pandas().set_index(["key", "query"])["score"]
    expected = leaky_relu(scores, 0.2)[:, 0].tolist()
    assert table.loc[PAIRS].tolist() == pytest.approx(expected, abs=1e-6)


def in_the_memory_of_scores(scores, at, count):
    weights = scores.exp_()
    return weights / weights.new_zeros(count, *scores.shape[1:]).index_add(0, at, weights)[at]


@pytest.mark.parametrize("softmax", [by_index_add, in_the_memory_of_scores])
def test_gradients_are_those_without_the_edge(softmax):
    layer = Net(softmax=softmax).layers[0]
    with edited(layer, Cut(layer=0, query=3, key=0)):
        layer(X, EDGES).square().sum().backward()
    found = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(X, EDGES[:, left(5)]).square().sum().backward()
    for one, p in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_effects_are_measured():
    layer = Net().layers[0]
    found = effect(
        lambda: layer(X, EDGES)[3], [Cut(layer=0, query=3, key=0)], metric=torch.sum, model=layer
    )
    expected = layer(X, EDGES[:, left(5)])[3].sum() - layer(X, EDGES)[3].sum()
    assert float(found["effect"].iloc[0]) == pytest.approx(float(expected), abs=1e-5)


class Listed(Layer):
    """Has edges as pairs, and writes all out itself, on one graph or in a list of types."""

    def forward(self, x, pairs):
        value = self.lin(x).view(-1, self.heads, DIM)
        scores = (value[pairs[:, 0]] * value[pairs[:, 1]]).sum(-1)
        self.alpha = self.softmax(scores, pairs[:, 1], len(x))
        message = self.alpha[..., None] * value[pairs[:, 0]]
        return torch.zeros_like(value).index_add(0, pairs[:, 1], message).flatten(1)


@torch.no_grad()
def test_edges_come_as_pairs_or_as_two_lists():
    torch.manual_seed(0)
    listed = Listed().eval()
    with edited(listed, Cut(layer=0, query=3, key=0)):
        found = listed(X, EDGES.T)
    torch.testing.assert_close(found, listed(X, EDGES.T[left(5)]), atol=1e-6, rtol=1e-5)

    class Two(Layer):
        def forward(self, x, source, target):
            value = self.lin(x).view(-1, self.heads, DIM)
            scores = (value[source] * value[target]).sum(-1)
            self.alpha = self.softmax(scores, target, len(x))
            message = self.alpha[..., None] * value[source]
            return torch.zeros_like(value).index_add(0, target, message).flatten(1)

    two = Two().eval()
    with edited(two, Cut(layer=0, query=3, key=0)):
        found = two(X, *EDGES)
    torch.testing.assert_close(found, two(X, *EDGES[:, left(5)]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("repeat", [wide, lambda index, like: index[:, None].repeat(1, HEADS)])
@pytest.mark.parametrize("are_apart", [False, True])
@torch.no_grad()
def test_an_index_that_is_repeated_for_two_heads_is_no_list_of_edges(repeat, are_apart):
    class Repeating(Layer):
        def forward(self, x, edge_index):
            source, target = edge_index
            value = self.lin(x).view(-1, HEADS, DIM)
            scores = (value * self.of).sum(-1)[source] + (value * self.at).sum(-1)[target]
            alpha, at = scores.exp(), repeat(target, scores)
            if are_apart:
                del edge_index
            total = alpha.new_zeros(len(x), HEADS).scatter_add(0, at, alpha)
            self.alpha = alpha / total.gather(0, at)
            message = value[source] * self.alpha[..., None]
            return torch.zeros_like(value).index_add(0, target, message).flatten(1)

    torch.manual_seed(0)
    model = Repeating().eval()
    model(X, EDGES)
    wanted = torch.zeros(NODES, NODES).index_put((EDGES[1], EDGES[0]), model.alpha[:, 1])
    with capturing(model) as run:
        model(X, EDGES)
    found = torch.tensor(run.trace.only_stack[0, 1].to_dense())
    torch.testing.assert_close(found, wanted)


class InMethods(Layer):
    """Gives a method of its own the nodes alone; it knows the edges in its forward."""

    def forward(self, given):
        x, edge_index = given
        value = self.lin(x).view(-1, self.heads, DIM)
        of, at = ((value * side).sum(-1) for side in (self.of, self.at))
        scores = of.index_select(0, edge_index[0]) + at.index_select(0, edge_index[1])
        self.alpha = self._shared_out(leaky_relu(scores, 0.2), edge_index[1], len(x))
        message = value.index_select(0, edge_index[0]) * self.alpha[..., None]
        where = edge_index[1][:, None, None].expand_as(message)
        found = torch.zeros_like(value).scatter_add_(0, where, message)
        return found.flatten(1), edge_index

    def _shared_out(self, scores, target, count):
        scores = (scores - scores.max()).exp()
        where = target[:, None].expand_as(scores)
        total = torch.zeros(count, HEADS, dtype=scores.dtype).scatter_add_(0, where, scores)
        return scores / (total.index_select(0, target) + 1e-16)


@torch.no_grad()
def test_edges_are_known_where_a_method_is_given_nodes_alone():
    torch.manual_seed(0)
    model = torch.nn.Sequential(InMethods()).eval()
    with capturing(model) as run:
        model((X, EDGES))
    for head in range(HEADS):
        found = torch.from_numpy(run.trace[0, head].to_dense())
        torch.testing.assert_close(found, dense(model[0].alpha[:, head]), atol=1e-6, rtol=0)
    for edge, (key, query) in enumerate(PAIRS):
        with edited(model, Cut(layer=0, query=query, key=key)):
            found, _ = model((X, EDGES))
        expected, _ = model((X, EDGES[:, left(edge)]))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
