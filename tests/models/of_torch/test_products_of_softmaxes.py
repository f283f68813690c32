"""Attention times another softmax, before it meets values, is not left half unsaid."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, TOKENS = 8, 7


class Layer(nn.Module):
    def __init__(self, is_joined):
        super().__init__()
        self.one, self.other, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.is_joined = is_joined

    def forward(self, x):
        first = (self.one(x) @ x.mT / 3).softmax(-1)
        second = (self.other(x) @ x.mT / 3).softmax(-1)
        self.attention, values = (first, second), self.value(x)
        return (first @ second) @ values if self.is_joined else first @ (second @ values)


@pytest.mark.parametrize("is_joined", [True, False])
@torch.no_grad()
def test_both_softmaxes_are_shown_or_neither(is_joined):
    model, x = Layer(is_joined).double().eval(), torch.randn(1, TOKENS, WIDTH).double()
    if is_joined:
        with pytest.raises(CaptureError, match="a product with another softmax"), capturing(model):
            model(x)
        return
    with capturing(model) as run:
        model(x)
    # The second softmax meets its values first.
    for name, wanted in zip(run.trace.stacks, model.attention[::-1], strict=True):
        found = torch.tensor(run.trace.stacks[name][0, 0].to_dense())
        torch.testing.assert_close(found, wanted[0], rtol=0, atol=1e-12)


class TwoHops(nn.Module):
    """Reads tokens by way of others: two steps of the same attention."""

    def __init__(self, way):
        super().__init__()
        self.query, self.way = nn.Linear(WIDTH, WIDTH), way

    def forward(self, x):
        return self.way((self.query(x) @ x.mT / 3).softmax(-1), x)


@pytest.mark.parametrize(
    "way",
    [
        lambda attention, x: attention @ attention @ x,
        lambda attention, x: attention @ attention.mT @ x,
        lambda attention, x: torch.bmm(torch.bmm(attention, attention), x),
    ],
)
@torch.no_grad()
def test_a_product_with_itself_is_no_attention_to_values(way):
    model, x = TwoHops(way).double().eval(), torch.randn(1, TOKENS, WIDTH).double()
    for context in (capturing(model), edited(model, Cut(layer=0, query=2, key=1))):
        with pytest.raises(CaptureError, match=r"changed by (matmul|bmm)"), context:
            model(x)


@torch.no_grad()
def test_two_steps_of_attention_from_the_values_on_are_edited_in_both():
    model = TwoHops(lambda attention, x: attention @ (attention @ x)).double().eval()
    x = torch.randn(1, TOKENS, WIDTH).double()
    attention = (model.query(x) @ x.mT / 3).softmax(-1)
    attention[:, 2, 1] = 0
    attention /= attention.sum(-1, keepdim=True)
    with edited(model, Cut(layer=0, query=2, key=1)):
        found = model(x)
    torch.testing.assert_close(found, attention @ attention @ x, rtol=0, atol=1e-12)
