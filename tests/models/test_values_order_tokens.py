"""Names are those of the input's tokens, or left out, where values order tokens."""

import warnings

import pytest
import torch
from torch import nn

from gattn import capturing

NAMES = list("abcdefgh")
X = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / 3
        return x + scores.softmax(-1) @ self.value(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.between, self.second = Attention(), self.make(), Attention()
        self.eval()

    def make(self):
        return nn.Linear(8, 1)

    def order(self, x):
        return self.between(x)[..., 0].argsort(1)[..., None].expand_as(x)

    def forward(self, x):
        x = self.first(x)
        return self.second(x.gather(1, self.order(x)))


class Turning(nn.Module):
    """Rolls tokens by a number that their values decide."""

    def forward(self, x):
        return x.roll(1 + int(x[0, :, 0].argmax()) % 7, 1)


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        return x.gather(1, self.score(x)[..., 0].argsort(1)[..., None].expand_as(x))


class Experts(nn.Module):
    """Picks the tokens of each expert by value, and puts them back."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x):
        flat = x.flatten(0, 1)
        chosen = self.router(flat).argmax(-1)
        found = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            own = (chosen == n).nonzero()[:, 0]
            found.index_add_(0, own, expert(flat[own]))
        return x + found.view_as(x)


class Within(Model):
    kind: type[nn.Module]

    def make(self):
        return self.kind()

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Sorted(Within):
    kind = Sorting


class Turned(Within):
    kind = Turning


class Routed(Within):
    kind = Experts


class SortedBack(Model):
    def forward(self, x):
        order = self.order(x)
        x = self.first(x.gather(1, order))
        return self.second(x.gather(1, order.argsort(1)))


def shown(model):
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model, tokens=NAMES, grid=(2, 4)) as run:
            model(X)
    told = [str(one.message) for one in said if "picks or orders tokens" in str(one.message)]
    heads = run.trace.stacks["first"][0, 0], run.trace.stacks["second"][0, 0]
    for head in heads:
        assert (head.tokens == ()) == (head.geometry is None)
    return ["".join(head.tokens) for head in heads], told


@pytest.mark.parametrize(("kind", "who"), [(Model, "Model"), (Sorted, "Sorting")])
def test_names_are_left_out_after_a_sort(kind, who):
    names, (told,) = shown(kind())
    assert names == ["abcdefgh", ""]
    assert f"({who}) picks or orders tokens" in told


def test_names_are_left_out_where_values_decide_on_a_number_that_moves_tokens():
    names, told = shown(Turned())
    assert names == ["abcdefgh", ""]
    assert told


def test_tokens_that_experts_put_back_have_their_names():
    assert shown(Routed()) == (["abcdefgh", "abcdefgh"], [])


def test_tokens_that_are_sorted_back_have_their_names():
    names, told = shown(SortedBack())
    assert names == ["", "abcdefgh"]
    assert told
