"""Hooks that look at values, and change nothing, leave nodes and tokens known."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

pyg = pytest.importorskip("torch_geometric.nn")
NODES, WIDTH = 8, 8
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 3, 5], [1, 2, 3, 4, 5, 6, 7, 0, 3, 0, 2]])
X = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
NAMES = tuple("abcdefgh")


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (pyg.GATConv(WIDTH, WIDTH) for _ in range(2))
        self.pool = pyg.TopKPooling(WIDTH, 0.6)
        self.eval()

    def forward(self, x, edges):
        x, edges, _, _, self.nodes, _ = self.pool(self.first(x, edges), edges)
        return self.second(x, edges)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + (self.query(x) @ self.key(x).mT / 3).softmax(-1) @ self.value(x)


class SortedBack(nn.Module):
    """Tokens are sorted by value between two layers, and sorted back."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Head(), Head()
        self.eval()

    def forward(self, x):
        x = self.first(x)
        order = x[..., :1].argsort(1).expand_as(x)
        return self.second(x.gather(1, order).tanh().gather(1, order.argsort(1)))


def refuse_nan(module, given, output):
    if output.isnan().any():
        raise ValueError("not a number")


class Watcher:
    largest = 0.0

    def note(self, module, given, output):
        self.largest = max(self.largest, output.max().item())

    def __call__(self, module, given, output):
        self.note(module, given, output)


def refuse_above(limit, module, given, output):
    assert not (output > limit).any()


HOOKS = {
    "function": lambda: refuse_nan,
    "method": lambda: Watcher().note,
    "object": lambda: Watcher(),
    "partial": lambda: partial(refuse_above, 1e6),
}


def shown(model):
    """Return the names of the last layer's tokens, and its graph."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with capturing(model, tokens=NAMES) as run:
            model(*((X, EDGES) if isinstance(model, Pooled) else (X[None],)))
    head = [run.trace.stacks[stack][place] for stack, place in last(run.trace)][-1]
    return head.tokens, head.graph.edge_index.tolist()


def last(trace):
    return [(stack, place) for stack, heads in trace.stacks.items() for place in heads]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", [Pooled, SortedBack])
def test_what_looks_at_values_leaves_names(kind, hook):
    expected = shown(kind())
    assert expected[0] == NAMES
    model = kind()
    for part in (model.first, model.second, model):
        part.register_forward_hook(HOOKS[hook]())
    assert shown(model) == expected
    assert shown(model) == expected  # As it was proved before.


@torch.no_grad()
def test_nodes_that_an_edit_changes_are_not_known_whatever_looks_at_them():
    model = Pooled()
    model(X, EDGES)
    before = model.nodes.tolist()
    model.first.register_forward_hook(refuse_nan)
    cut = Cut(layer=0, query=before[0], stack="graph")
    with pytest.warns(UserWarning, match=r"second \(GATConv\) attends"), edited(model, cut):
        names, _ = shown(model)
    assert model.nodes.tolist() != before
    assert names == ()
