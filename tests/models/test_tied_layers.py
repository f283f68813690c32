"""A layer that runs several times may attend to itself, to other tokens, and to others' keys."""

from functools import partial
from weakref import proxy, ref

import numpy as np
import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.seen, self.change = [], {}

    def forward(self, x, given):
        q, k, v = (
            part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part, y in ((self.query, x), (self.key, given), (self.value, given))
        )
        attention = (q @ k.mT / 2).softmax(-1)
        if self.change:  # The oracle notes and changes attention by hand.
            change = self.change.get(len(self.seen))
            attention = attention if change is None else change(attention)
            self.seen.append(attention)
        return (attention @ v).transpose(1, 2).flatten(2)


class OfTwo(nn.Module):
    """Reads two texts with the same layer, and then one by the other."""

    def __init__(self):
        super().__init__()
        self.layer = Attention()

    def forward(self, x, y):
        x, y = x + self.layer(x, x), y + self.layer(y, y)
        return torch.cat([x + self.layer(x, y), y], 1)


class Latents(OfTwo):
    """Learned tokens read the input, and themselves, by turns."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x, y):
        z = self.tokens.expand(len(x), -1, -1)
        for _ in range(2):
            z = z + self.layer(z, x)
            z = z + self.layer(z, z)
        return z


PLACES = {
    OfTwo: [("layer", 0), ("layer", 1), ("layer 2", 0)],
    Latents: [("layer", 0), ("layer 2", 0), ("layer", 1), ("layer 2", 1)],
}


def cut(attention):
    attention = attention.clone()
    attention[:, 1, 2, 0] = 0
    return attention / attention.sum(-1, keepdim=True)


@pytest.mark.parametrize("sizes", [(4, 6), (5, 5)])
@pytest.mark.parametrize("kind", PLACES)
def test_each_run_of_a_layer_has_its_own_tokens(kind, sizes):
    torch.manual_seed(0)
    model = kind().double().eval()
    layer, given = model.layer, [torch.randn(2, n, WIDTH).double() for n in sizes]

    def by_hand(change):
        layer.seen, layer.change = [], change
        output = model(*given)
        layer.change = {}
        return layer.seen, output

    with torch.no_grad():
        seen, plain = by_hand({-1: cut})
        with capturing(model) as run:
            assert torch.equal(model(*given), plain)
        assert sum(len(stack) for stack in run.traces[0].stacks.values()) == HEADS * len(seen)
        for number, (stack, n) in enumerate(PLACES[kind]):
            for row, trace in enumerate(run.traces):
                for head in range(HEADS):
                    found = trace.stacks[stack][n, head].to_dense()
                    np.testing.assert_allclose(found, seen[number][row, head], rtol=0, atol=1e-12)
            wanted = by_hand({number: cut})[1]
            assert not torch.allclose(wanted, plain)
            with edited(model, Cut(n, 1, 2, 0, stack=stack)):
                torch.testing.assert_close(model(*given), wanted, rtol=0, atol=1e-12)


class InOrder(Attention):
    """Attends within halves of its tokens, in an order that the model sets before each run."""

    def __init__(self):
        super().__init__()
        self.shift, self.options = 0, {"shift": 0}
        self.register_buffer("order", torch.arange(8))
        self.of_parent = []

    def set(self, how, shift):
        if how == "attribute":
            self.shift = shift
        elif how == "options":
            self.options["shift"] = shift
        elif how == "buffer":
            self.order = torch.arange(8).roll(-shift)
        elif how == "in place":
            self.order.copy_(torch.arange(8).roll(-shift))

    def of_its_parent(self):
        found = self.of_parent
        while not isinstance(found, (int, nn.Module)):
            found = found() if callable(found) else found[0] if found else 0
        return found if isinstance(found, int) else found.shift

    def forward(self, x, given=None):
        order = self.order.roll(-self.shift - self.options["shift"] - self.of_its_parent())
        halves = x[:, order].unflatten(1, (2, 4)).flatten(0, 1)
        return (
            super().forward(halves, halves).unflatten(0, (-1, 2)).flatten(1, 2)[:, order.argsort()]
        )


class Shifting(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.shift = InOrder(), how, 0
        if how in LEADING_BACK:
            self.layer.of_parent = LEADING_BACK[how](self)

    def forward(self, x):
        for shift in (0, 2):
            self.layer.set(self.how, shift)
            if self.how in LEADING_BACK:
                self.shift = shift
            x = x + self.layer(x)
        return x


LEADING_BACK = {
    "list": lambda parent: [parent],
    "weak reference": lambda parent: [ref(parent)],
    "proxy": lambda parent: [proxy(parent)],
    "function": lambda parent: [(lambda: parent,)],
    "partial": lambda parent: partial(getattr, parent, "shift"),
}


@pytest.mark.parametrize("how", ["attribute", "options", "buffer", "in place", *LEADING_BACK])
def test_what_a_model_sets_before_each_run_counts(how):
    torch.manual_seed(0)
    model, x = Shifting(how).double().eval(), torch.randn(1, 8, WIDTH).double()
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), plain)
    for number, shift in enumerate((0, 2)):
        half = (torch.arange(8) - shift) % 8 // 4
        found = torch.tensor(run.trace.only_stack[number, 1].to_dense())
        assert torch.equal(found > 0, half[:, None] == half)
