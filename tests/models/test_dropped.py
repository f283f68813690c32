"""Attention that a model drops at random is refused by captures, whatever drops it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.nn import GATConv

import gattn
from gattn.errors import CaptureError

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
P = 0.4


class Head(nn.Module):
    """One head, whose attention or scores go through a function before they meet the values."""

    def __init__(self, drop):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.drop = drop

    def attention(self, x):
        return (self.query(x) @ self.key(x).mT / 8**0.5).softmax(-1)

    def forward(self, x):
        return self.drop(self.attention(x)[:, None]) @ self.value(x)[:, None]


class Fused(Head):
    def forward(self, x):
        vectors = (self.query(x), self.key(x), self.value(x))
        return F.scaled_dot_product_attention(*vectors, dropout_p=self.drop)


class Multi(nn.Module):
    def __init__(self, weighs):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=P, batch_first=True)
        self.weighs = weighs

    def forward(self, x):
        return self.inner(x, x, x, need_weights=self.weighs)[0]


def _left_on(model):
    model.eval()
    for part in model.children():
        part.train()
    return model


ON = {
    "function": lambda: Head(lambda a: F.dropout(a, P)).eval(),
    "in place": lambda: Head(lambda a: F.dropout(a, P, True, True)).eval(),
    "torch": lambda: Head(lambda a: torch.dropout(a, P, True)).eval(),
    "two": lambda: Head(lambda a: F.dropout(F.dropout(a, P), 0.0)).eval(),
    "module": lambda: _left_on(Head(nn.Dropout(P))),
    "fused": lambda: Fused(P).eval(),
    "heads": lambda: _left_on(Multi(True)),
    "fused heads": lambda: _left_on(Multi(False)),
}


@pytest.mark.parametrize("make", ON.values(), ids=ON)
def test_dropout_that_is_on_in_evaluation_is_refused(make):
    model = make()
    says = rf"at random \(p = {P}\).*model\.eval\(\)"
    with pytest.raises(CaptureError, match=says), gattn.capturing(model):
        model(X)


@pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout, F.dropout2d])
def test_dropout_of_other_types_is_refused_only_where_it_is_on(drop):
    on, off = (Head(lambda a, is_on=is_on: drop(a, P, is_on)).eval() for is_on in (True, False))
    with pytest.raises(CaptureError, match="changed by"), gattn.capturing(on):
        on(X)
    with gattn.capturing(off) as run:
        off(X)
    for trace, wanted in zip(run.traces, off.attention(X), strict=True):
        torch.testing.assert_close(torch.tensor(trace[0, 0].to_dense()), wanted)


def test_edits_run_under_dropout():
    model = Head(lambda a: F.dropout(a, P)).eval()
    cuts = gattn.Cut(query=2, key=list(range(1, 5)))
    with gattn.edited(model, cuts), torch.no_grad():
        found = torch.stack([model(X)[:, 0, 2] for _ in range(20)])
    kept = model.value(X)[:, 0] / (1 - P)
    is_dropped = (found == 0).all(-1)
    torch.testing.assert_close(found, kept.expand_as(found).masked_fill(is_dropped[..., None], 0))
    assert is_dropped.any()
    assert not is_dropped.all()


def test_the_attention_of_a_graph_layer_that_is_left_in_training_mode():
    model = nn.Module()
    model.conv = GATConv(8, 4, heads=2, dropout=P)
    model.forward = lambda x, edges: model.conv(x, edges)
    model.eval()
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    with gattn.capturing(model) as run:
        model(X[0], edges)
    assert (run.trace[0, 0].to_dense() > 0).sum() == 9
    model.conv.train()
    says = "GATConv drops attention at random"
    with pytest.raises(CaptureError, match=says), gattn.capturing(model):
        model(X[0], edges)
    with gattn.edited(model, gattn.Cut(query=1, key=0)):
        model(X[0], edges)
