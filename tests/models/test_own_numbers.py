"""A model's own numbers that become indices decide which tokens its slots are."""

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError
from gattn.models.doors.proof.probing.one_run.digests import digest

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


class Table(Ordering):
    """The same, by the first column of a large table."""

    def __init__(self, dtype):
        super().__init__("buffer", lambda m: m.table[:, 0].long())
        self.register_buffer("table", torch.zeros(TOKENS, 1000, dtype=dtype))
        self.table[:, 0] = torch.arange(TOKENS)


def by_data(table, order):
    table.data[:, 0] = order


def by_numpy(table, order):
    table.numpy()[:, 0] = order.numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
@pytest.mark.parametrize("change", [by_data, by_numpy])
def test_a_large_table_that_changes_unnoticed_by_torch_is_read_again(change, dtype):
    model = Table(dtype).eval()
    wanted = model.attention(X)[0].detach()
    for shift in (1, 1, 3):
        change(model.table, torch.arange(TOKENS).roll(shift))
        with gattn.capturing(model) as run:
            model(X)
        torch.testing.assert_close(torch.tensor(run.trace[0, 0].to_dense()), wanted)


@pytest.mark.parametrize("count", [1, 2**20 + 3, 2**21])
def test_digests_differ_where_a_number_or_its_place_does(count):
    x = torch.arange(count) % 251
    x = x.to(torch.uint8)
    before = digest(x)
    assert digest(x.clone()) == before
    assert (digest(x.roll(1)) == before) == (count == 1)
    for place in {0, count // 2, count - 1}:
        changed = x.clone()
        changed.numpy()[place] ^= 128
        assert digest(changed) != before


@pytest.mark.parametrize(
    "order",
    [
        lambda m: torch.rand_like(m.order).argsort(),
        lambda m: torch.randn_like(m.order).argsort(),
    ],
    ids=["uniform", "normal"],
)
def test_chance_in_a_buffer_is_no_constant(order):
    model = Ordering("buffer", order).eval()
    says = "values or chance pick its tokens"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), gattn.capturing(model):
        model(X)


@torch.no_grad()
def test_tokens_in_a_buffer_are_no_constants():
    model = Ordering("buffer", lambda m: m.order.copy_(m.given[0, :, 0]).argsort()).eval()
    for seed in range(3):
        x = torch.randn(1, TOKENS, 8, generator=torch.Generator().manual_seed(seed))
        model.given = x
        with gattn.capturing(model) as run:
            model(x)
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, model.attention(x)[0])
