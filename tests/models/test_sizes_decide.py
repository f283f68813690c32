"""Sizes and integers that values decide: runs of a proof decide as the user's run, or refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError, EditError
from gattn.models.doors.proof import plans
from gattn.models.doors.steps import Steps

WIDTH, TOKENS = 8, 6
NAMES = list("abcdef")


def _many(x: Tensor) -> Tensor:
    return x[..., 0] > 0


def _kept(x: Tensor) -> Tensor:
    return x[..., 0].relu()


DECIDES: dict[str, Callable[[Tensor], int]] = {
    "nonzero": lambda x: _many(x).nonzero().shape[0],
    "two masks": lambda x: len((x[..., 1] > 0).nonzero()) + len((x[..., 0] > 0).nonzero()),
    "nonzero of numbers": lambda x: _kept(x).nonzero().shape[0],
    "argwhere": lambda x: len(torch.argwhere(_many(x))),
    "where": lambda x: torch.where(_many(x))[0].numel(),
    "unique": lambda x: _kept(x).unique().numel(),
    "counts of unique": lambda x: int(torch.unique(_kept(x), return_counts=True)[1].max()),
    "consecutive": lambda x: len(_many(x)[0].unique_consecutive()),
    "bincount": lambda x: _many(x).sum(1).bincount().numel(),
    "mask": lambda x: torch.arange(TOKENS)[_many(x)[0]].shape[0],
    "masked_select": lambda x: torch.arange(TOKENS).masked_select(_many(x)[0]).numel(),
    "repeat_interleave": lambda x: (
        torch.arange(TOKENS).repeat_interleave(_many(x)[0].int()).numel()
    ),
    "one_hot": lambda x: nn.functional.one_hot(_many(x).sum()).numel(),
    "tensor_split": lambda x: x[0].tensor_split(_many(x)[0].sum()[None])[0].shape[0],
    "split": lambda x: x[0].split([n := int(_many(x)[0].sum()), TOKENS - n])[0].shape[0],
    "split by a list": lambda x: x[0].split([*_many(x).sum(1)[:1].tolist(), *_rest(x)])[0].shape[0],
    "packed": lambda x: nn.utils.rnn.pack_padded_sequence(
        x, 1 + _many(x).sum(1).clamp(max=TOKENS - 1), batch_first=True, enforce_sorted=False
    ).data.shape[0],
    "contains": lambda x: 2 * (3 in _many(x).sum(1)),
    "list": lambda x: sum(_many(x).flatten().tolist()),
    "NumPy": lambda x: int(_many(x).numpy().sum()),
    "array": lambda x: int(np.asarray(_many(x)).sum()),
    "dlpack": lambda x: int(np.from_dlpack(_many(x).byte()).sum()),
    "arange": lambda x: torch.arange(_many(x).sum()).shape[0],
    "slice": lambda x: x[0].repeat(4, 1)[: _many(x).sum()].shape[0],
    "item in a slice": lambda x: x[0].repeat(4, 1)[: _many(x).sum().item()].shape[0],
    "zeros": lambda x: torch.zeros(_many(x).sum(), 1).shape[0],
    "loop": lambda x: sum(1 for _ in _many(x).nonzero()),
}


def _rest(x: Tensor) -> list[int]:
    rest: list[int] = (~_many(x)).sum(1)[:1].tolist()
    return rest


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5).softmax(-1), v

    def forward(self, x: Tensor) -> Tensor:
        attention, v = self.weights(x)
        return x + attention @ v


class Within(Attention):
    """Reads its tokens rolled, by as many as are decided, and gives them back in order."""

    def __init__(self, decides: Callable[[Tensor], int]) -> None:
        super().__init__()
        self.decides = decides

    def forward(self, x: Tensor) -> Tensor:
        count = self.decides(x)
        return super().forward(x.roll(count, 1)).roll(-count, 1)

    def wanted(self, x: Tensor) -> Tensor:
        """Give the attention between tokens as they are given."""
        return self.weights(x)[0]


class Before(nn.Module):
    """Rolls its tokens between two layers, by as many as are decided."""

    def __init__(self, decides: Callable[[Tensor], int]) -> None:
        super().__init__()
        self.layers, self.decides = nn.Sequential(Attention(), Attention()), decides

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layers
        x = first(x)
        return second(x.roll(self.decides(x), 1))

    def wanted(self, x: Tensor) -> Tensor:
        """Give the attention of the second layer between tokens as they are given."""
        return self.layers[1].weights(self.layers[0](x))[0]


class Keeping(Attention):
    def forward(self, x: Tensor) -> Tensor:
        self.attention, v = self.weights(x)
        return x + self.attention @ v


class ByAttention(Before):
    """Rolls its tokens by as many as the attention of the first layer decides."""

    def __init__(self, decides: Callable[[Tensor], int]) -> None:
        super().__init__(decides)
        self.layers = nn.Sequential(Keeping(), Attention())

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layers
        x = first(x)
        return second(x.roll(self.decides(first.attention - 1 / TOKENS), 1))


def _x(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def _made(kind: Callable[..., nn.Module], *given: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(*given).double().eval()


def _check(model: nn.Module, x: Tensor, wanted: Tensor) -> None:
    with capturing(model, tokens=NAMES) as run:
        model(x)
    for trace, one in zip(run.traces, wanted, strict=True):
        *_, graph = trace.heads()
        assert graph.tokens == tuple(NAMES)
        found = torch.from_numpy(graph.to_dense())
        torch.testing.assert_close(found, one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decides", DECIDES)
@pytest.mark.parametrize("kind", [Within, Before, ByAttention])
@torch.no_grad()
def test_tokens_are_where_values_have_put_them(
    kind: Callable[..., nn.Module], decides: str
) -> None:
    model = _made(kind, DECIDES[decides])
    for seed in range(4):
        _check(model, _x(seed), model.wanted(_x(seed)))


class Listed(Attention):
    """Takes its tokens in an order that values decide, which is a list of Python's."""

    def forward(self, x: Tensor) -> Tensor:
        order = x[0, :, 0].argsort().tolist()
        y: Tensor = super().forward(x[:, order])
        return y

    def wanted(self, x: Tensor) -> Tensor:
        return self.weights(x)[0]


def in_nested_tensors(x: Tensor) -> int:
    return torch.nested.nested_tensor([x[0, : _many(x)[0].sum()], x[0]]).unbind()[0].shape[0]


@torch.no_grad()
def test_sizes_of_nested_tensors_are_refused() -> None:
    with pytest.raises(CaptureError, match="NestedTensorImpl"):
        _check(model := _made(Within, in_nested_tensors), _x(0), model.wanted(_x(0)))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_what_code_calls_is_followed_through_nested_tensors(layout: torch.layout) -> None:
    # Strided ones have no sizes, and jagged ones have others each time.
    followed = []
    for name in (torch.relu, torch.relu, torch.tanh):
        x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=layout)
        steps = Steps()
        steps.note(name, (x,), {}, [name(x)])
        steps.end()
        followed.append(steps.so_far)
    assert followed[0] == followed[1] != followed[2]


@torch.no_grad()
def test_a_listed_order_is_that_of_the_call() -> None:
    model = _made(Listed)
    for seed in range(3):
        _check(model, _x(seed), model.wanted(_x(seed)))


ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "NumPy": lambda x: torch.from_numpy(np.argsort(x.numpy())),
    "dlpack": lambda x: torch.from_numpy(np.argsort(np.from_dlpack(x.contiguous()))),
    "list": lambda x: torch.tensor(sorted(range(TOKENS), key=x.tolist().__getitem__)),
    "mask": lambda x: torch.cat([torch.where(x > 0)[0], torch.where(x <= 0)[0]]),
    "repeat": lambda x: torch.arange(TOKENS).repeat_interleave(1 + (x > 0).int())[:TOKENS],
}


class Ordered(Attention):
    def __init__(self, orders: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.orders = orders

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x[:, self.orders(x[0, :, 0])])
        return y


@pytest.mark.parametrize("orders", ORDERS)
@torch.no_grad()
def test_an_order_that_values_decide_outside_of_torch_is_refused(orders: str) -> None:
    model = _made(Ordered, ORDERS[orders])
    with pytest.raises(CaptureError, match="picks or orders"), capturing(model):
        model(_x(0))


class Masked(Attention):
    """Rolls its tokens by how many a mask that it is given, or holds, leaves."""

    def __init__(self, held: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = self.held if mask is None else mask
        assert mask is not None
        count = mask.nonzero().shape[0]
        return super().forward(x.roll(count, 1)).roll(-count, 1)


@pytest.mark.parametrize("is_held", [False, True])
@torch.no_grad()
def test_sizes_of_the_same_mask_are_proved_once(
    monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    proved, prove = [], plans._proved
    monkeypatch.setattr(plans, "_proved", lambda *given: proved.append(1) or prove(*given))
    masks = torch.arange(TOKENS) < 2, torch.arange(TOKENS) < 4
    model = _made(Masked, masks[0])
    for seed, (mask, count) in enumerate(zip(masks[:1] * 2 + masks[1:], (1, 1, 2), strict=True)):
        if is_held:
            model.held.copy_(mask)
        x, given = _x(seed), () if is_held else (mask.clone(),)
        with capturing(model) as run:
            model(x, *given)
        for trace, one in zip(run.traces, model.weights(x)[0], strict=True):
            found = torch.from_numpy(trace[0, 0].to_dense())
            torch.testing.assert_close(found, one, rtol=0, atol=1e-12)
        assert len(proved) == count


CUT = Cut(layer=0, key=[0, 1, 2], query=[0, 3, 4, 5])


class Moving(Before):
    """Moves its tokens between two layers as values decide, in one of several ways."""

    def __init__(self, decides: Callable[[Tensor], int], moves: str) -> None:
        super().__init__(decides)
        self.moves, self.given = moves, []

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layers
        x = first(x)
        several = x, x.roll(1, 1), x.roll(2, 1)
        count = self.decides(x) % 3
        if self.moves == "roll":
            x = x.roll(count, 1)
        elif self.moves == "list":
            x = x[:, [(n - count) % TOKENS for n in range(TOKENS)]]
        elif self.moves == "write":
            x = x.clone()
            x[:, [0, count]] = x[:, [count, 0]]
        elif self.moves == "choice":
            x = several[count]
        self.given.append((count, x))
        return second(x)

    def positions(self, count: int) -> list[int]:
        """Say at which positions the second layer is given the tokens in order."""
        found = list(range(TOKENS))
        if self.moves == "write":
            found[0], found[count] = count, 0
            return found
        return [(n + count) % TOKENS for n in found]


DECIDES_LATER = {
    "item": lambda x: int(_many(x).sum()),
    "branch": lambda x: 2 if x[:, 0].mean() > 0 else 0,
    "number": lambda x: 2 if x[:, 0].mean().item() > 0 else 0,
    "nonzero": DECIDES["nonzero"],
    "list": DECIDES["list"],
}


@pytest.mark.parametrize(
    ("decides", "moves"),
    [
        *((one, "roll") for one in DECIDES_LATER),
        *(("item", "list"), ("item", "write"), ("number", "choice")),
    ],
)
@torch.no_grad()
def test_tokens_that_an_edit_makes_values_move_otherwise_are_refused(
    decides: str, moves: str
) -> None:
    decide, outcomes = DECIDES_LATER[decides], Counter[bool]()
    model = _made(Moving, decide, moves)
    for seed in range(6):
        x = _x(seed)
        plain = decide(model.layers[0](x)) % 3
        with edited(model, CUT):
            model(x)  # Nobody looks at the second layer.
        with edited(model, CUT), suppress(EditError), capturing(model, tokens=NAMES) as run:
            model(x)
        count, moved = model.given[-1]
        outcomes[is_same := count == plain] += 1
        assert (len(run.traces) == 2) == is_same
        at = model.positions(count)
        for trace, one in zip(run.traces, model.layers[1].weights(moved)[0], strict=False):
            *_, graph = trace.heads()
            assert graph.tokens in ((), tuple(NAMES))
            found = torch.from_numpy(graph.to_dense())
            torch.testing.assert_close(found, one[at][:, at], rtol=0, atol=1e-12)
    assert len(outcomes) == 2


class Other(Before):
    """Lets values decide which layer comes next."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for layer in (self.layers[self.decides(x) % 2], self.layers[1]):
            x = layer(x)
        return x


@torch.no_grad()
def test_a_layer_that_comes_for_another_after_an_edit_is_refused() -> None:
    model, outcomes = _made(Other, decide := DECIDES_LATER["item"]), Counter[bool]()
    given: list[Tensor] = []
    for seed in range(6):
        x = _x(seed)
        handle = model.layers[0].register_forward_hook(lambda *of: given.append(of[-1]))
        with edited(model, CUT):
            model(x)
        handle.remove()
        is_same = decide(given[0]) % 2 == decide(model.layers[0](x)) % 2
        given.clear()
        both = edited(model, CUT), edited(model, Cut(layer=1, key=0, query=5))
        with suppress(EditError), both[0], both[1]:
            model(x)
            assert is_same
            outcomes[True] += 1
        outcomes[False] += not is_same
    assert len(outcomes) == 2


class Logging(Before):
    """Reads numbers that decide nothing, and rolls its tokens by one."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        self.decides(x)
        if x.isnan().any():
            raise ValueError
        scale = x.abs().max().item()
        return self.layers[1]((x / scale).roll(1, 1))


@torch.no_grad()
def test_numbers_that_decide_nothing_are_not_refused_after_an_edit() -> None:
    seen: list[object] = []
    model = _made(Logging, lambda x: seen.append(x.norm().item()))
    given: list[Tensor] = []
    for seed in range(3):
        handle = model.layers[1].register_forward_pre_hook(lambda _, args: given.extend(args))
        with edited(model, CUT):
            model(_x(seed))
        handle.remove()
        with edited(model, CUT), capturing(model) as run:
            model(_x(seed))
        at = [(n + 1) % TOKENS for n in range(TOKENS)]
        wanted = model.layers[1].weights(given[-1])[0]
        for trace, one in zip(run.traces, wanted, strict=True):
            *_, graph = trace.heads()
            found = torch.from_numpy(graph.to_dense())
            torch.testing.assert_close(found, one[at][:, at], rtol=0, atol=1e-12)


class Checkpointed(Before):
    """Branches on a number between layers, which may run again while gradients are taken."""

    again = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
            if float(x.detach().abs().mean()) > 1e9:
                x = x.flip(1)
        return x


def test_layers_that_run_again_for_gradients_do_what_they_did() -> None:
    model = _made(Checkpointed, lambda x: 0)
    gradients = []
    for model.again in (False, True):
        x = _x(0).requires_grad_()
        with edited(model, CUT):
            model(x).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
