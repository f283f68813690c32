"""A softmax over edges that a layer writes out is read like torch-geometric's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import leaky_relu

from gattn import Cut, Scale, Swap, capturing, edited, effect
from gattn.errors import CaptureError
from gattn.normalizers import Sparsemax

NODES, WIDTH, HEADS, DIM = 7, 8, 2, 4
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 3), (5, 0), (2, 0), (6, 6), (1, 3), (4, 4)]
EDGES = torch.tensor(PAIRS).T
X = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))


def wide(index, like):
    return index.reshape(-1, *(1,) * (like.dim() - 1)).expand_as(like)


def by_index_add(scores, at, count):
    weights = (scores - scores.max()).exp()
    return weights / scores.new_zeros(count, *scores.shape[1:]).index_add(0, at, weights)[at]


def in_place(scores, at, count):
    total = scores.new_zeros(count, *scores.shape[1:])
    weights = scores.exp()
    total.index_add_(0, at, weights)
    weights /= total[at]
    return weights


def by_scatter_reduce(scores, at, count):
    start = scores.new_full((count, *scores.shape[1:]), -torch.inf)
    most = start.scatter_reduce(0, wide(at, scores), scores, "amax")
    weights = torch.exp(scores - most[at])
    total = torch.zeros_like(most).scatter_reduce(0, wide(at, scores), weights, "sum")
    return weights / (total.index_select(0, at) + 1e-16)


def by_scatter_add(scores, at, count):
    weights = scores.exp()
    total = weights.new_zeros(count, *scores.shape[1:]).scatter_add_(0, wide(at, scores), weights)
    return weights * total.gather(0, wide(at, scores)).clamp(min=1e-12).reciprocal()


def by_name(scores, at, count):
    weights = scores.exp().unsqueeze(-1)
    total = torch.zeros(count, *weights.shape[1:], dtype=weights.dtype)
    return (weights / total.index_add(dim=0, index=at, source=weights)[at]).squeeze(-1)


WAYS = [by_index_add, in_place, by_scatter_reduce, by_scatter_add, by_name]


class Layer(nn.Module):
    """Graph attention as the paper on GAT has it, written with sums by an index."""

    def __init__(self, softmax=by_index_add, edge=False, heads=HEADS):
        super().__init__()
        self.softmax, self.heads = softmax, heads
        self.lin = nn.Linear(WIDTH, heads * DIM)
        self.edge = nn.Linear(3, heads * DIM) if edge else None
        self.at, self.of = (nn.Parameter(torch.randn(heads, DIM)) for _ in range(2))

    def forward(self, x, edge_index, features=None):
        source, target = edge_index
        value = self.lin(x).view(-1, self.heads, DIM)
        scores = (value * self.of).sum(-1)[source] + (value * self.at).sum(-1)[target]
        self.alpha = self.softmax(leaky_relu(scores, 0.2), target, len(x))
        message = value[source]
        if self.edge is not None:
            message = message + self.edge(features).view(-1, self.heads, DIM)
        message = self.alpha[..., None] * message
        return value.new_zeros(value.shape).index_add_(0, target, message).flatten(1)


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(**options) for _ in range(2))
        self.eval()

    def forward(self, x, edge_index, *features):
        for layer in self.layers:
            x = layer(x, edge_index, *features).tanh()
        return x


def dense(alpha, edges=EDGES):
    return torch.zeros(NODES, NODES, dtype=alpha.dtype).index_put((edges[1], edges[0]), alpha)


def left(edge):
    return torch.arange(EDGES.shape[1]) != edge


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


def put(v, source):
    z = torch.zeros_like(v)
    z[PERM] = v
    return z[source]


def by_parts(v, source):
    z = torch.zeros_like(v)
    z[1:] = v[:-1]
    z[0] = v[-1]
    return z[source]


def joined(v, source):
    return torch.cat([v[1:], v[:1]])[source]


PERM = torch.tensor([3, 0, 6, 1, 5, 2, 4])
MOVED = {
    "flip": lambda v, source: v.flip(0)[source],
    "permutation": lambda v, source: v[PERM][source],
    "index_select": lambda v, source: v.index_select(0, PERM)[source],
    "embedding": lambda v, source: nn.functional.embedding(PERM, v.flatten(1))[source].view(
        -1, HEADS, DIM
    ),
    "roll": lambda v, source: v.roll(1, 0)[source],
    "cat": joined,
    "stack": lambda v, source: torch.stack(v.unbind(0)[::-1])[source],
    "sort": lambda v, source: v.sort(0).values[source],
    "put": put,
    "by parts": by_parts,
    "scattered": lambda v, source: torch.zeros_like(v).index_add(0, PERM, v)[source],
    "transposed": lambda v, source: v.transpose(0, 1).flip(1).transpose(0, 1)[source],
    "moved and gathered heads": lambda v, source: v.flip(0).flatten(1)[source].view(-1, HEADS, DIM),
    "added": lambda v, source: (v + v.flip(0))[source],
    "mixed": lambda v, source: v[source] + v[source].mean(0),
    "mixed, kept": lambda v, source: v[source] - v[source].mean(0, keepdim=True),
}
ADJACENCY = torch.zeros(NODES, NODES).index_put((EDGES[1], EDGES[0]), torch.tensor(0.5))
STAYING = {
    "as it is": lambda v: v,
    "norm": lambda v: nn.functional.layer_norm(v, (HEADS, DIM)).relu(),
    "dropout": lambda v: nn.functional.dropout(v, 0.1, False),
    "a sum over edges": lambda v: v.new_zeros(v.shape).index_add(0, EDGES[1], v[EDGES[0]]),
    "residual": lambda v: v + v.new_zeros(v.shape).index_add_(0, EDGES[1], v[EDGES[0]]),
    "a sum over a ring": lambda v: v + torch.zeros_like(v).index_add(0, EDGES[1, :4], v[:4]),
    "adjacency": lambda v: (ADJACENCY @ v.flatten(1)).view_as(v),
    "sparse": lambda v: (ADJACENCY.to_sparse() @ v.flatten(1)).view_as(v),
    "dense": lambda v: (v.flatten(1).T @ ADJACENCY.T).T.reshape(v.shape),
    "features": lambda v: torch.cat([v[..., 2:], v[..., :2]], -1),
    "powers": lambda v: torch.cat([v.flatten(1), ADJACENCY @ v.flatten(1)], 1)[:, ::2].view_as(v),
    "features moved": lambda v: v.flip(-1).roll(1, 2)[:, :, [1, 0, 2, 3]].sort(-1).values,
    "padded": lambda v: nn.functional.pad(v[..., 1:], (0, 1)),
    "heads": lambda v: v.flatten(1).unflatten(1, (DIM, HEADS)).transpose(1, 2).contiguous(),
    "heads first": lambda v: v.transpose(0, 1).relu().transpose(0, 1),
}


class Tables(Layer):
    """Makes values of a table in its own way, and may move all nodes before."""

    def __init__(self, values, first=None):
        super().__init__()
        torch.manual_seed(0)
        self.values, self.first = values, first

    def forward(self, x, edge_index):
        source, target = edge_index
        x = x if self.first is None else self.first(x)
        key = self.lin(x).view(-1, self.heads, DIM)
        scores = (key[source] * key[target]).sum(-1)
        self.alpha = self.softmax(scores, target, len(x))
        message = self.alpha[..., None] * self.values(key, source)
        return torch.zeros_like(key).index_add(0, target, message).flatten(1)


@torch.no_grad()
@pytest.mark.parametrize("how", MOVED)
def test_values_of_moved_rows_are_refused(how):
    model = Tables(MOVED[how]).eval()
    with pytest.raises(CaptureError, match="values of the node"), capturing(model):
        model(X, EDGES)


@torch.no_grad()
@pytest.mark.parametrize("how", STAYING)
def test_values_of_tables_in_order_are_read(how):
    model = Tables(lambda v, source: STAYING[how](v)[source]).eval()
    with capturing(model) as run:
        model(X, EDGES)
    found = torch.from_numpy(run.trace[0, 0].to_dense())
    torch.testing.assert_close(found, dense(model.alpha[:, 0]), atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    "look_up", [lambda table, ids: table(ids), lambda table, ids: table.weight[ids]]
)
def test_values_of_embeddings_are_read(look_up):
    class Embedded(Layer):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(3, HEADS * DIM)

        def forward(self, x, edge_index, kinds):
            source, target = edge_index
            key = self.lin(x).view(-1, HEADS, DIM)
            value = key + look_up(self.table, kinds).view_as(key)
            self.alpha = self.softmax((key[source] * key[target]).sum(-1), target, len(x))
            message = self.alpha[..., None] * value[source]
            return torch.zeros_like(key).index_add(0, target, message).flatten(1)

    model, kinds = Embedded().eval(), torch.arange(NODES) % 3
    with capturing(model) as run:
        model(X, EDGES, kinds)
    found = torch.from_numpy(run.trace[0, 0].to_dense())
    torch.testing.assert_close(found, dense(model.alpha[:, 0]), atol=1e-6, rtol=0)


@torch.no_grad()
def test_all_nodes_may_move_before_scores_and_values():
    undone = Tables(lambda v, source: v[source], lambda x: x[PERM][PERM.argsort()]).eval()
    moved = Tables(lambda v, source: v[source], lambda x: x.flip(0)).eval()
    for model, order in ((undone, torch.arange(NODES)), (moved, torch.arange(NODES).flip(0))):
        with capturing(model) as run:
            model(X, EDGES)
        expected = dense(model.alpha[:, 0], order[EDGES])
        found = torch.from_numpy(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@torch.no_grad()
def test_values_of_nodes_that_only_scores_moved_are_refused():
    class Half(Layer):
        def forward(self, x, edge_index):
            source, target = edge_index
            key = self.lin(x.flip(0)).view(-1, self.heads, DIM)
            alpha = self.softmax((key[source] * key[target]).sum(-1), target, len(x))
            message = alpha[..., None] * self.lin(x).view(-1, self.heads, DIM)[source]
            return torch.zeros_like(key).index_add(0, target, message).flatten(1)

    model = Half().eval()
    with pytest.raises(CaptureError, match="values of the node"), capturing(model):
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
