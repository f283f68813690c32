"""A model may copy its modules while it runs: what copies attend to is the copying module's."""

import copy

import pytest
import torch
from hand_written import CAUSAL, DIM, HEADS, TOKENS, WIDTH, Layer
from torch import nn
from torch_geometric.nn import GATConv

import gattn


class Teacher(nn.Module):
    """Runs a copy of its layer beside it, as students that are distilled by a copy do."""

    def __init__(self, is_alone):
        super().__init__()
        self.layer, self.is_alone = Layer(attend), is_alone

    def forward(self, x):
        output = copy.deepcopy(self.layer)(x)
        return output if self.is_alone else output + 2 * self.layer(x)


def attend(q, k, v):
    return (q @ k.mT / DIM**0.5).masked_fill(~CAUSAL, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("is_alone", [True, False])
@torch.no_grad()
def test_copies_are_read_and_edited(is_alone):
    torch.manual_seed(0)
    model, x = Teacher(is_alone).double().eval(), torch.randn(2, TOKENS, WIDTH).double()
    plain = model(x)
    with gattn.capturing(model) as run:
        assert torch.equal(model(x), plain)
    q, k, v = model.layer.parts(x)
    wanted = attend(q, k, torch.eye(TOKENS).double())
    stacks = ["Teacher"] if is_alone else ["Teacher", "layer"]
    for row, trace in enumerate(run.traces):
        assert list(trace.stacks) == stacks
        for stack in trace.stacks.values():
            for head in range(HEADS):
                found = torch.tensor(stack[0, head].to_dense())
                torch.testing.assert_close(found, wanted[row, head], rtol=0, atol=1e-12)
    with gattn.edited(model, gattn.Cut(layer=0, key=0, renormalize=False, stack="Teacher")):
        cut = model(x)
    missing = wanted[..., :1] * v[..., :1, :]
    missing = (model.layer.out(missing.transpose(1, 2).flatten(2)) - model.layer.out.bias).double()
    torch.testing.assert_close(cut, plain - missing, rtol=0, atol=1e-12)


class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(GATConv(8, 4, heads=2) for _ in range(2))

    def forward(self, x, edge_index):
        copies = copy.deepcopy(self.convs)
        for conv in copies:
            x = conv(x, edge_index).tanh()
        return x


@torch.no_grad()
def test_graph_layers_may_be_copied_too():
    torch.manual_seed(0)
    model, x = Graphs().double().eval(), torch.randn(4, 8).double()
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    plain = model(x, edges)
    says = "attends over nodes"  # It is not proved that copies have those of the data.
    with pytest.warns(UserWarning, match=says), gattn.capturing(model) as run:
        assert torch.equal(model(x, edges), plain)
    _, (ends, alpha) = model.convs[0](x, edges, return_attention_weights=True)
    wanted = torch.zeros(4, 4).double().index_put((ends[1], ends[0]), alpha[:, 1])
    stack = next(iter(run.trace.stacks.values()))
    torch.testing.assert_close(torch.tensor(stack[0, 1].to_dense()), wanted, rtol=0, atol=1e-12)
