"""Names are those of the input's tokens, or left out, where values order tokens."""

import warnings

import pytest
import torch
from torch import nn

from gattn import Ablate, All, Cut, capturing, edited
from gattn.errors import EditError

NAMES = list("abcdefgh")
WIDTH = 6  # Not as many as tokens: what is square may be a mask.
X = torch.randn(1, 8, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

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
        return nn.Linear(WIDTH, 1)

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
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return x.gather(1, self.score(x)[..., 0].argsort(1)[..., None].expand_as(x))


class Experts(nn.Module):
    """Picks the tokens of each expert by value, and puts them back."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

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


def shown(model, x=X):
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model, tokens=NAMES, grid=(2, 4)) as run:
            model(x)
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


def test_names_follow_tokens_that_code_moves_by_a_number_that_values_decide():
    model = Turned()
    assert shown(model) == (["abcdefgh", "abcdefgh"], [])
    with torch.no_grad(), capturing(model) as run:
        model(X)
    y, second = model.first(X), model.second
    wanted = (second.query(y) @ second.key(y).mT / 3).softmax(-1)[0].detach().numpy()
    assert run.trace.stacks["second"][0, 0].to_dense() == pytest.approx(wanted, abs=1e-6)


def test_an_edit_that_changes_such_a_number_is_refused():
    model, seen = Turned(), set()
    model.first.value.weight.data *= 12
    model.first.query.weight.data *= 6
    before = model.first(X)
    for key in range(8):
        scores = (model.first.query(X) @ model.first.key(X).mT / 3).detach()
        scores[..., key] = -torch.inf
        after = X + scores.softmax(-1) @ model.first.value(X)
        moved = [int(x[0, :, 0].argmax()) % 7 for x in (before, after)]
        found = ""
        try:
            with torch.no_grad(), edited(model, Cut(stack="first", key=key)), capturing(model):
                model(X)
        except EditError as error:
            found = str(error)
        assert ("decides by numbers" in found) == (moved[0] != moved[1])
        seen.add(found == "")
    assert seen == {True, False}


def test_tokens_that_experts_put_back_have_their_names():
    assert shown(Routed()) == (["abcdefgh", "abcdefgh"], [])


def test_tokens_that_are_sorted_back_have_their_names():
    names, told = shown(SortedBack())
    assert names == ["", "abcdefgh"]
    assert told


class PaddedLast(nn.Module):
    """Moves rows of zeros, such as padding on the left, to the end."""

    def forward(self, x):
        order = (x.abs().amax(-1) == 0).long().argsort(dim=1, stable=True)
        return x.gather(1, order[..., None].expand_as(x))


class LowLast(nn.Module):
    """Moves tokens to the end that are below what normal numbers ever are."""

    def forward(self, x):
        order = (-x[..., 0] - 6).relu().argsort(dim=1, stable=True)
        return x.gather(1, order[..., None].expand_as(x))


class TurnedIfLarge(nn.Module):
    def forward(self, x):
        order = ((x.mean((1, 2)) - 3).relu()[:, None] * -torch.arange(8.0)).argsort(
            dim=1, stable=True
        )
        return x.gather(1, order[..., None].expand_as(x))


def padded():
    x = X.clone()
    x[:, :3] = 0
    return x


def low():
    x = X.clone()
    x[:, :3, 0] = torch.tensor([-7.0, -8, -9])
    return x


class One(nn.Module):
    """One layer of attention, to what a module makes of the input."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.between, self.first = between(), Attention()

    def forward(self, x):
        return self.first(self.between(x))


MOVING = [(PaddedLast, padded()), (LowLast, low()), (TurnedIfLarge, X + 5)]


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize(("between", "x"), MOVING)
@torch.no_grad()
def test_names_follow_what_the_very_values_of_a_call_decide(between, x, is_later):
    model = One(between).eval()
    given = [(X, "abcdefgh")] if is_later else []
    for one, names in [*given, (x, ""), (X, "abcdefgh")]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with capturing(model, tokens=NAMES, keep=All()) as run:
                model(one)
        assert "".join(run.trace[0, 0].tokens) == names
        told = ["picks or orders tokens" in str(one.message) for one in said]
        assert told == ([] if names else [True])
        moved, layer = model.between(one), model.first
        expected = (layer.query(moved) @ layer.key(moved).mT / 3).softmax(-1)[0]
        torch.testing.assert_close(torch.from_numpy(run.trace[0, 0].to_dense()), expected)
        assert torch.equal(moved, one) == bool(names)


class SortedByNorm(Within):
    """The order is that of the input unless something takes the first layer's output away."""

    def make(self):
        return nn.Identity()

    def forward(self, x):
        found = self.first(x) - x
        is_zero = (found.abs().amax(-1) == 0).long() * -torch.arange(8)
        order = is_zero.argsort(dim=1, stable=True)
        return self.second(x.gather(1, order[..., None].expand_as(x)))


@torch.no_grad()
def test_names_are_left_out_where_an_edit_changes_what_values_decide():
    model = SortedByNorm()
    assert shown(model) == (["abcdefgh", "abcdefgh"], [])
    said = pytest.warns(UserWarning, match="chooses otherwise under the edits")
    with said, edited(model, Ablate("zero", layer=0, stack="first")):
        names, _ = shown(model)
    assert names == ["abcdefgh", ""]
    assert shown(model) == (["abcdefgh", "abcdefgh"], [])


class Switched(Model):
    """Values turn all tokens round, by a mask or by a number made of one; `kind` says how."""

    limit = -9.0

    def make(self):
        return nn.Identity()

    def moved(self, x):
        return torch.where(x.mean() > self.limit, x.flip(1), x)

    def forward(self, x):
        return self.second(self.moved(self.first(x)))


class Blended(Switched):
    def moved(self, x):
        share = (x.mean() > self.limit).float()
        return share * x.flip(1) + (1 - share) * x


class EachToken(Switched):
    def moved(self, x):
        return torch.where(x[..., :1] > 0, x.flip(1), x)


class SortedNumbers(Switched):
    def moved(self, x):
        return x.sort(dim=1).values


class TopNumbers(Switched):
    def moved(self, x):
        return x.topk(8, dim=1)[0][:, :]


@pytest.mark.parametrize("limit", [-9.0, 9.0])
@pytest.mark.parametrize("kind", [Switched, Blended, EachToken, SortedNumbers, TopNumbers])
def test_names_are_left_out_where_values_choose_tokens_without_an_index(kind, limit):
    model = kind()
    model.limit = limit
    names, (told,) = shown(model)
    assert names == ["abcdefgh", ""]
    assert f"({kind.__name__}) picks or orders tokens" in told


class Clipped(Switched):
    """Values decide how large tokens are, and which are left out of a sum, but move none."""

    def moved(self, x):
        x = torch.where(x > 0, x, 0.1 * x.flip(1).flip(1))
        x = torch.where(x.norm() > 1, x / x.norm(), x)
        return x * (x >= x.topk(3, dim=1)[0][:, -1:]) + (x.mean() > 3).float() * x


def test_names_stay_where_values_choose_between_numbers_of_the_same_token():
    assert shown(Clipped()) == (["abcdefgh", "abcdefgh"], [])
