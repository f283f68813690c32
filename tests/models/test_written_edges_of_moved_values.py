"""Values that written-out attention weighs: moved rows are refused, rows in place are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.utils import softmax as geometric

from gattn import capturing
from gattn.errors import CaptureError
from tests.written_edges import (
    DIM,
    EDGES,
    HEADS,
    NODES,
    WAYS,
    Layer,
    X,
    dense,
)


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


def by_geometric(scores, at, count):
    return geometric(scores, at, num_nodes=count)


LOOPS = {"in order": torch.arange(NODES), "in another": PERM}
"""Graphs of self-loops alone, whose keys and queries are the same list."""


@torch.no_grad()
@pytest.mark.parametrize("softmax", [*WAYS, by_geometric])
@pytest.mark.parametrize("loops", LOOPS)
def test_self_loops_alone_are_read(loops, softmax):
    model = Tables(lambda v, source: v[source]).eval()
    model.softmax = softmax
    edges = LOOPS[loops].repeat(2, 1)
    with capturing(model) as run:
        model(X, edges)
    for head in range(HEADS):
        found = torch.from_numpy(run.trace[0, head].to_dense())
        torch.testing.assert_close(found, dense(model.alpha[:, head], edges), atol=1e-6, rtol=0)
    torch.testing.assert_close(found, torch.eye(NODES), atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("how", MOVED)
def test_values_of_moved_rows_are_refused_on_self_loops_too(how):
    model = Tables(MOVED[how]).eval()
    for loops in (torch.arange(NODES), PERM):
        with pytest.raises(CaptureError, match="values of the node"), capturing(model):
            model(X, loops.repeat(2, 1))


@torch.no_grad()
def test_keys_and_values_of_moved_rows_are_refused_on_self_loops_too():
    """Scores tell nothing of one edge a node, but no list tells where values moved either."""

    class Moved(Tables):
        def forward(self, x, edge_index):
            source, target = edge_index
            key = self.lin(x).view(-1, self.heads, DIM)
            scores = (key.flip(0)[source] * key[target]).sum(-1)
            alpha = self.softmax(scores, target, len(x))
            message = alpha[..., None] * self.values(key, source)
            return torch.zeros_like(key).index_add(0, target, message).flatten(1)

    for values in (MOVED["flip"], lambda v, source: v[source]):
        model = Moved(values).eval()
        with pytest.raises(CaptureError, match="values of the node"), capturing(model):
            model(X, PERM.repeat(2, 1))


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
