"""The lengths of messages that a layer weighs and sums up itself, against its own numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError
from gattn.models.run.recording import Recording
from tests.written_edges import DIM, EDGES, HEADS, NODES, WAYS, Layer, Net, X, by_index_add

ORDER = torch.randperm(EDGES.shape[1], generator=torch.Generator().manual_seed(0))


class Sums(Layer):
    """Weighs and sums up in one of several ways, and keeps its messages."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.messages = how, torch.empty(0)
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        value = self.lin(x).view(-1, self.heads, DIM)
        scores = (value * self.of).sum(-1)[source] + (value * self.at).sum(-1)[target]
        alpha = self.softmax(leaky_relu(scores, 0.2), target, len(x))
        messages = value[source]
        if self.how == "reordered":
            alpha, messages, target = alpha[ORDER], messages[ORDER], target[ORDER]
        if self.how == "einsum":
            messages = torch.einsum("eh,ehd->ehd", alpha, messages)
        else:
            messages = messages * alpha.unsqueeze(-1)
        if self.how == "reordered later":
            messages, target = messages[ORDER], target[ORDER]
        if self.how == "gated":
            messages = messages * self.at.sigmoid()
        self.messages = messages
        zeros = value.new_zeros(len(x), self.heads * DIM)
        if self.how == "scatter":
            index = target[:, None].expand(-1, zeros.shape[1])
            return zeros.scatter_add(0, index, messages.flatten(1))
        if self.how == "matrix":
            return nn.functional.one_hot(target, len(x)).float().T @ messages.flatten(1)
        return zeros.index_add(0, target, messages.flatten(1))


def _captured(net: nn.Module, *given: Tensor) -> Recording:
    with capturing(net, contributions="value") as run:
        net(*given)
    return run


def _check(run: Recording, layer: int, messages: Tensor, edges: Tensor = EDGES) -> None:
    """Parallel edges are one, whose message is the sum of theirs."""
    summed = torch.zeros(NODES, NODES, *messages.shape[1:])
    summed.index_put_((edges[1], edges[0]), messages, accumulate=True)
    for head in range(HEADS):
        table = run.trace[layer, head].to_pandas()
        query, key = (torch.tensor(table[name].to_numpy()) for name in ("query", "key"))
        found = torch.tensor(table["value_norm"].to_numpy())
        torch.testing.assert_close(
            found, summed[query, key, head].norm(dim=-1), atol=1e-6, rtol=1e-5
        )
        assert len(table) == len(set(map(tuple, edges.T.tolist())))


@torch.no_grad()
@pytest.mark.parametrize("how", ["plain", "einsum", "scatter", "reordered", "reordered later"])
def test_lengths_are_those_of_the_layers_messages(how: str) -> None:
    layer = Sums(how)
    run = _captured(layer, X, EDGES)
    _check(run, 0, layer.messages, EDGES[:, ORDER] if "reordered" in how else EDGES)


@torch.no_grad()
@pytest.mark.parametrize("softmax", WAYS)
def test_lengths_of_each_layer_with_edge_features(softmax: object) -> None:
    net, features = Net(softmax=softmax, edge=True), torch.randn(EDGES.shape[1], 3)
    run = _captured(net, X, EDGES, features)
    x = X
    for number, layer in enumerate(net.layers):
        x, before = layer(x, EDGES, features).tanh(), x
        value = layer.lin(before).view(-1, HEADS, DIM)[EDGES[0]]
        value = value + layer.edge(features).view(-1, HEADS, DIM)
        _check(run, number, layer.alpha[..., None] * value)


@torch.no_grad()
def test_lengths_of_librarys_softmax_and_of_parallel_edges() -> None:
    utils = pytest.importorskip("torch_geometric.utils")
    layer = Sums()
    layer.softmax = lambda scores, at, count: utils.softmax(scores, at, num_nodes=count)
    edges = torch.cat((EDGES, EDGES[:, :3]), 1)
    run = _captured(layer, X, edges)
    _check(run, 0, layer.messages, edges)


@torch.no_grad()
def test_lengths_in_a_run_with_an_edit() -> None:
    layer = Sums()
    layer.softmax = by_index_add
    with edited(layer, Cut(layer=0, query=3, key=0, head=1)):
        run = _captured(layer, X, EDGES)
    _check_cut(run, layer.messages)


def _check_cut(run: Recording, messages: Tensor) -> None:
    edge = EDGES.T.tolist().index([0, 3])
    assert not messages[edge, 1].any()
    assert messages[edge, 0].all()
    table = run.trace[0, 0].to_pandas()
    one = table[(table["query"] == 3) & (table["key"] == 0)]["value_norm"].item()
    assert one == pytest.approx(messages[edge, 0].norm().item(), rel=1e-5)
    others = run.trace[0, 1].to_pandas()
    assert [3, 0] not in others[["query", "key"]].to_numpy().tolist()


@torch.no_grad()
@pytest.mark.parametrize("how", ["gated", "matrix"])
def test_other_messages_are_refused_with_what_was_expected(how: str) -> None:
    layer = Sums(how)
    with pytest.raises(CaptureError, match=r"summed up by an index.*Leave out contributions"):
        _captured(layer, X, EDGES)
    with capturing(layer) as run:
        layer(X, EDGES)
    assert len(run.trace.only_stack.heads) == HEADS
