"""A model may be given its tensors in objects, such as a batch of one's own."""

from __future__ import annotations

import dataclasses
from collections import UserDict

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, TOKENS = 16, 6


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    order: torch.Tensor | None = None
    is_reversed: bool = False


class Inner:
    def __init__(self, x):
        self.parts = [{"x": x}]


class Outer:
    def __init__(self, x):
        self.inner = Inner(x)

    @property
    def x(self):
        return self.inner.parts[0]["x"]


class Named(UserDict):
    @property
    def x(self):
        return self["x"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, batch):
        x = batch.x.flip(1) if getattr(batch, "is_reversed", False) else batch.x
        if getattr(batch, "order", None) is not None:
            x = x[:, batch.order]
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x)


class Spelling(nn.Module):
    """Makes its own tensors of texts."""

    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(128, WIDTH), Attention()

    def forward(self, texts):
        ids = torch.tensor([list(text.encode()) for text in texts])
        return self.attention(Batch(self.embedding(ids)))


def dense(layer, x):
    return (layer.query(x) @ layer.key(x).mT).softmax(-1)


def made():
    torch.manual_seed(0)
    return Attention().eval(), torch.randn(3, TOKENS, WIDTH)


def traced(model, given):
    with capturing(model) as run:
        model(given)
    return torch.stack([torch.tensor(trace[0, 0].to_dense()) for trace in run.traces])


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", [Batch, Outer, lambda x: Named(x=x)], ids=["own", "nested", "dict"]
)
def test_each_element_of_a_batch_in_an_object_has_its_trace(kind):
    model, x = made()
    given = kind(x)
    torch.testing.assert_close(traced(model, given), dense(model, x), atol=1e-6, rtol=0)
    assert given.x is x
    wanted = dense(model, x)
    wanted[:, 2, 1] = 0
    wanted /= wanted.sum(-1, keepdim=True)
    with edited(model, Cut(layer=0, head=0, query=2, key=1)):
        found = model(given)
    torch.testing.assert_close(found, wanted @ model.value(x), atol=1e-5, rtol=0)


@torch.no_grad()
def test_what_objects_hold_is_proved_again_when_it_changes():
    model, x = made()
    wanted = dense(model, x)
    orders = (torch.arange(TOKENS), torch.arange(TOKENS).flip(0), torch.tensor([1, 0, 3, 2, 5, 4]))
    for given in (Batch(x), Batch(x, is_reversed=True), *(Batch(x, order) for order in orders)):
        torch.testing.assert_close(traced(model, given), wanted, atol=1e-6, rtol=0)


@torch.no_grad()
def test_texts_are_told_apart_by_tensors_only():
    torch.manual_seed(0)
    model = Spelling().eval()
    with pytest.raises(CaptureError, match="no tensor in what the model is given"):
        traced(model, ["attend", "values"])
    x = model.embedding(torch.tensor([list(b"attend")]))
    found = traced(model, ["attend"])
    torch.testing.assert_close(found, dense(model.attention, x), atol=1e-6, rtol=0)
