"""Attention that a model divides by its sums after the softmax: what meets the values is shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, Scale, capturing, edited
from gattn.errors import EditError

TEXTS, TOKENS, HEADS, DIM, SLOTS = 2, 6, 2, 4, 3
WIDTH = HEADS * DIM
GATES = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)).double() + 0.1
After = Callable[[Tensor], Tensor]


def shares(x: Tensor, dim: int = -1, more: float = 0.0) -> Tensor:
    return x / (x.sum(dim, keepdim=True) + more)


def in_place(x: Tensor) -> Tensor:
    x /= x.sum(-1, keepdim=True)
    return x


WAYS: dict[str, After] = {
    "once more": shares,
    "with a small number": lambda a: shares(a, more=1e-9),
    "masked by nothing": lambda a: shares(a * torch.ones(TOKENS).double(), more=1e-13),
    "in place": in_place,
    "normalize": lambda a: F.normalize(a, p=1, dim=-1),
    "expanded": lambda a: a / a.sum(-1, keepdim=True).expand_as(a),
    "gates": lambda a: shares(a * GATES),
    "a power": lambda a: shares(a**2),
    "plus the token itself": lambda a: shares(a + torch.eye(TOKENS).double()),
    "over queries and keys": lambda a: shares(shares(a, -2)),
    "over keys, then heads are mixed": lambda a: shares(a + a.mean(1, keepdim=True)),
}


class Attends(nn.Module):
    """Multiplies what is made of a softmax with values; `change` is another one's, by hand."""

    def __init__(self, way: After) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.way = nn.Linear(WIDTH, 3 * WIDTH), way
        self.change: After = lambda a: a
        self.seen = torch.empty(0)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        attention = self.change(self.way((q @ k.mT).softmax(-1)))
        self.seen = attention.detach().clone()
        return (attention @ v).transpose(1, 2).flatten(2)


class Columns(Attends):
    """Normalizes rows, and then the columns that sum the values up, as point cloud models do."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        attention = self.change(shares((q @ k.mT).softmax(-1), -2, 1e-9).mT)
        self.seen = attention.detach().clone()
        return (v.mT @ attention.mT).mT.transpose(1, 2).flatten(2)


class Slots(nn.Module):
    """Slots compete for keys, and share their attention out over them."""

    def __init__(self, *, are_last: bool, is_added: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.slots = nn.Parameter(torch.randn(1, SLOTS, WIDTH))
        self.spread = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.drawn = torch.randn(1, SLOTS, WIDTH).double()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.cell, self.are_last, self.is_added = nn.GRUCell(WIDTH, WIDTH), are_last, is_added
        self.change: After = lambda a: a
        self.seen: list[Tensor] = []
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        slots, self.seen = self.slots + self.spread.exp().expand(1, SLOTS, -1) * self.drawn, []
        slots = slots.expand(len(x), -1, -1)
        for _ in range(2):
            scores = self.k(x) @ self.q(slots).mT
            scores = scores if self.are_last else scores.mT
            key = -2 if self.are_last else -1
            weights = scores.softmax(-1 if self.are_last else -2)
            weights = shares(weights + 1e-8, key) if self.is_added else shares(weights, key, 1e-8)
            weights = weights.mT if self.are_last else weights
            weights = self.change(weights[:, None])[:, 0]
            self.seen.append(weights[:, None].detach())
            update = weights @ self.v(x)
            slots = self.cell(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots


def without(a: Tensor) -> Tensor:
    a = a.clone()
    a[..., -1, 2, 1] = 0
    return shares(a)


def scaled(a: Tensor) -> Tensor:
    a = a.clone()
    a[..., -1, 2, 1] *= 0.3
    return a


def _check(model: Attends | Slots, x: Tensor, layers: list[str], heads: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capturing(model) as run:
            plain = model(x)
    seen = model.seen if isinstance(model.seen, list) else [model.seen]
    assert len(run.traces) == TEXTS
    for text, trace in enumerate(run.traces):
        assert list(trace.stacks) == layers
        for stack, wanted in zip(trace.stacks.values(), seen, strict=True):
            assert len(stack.heads) == heads
            for (_, head), graph in stack.items():
                found = torch.tensor(graph.to_dense())
                torch.testing.assert_close(found, wanted[text, head], atol=1e-7, rtol=0)
    place = {"head": heads - 1, "query": 2, "key": 1}
    edits = (Cut, {}, without), (Scale, {"factor": 0.3}, scaled)
    for kind, options, change in edits:
        edit = kind(layer=f"{layers[-1]}:0", **options, **place)
        with edited(model, edit):
            found = model(x)
        times: list[int] = []
        last = len(seen) - 1

        def by_hand(
            a: Tensor, change: After = change, times: list[int] = times, last: int = last
        ) -> Tensor:
            times.append(0)
            return change(a) if len(times) > last else a

        model.change = by_hand
        wanted = model(x)
        model.change = lambda a: a
        assert not torch.allclose(wanted, plain, atol=1e-6)
        torch.testing.assert_close(found, wanted, atol=1e-7, rtol=0)


def _x() -> Tensor:
    return torch.randn(TEXTS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).double()


@torch.no_grad()
@pytest.mark.parametrize("name", WAYS)
def test_what_is_shared_out_last_is_shown_and_edited(name: str) -> None:
    _check(Attends(WAYS[name]), _x(), ["Attends"], HEADS)


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
@torch.no_grad()
def test_columns_that_sum_up_values_are_rows_of_queries() -> None:
    _check(Columns(shares), _x(), ["Columns"], HEADS)


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
@torch.no_grad()
@pytest.mark.parametrize("share", [0.01, 0.001])
def test_columns_that_add_up_to_one_as_rows_almost_do_are_read(share: float) -> None:
    _check(Columns(shares), share * _x(), ["Columns"], HEADS)


@torch.no_grad()
@pytest.mark.parametrize("are_last", [True, False])
@pytest.mark.parametrize("is_added", [True, False])
def test_slot_attention_is_over_the_keys_of_each_slot(are_last: bool, is_added: bool) -> None:
    model = Slots(are_last=are_last, is_added=is_added)
    _check(model, _x(), ["Slots", "Slots 2"], 1)


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
def test_gradients_flow_through_an_edit_of_what_a_gate_took() -> None:
    model = Attends(lambda a: shares(F.relu(a - 0.1)))
    x = _x().requires_grad_()
    model.change = without
    (wanted,) = torch.autograd.grad(model(x).square().sum(), x)
    model.change = lambda a: a
    with edited(model, Cut(layer=0, head=HEADS - 1, query=2, key=1)):
        (found,) = torch.autograd.grad(model(x).square().sum(), x)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


class Tempered(Attends):
    def __init__(self, factor: Tensor | float) -> None:
        super().__init__(lambda a: a / self.factor)
        self.factor = factor


@torch.no_grad()
@pytest.mark.parametrize(
    "factor",
    [nn.Parameter(torch.ones(HEADS, 1, 1).double()), 2.0, torch.full((HEADS, 1, 1), 1.1).double()],
    ids=["learned", "number", "per head"],
)
def test_what_is_divided_by_other_numbers_is_the_softmax_still(factor: Tensor | float) -> None:
    model, x = Tempered(factor), _x()
    with pytest.warns(UserWarning, match="multiplies its attention"), capturing(model) as run:
        model(x)
    for text, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            wanted = (model.seen * factor)[text, head]
            found = torch.tensor(graph.to_dense())
            torch.testing.assert_close(found, wanted, atol=1e-7, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_does_not_hide_what_is_shared_out(dtype: torch.dtype) -> None:
    model = Attends(lambda a: shares(a * GATES.to(dtype), more=1e-8)).to(dtype)
    x = _x().to(dtype)
    with capturing(model) as run:
        model(x)
    for text, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            found = torch.tensor(graph.to_dense())
            wanted = model.seen[text, head].to(found.dtype)
            torch.testing.assert_close(found, wanted, atol=2 * torch.finfo(dtype).eps, rtol=0)


class Weighed(Attends):
    """Multiplies what attention gave with its sums, which are one unless it is edited."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        attention = (q @ k.mT).softmax(-1)
        total = attention.sum(-1, keepdim=True)
        return (self.way(attention) @ v * total).transpose(1, 2).flatten(2)


@torch.no_grad()
def test_edits_reach_sums_that_a_model_uses_elsewhere() -> None:
    model, x = Weighed(lambda a: a), torch.randn(TEXTS, TOKENS, WIDTH).double()
    with edited(model, Scale(0.5, layer=0, head=0)):
        found = model(x)
    factor = torch.where(torch.arange(HEADS) == 0, 0.5, 1.0)[:, None, None]
    q, k, v = model.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
    attention = (q @ k.mT).softmax(-1) * factor
    wanted = (attention @ v * attention.sum(-1, keepdim=True)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_edits_of_what_is_divided_do_not_reach_sums_that_a_model_uses_elsewhere() -> None:
    model, x = Weighed(shares), torch.randn(TEXTS, TOKENS, WIDTH).double()
    with capturing(model) as run:
        model(x)
    assert len(run.traces) == TEXTS
    with (
        pytest.raises(EditError, match="sum of its attention after"),
        edited(model, Scale(0.5, layer=0, head=0)),
    ):
        model(x)


class Distances(nn.Module):
    """Weighs one number of each pair, beside attention to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.scores = Attends(lambda a: a), nn.Linear(WIDTH, WIDTH)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.scores(x) @ x.mT).softmax(-1)
        return self.attend(x) + (weights * torch.cdist(x, x)).sum(-1, keepdim=True)


@torch.no_grad()
def test_numbers_of_pairs_that_are_not_shared_out_are_named() -> None:
    model, x = Distances(), torch.randn(TEXTS, TOKENS, WIDTH).double()
    with pytest.warns(UserWarning, match="does not show its attention"), capturing(model) as run:
        model(x)
    assert all(list(trace.stacks) == ["attend"] for trace in run.traces)
