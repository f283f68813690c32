"""A model's own numbers that become indices decide which tokens its slots are."""

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

TOKENS = 7
X = torch.randn(1, TOKENS, 8, generator=torch.Generator().manual_seed(0))


class Ordering(nn.Module):
    """One head over tokens in an order that numbers of the model's own decide."""

    def __init__(self, held, order):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        given = torch.ones(()), torch.arange(TOKENS).float()
        for name, x in zip(("shift", "order"), given, strict=True):
            if held == "buffer":
                self.register_buffer(name, x)
            else:
                setattr(self, name, nn.Parameter(x) if held == "parameter" else x)
        self.indices = order

    def attention(self, x):
        return (self.query(x) @ self.key(x).mT / 8**0.5).softmax(-1)

    def forward(self, x):
        x = x[:, self.indices(self)]
        return self.attention(x) @ self.value(x)


HOW = {
    "int": lambda m: torch.arange(TOKENS).roll(int(m.shift)),
    "item": lambda m: torch.arange(TOKENS).roll(round(m.shift.item() * 1.0)),
    "derived": lambda m: torch.arange(TOKENS).roll(int(m.shift * 2) // 2),
    "long": lambda m: m.order.long(),
    "derived long": lambda m: (m.order * 2).round().long() // 2,
    "sort": lambda m: m.order.argsort().argsort(),
    "list": lambda m: [int(x) for x in m.order.tolist()],
}


@pytest.mark.parametrize("held", ["buffer", "parameter", "attribute"])
@pytest.mark.parametrize("order", HOW.values(), ids=HOW)
def test_a_changed_order_is_proved_again(held, order):
    model = Ordering(held, order).eval()
    wanted = model.attention(X)[0].detach()
    for shift in (1, 1, 3):
        model.shift.data.fill_(shift)
        model.order.data.copy_(torch.arange(TOKENS).roll(shift))
        with gattn.capturing(model) as run:
            model(X)
        torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), wanted)


@pytest.mark.parametrize(
    "order",
    [
        lambda m: torch.rand_like(m.order).argsort(),
        lambda m: torch.randn_like(m.order).argsort(),
        lambda m: m.order.copy_(X[0, :, 0]).argsort(),
    ],
    ids=["uniform", "normal", "of tokens"],
)
def test_chance_and_tokens_in_a_buffer_are_no_constants(order):
    model = Ordering("buffer", order).eval()
    says = "picks or orders its tokens"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), gattn.capturing(model):
        model(X)
