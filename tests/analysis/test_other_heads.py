"""Layers that have different numbers of heads, as those of most graph attention networks."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import SelectionError
from gattn.heads.stack import Stack

SIZE = 5


def attention(seed):
    drawn = np.random.default_rng(seed).random((SIZE, SIZE))
    return drawn / drawn.sum(1, keepdims=True)


NUMBERS = {(0, 0): attention(0), (0, 1): attention(1), (0, 2): attention(2), (1, 0): attention(3)}


@pytest.fixture
def stack():
    graphs = {
        (layer, head): gattn.AttentionGraph.from_dense(a) for (layer, head), a in NUMBERS.items()
    }
    return Stack("graph", graphs)


def rolled(first, second):
    def mixed(layer):
        return (layer + np.eye(SIZE)) / (layer.sum(1, keepdims=True) + 1)

    return mixed(second) @ mixed(first)


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_a_rollout_reduces_the_heads_that_each_layer_has(stack, reduce):
    first = getattr(np, reduce)([NUMBERS[0, head] for head in range(3)], axis=0)
    found = gattn.analysis.rollout(stack, reduce=reduce)
    np.testing.assert_allclose(found[1], rolled(first, NUMBERS[1, 0]), atol=1e-7)
    assert found.attrs["computed_from"].startswith("graph stack, layers 0-1, 5 nodes;")


def test_heads_are_chosen_where_layers_have_them(stack):
    for heads, first in (0, 0), ([(0, 2), (1, 0)], 2):
        found = gattn.analysis.rollout(stack, heads=heads)
        np.testing.assert_allclose(found[1], rolled(NUMBERS[0, first], NUMBERS[1, 0]), atol=1e-7)
    for heads in (2, [(0, 0), (1, 2)]):
        with pytest.raises(SelectionError, match=r"Layer 1 has no head 2; it has \[0\]"):
            gattn.analysis.rollout(stack, heads=heads)
    with pytest.raises(SelectionError, match="same number of heads in every layer"):
        gattn.analysis.rollout(stack, reduce=[1, 1, 2])


def test_flows_and_influences_are_those_of_the_means(stack):
    means = np.stack([np.mean([NUMBERS[0, head] for head in range(3)], axis=0), NUMBERS[1, 0]])
    found, expected = (gattn.analysis.flow(x, progress=False) for x in (stack, means[:, None]))
    np.testing.assert_allclose(found, expected, atol=1e-7)
    found, expected = (gattn.analysis.oversquashing(x, query=2) for x in (stack, means[:, None]))
    np.testing.assert_allclose(found["influence"], expected["influence"], atol=1e-7)


def test_an_edge_of_any_head_reaches():
    near, far = (np.eye(SIZE)[:, list(order)] for order in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 0]))
    heads = {(0, 0): near, (1, 0): near, (1, 1): far}
    graphs = {place: gattn.AttentionGraph.from_dense(a) for place, a in heads.items()}
    found = gattn.analysis.reach(Stack("graph", graphs))
    np.testing.assert_array_equal(found == 2, far > 0)


def test_what_compares_heads_needs_the_same(stack):
    with pytest.raises(SelectionError, match=r"Layer 1 has no head 1.*with heads=0"):
        gattn.analysis.spectral_table(stack)


class Convs(nn.Module):
    """A layer of three heads, then one of a single head."""

    def __init__(self, pyg):
        super().__init__()
        self.convs = nn.ModuleList([pyg.GATConv(6, 4, heads=3), pyg.GATConv(12, 6)])
        self.seen = []

    def forward(self, x, edges):
        for conv in self.convs:
            x, seen = conv(x, edges, return_attention_weights=True)
            self.seen.append(seen)
        return x


def test_a_gradient_rollout_takes_the_mean_of_the_heads_of_a_layer():
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    model, x = Convs(pyg).double().eval(), torch.randn(SIZE, 6).double()
    links = torch.tensor([[0, 1, 2, 3, 4, 2], [1, 2, 3, 4, 0, 0]])
    metric = model(x, links)[2].sin().sum()
    state = torch.eye(SIZE).double()
    seen = list(model.seen)
    gradients = torch.autograd.grad(metric, [attention for _, attention in seen])
    for ((key, query), attention), gradient in zip(seen, gradients, strict=True):
        relevance = torch.zeros(SIZE, SIZE).double()
        relevance[query, key] = (attention * gradient).clamp_min(0).mean(1).detach()
        state = state + relevance @ state
    found = gattn.analysis.gradient_rollout(lambda: model(x, links)[2].sin().sum(), model)
    torch.testing.assert_close(torch.from_numpy(found[1].to_numpy()), state, atol=1e-9, rtol=0)


def test_notes_say_which_heads_layers_have(stack):
    said = "layers have different heads: heads 0-2 in layer 0, head 0 in layer 1"
    assert said in gattn.analysis.rollout(stack).attrs["notes"]
