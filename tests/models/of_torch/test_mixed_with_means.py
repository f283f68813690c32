"""Tokens that a model moves, and mixes with what it pools from all: the share of it is no token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import EditError

WIDTH = 16
Change = Callable[[Tensor], Tensor]


def _mean(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True)


MIXES: dict[str, Change] = {
    "less the mean": lambda x: x - _mean(x),
    "and the mean": lambda x: x + _mean(x),
    "normalized over tokens": lambda x: (x - _mean(x)) / x.std(1, keepdim=True),
    "divided by norms": lambda x: x / x.square().sum(1, keepdim=True).sqrt(),
    "by a gate": lambda x: x * (3 * _mean(x)).tanh(),
    "by a gate of the largest": lambda x: x * (4 * x.amax(1, keepdim=True)).sigmoid(),
    "by a gate of mixed channels": lambda x: x * (4 * _mean(x).roll(3, -1)).sigmoid(),
}
MOVES: dict[str, Change] = {
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "order": lambda x: x[:, [2, 0, 1, *range(3, x.shape[1])]],
}


class _Attends(nn.Module):
    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.qkv, self.is_fused = nn.Linear(WIDTH, 3 * WIDTH), is_fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


class _Model(nn.Module):
    def __init__(self, mix: Change, move: Change, *, is_fused: bool) -> None:
        super().__init__()
        self.mix, self.move, self.attends = mix, move, _Attends(is_fused)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attends(self.mix(self.move(x)))
        return y


def _made(
    mix: str, move: Change, seed: int, *, is_fused: bool = True, kind: Callable[..., nn.Module]
) -> nn.Module:
    torch.manual_seed(seed)
    return kind(MIXES[mix], move, is_fused=is_fused).double().eval()


class _Later(_Model):
    """Moves and mixes its tokens after a first layer."""

    def __init__(self, mix: Change, move: Change, *, is_fused: bool) -> None:
        super().__init__(mix, move, is_fused=is_fused)
        self.first = _Attends(is_fused)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.first(x))


def _tokens(model: nn.Module, x: Tensor) -> tuple[str, ...]:
    """Give the tokens of the last layer."""
    with capturing(model, tokens=[f"t{n}" for n in range(x.shape[1])]) as run:
        model(x)
    stack = run.trace.stacks["attends"]
    return tuple(stack[len(stack) - 1, 0].tokens)


@torch.no_grad()
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("kind", [_Model, _Later])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("mix", MIXES)
def test_tokens_that_are_moved_and_mixed_have_no_names(
    mix: str, move: str, kind: Callable[..., nn.Module], is_fused: bool
) -> None:
    for seed, count in enumerate((3, 5, 6, 9, WIDTH, 20)):
        model = _made(mix, MOVES[move], seed, is_fused=is_fused, kind=kind)
        with pytest.warns(UserWarning, match="have no names"):
            assert _tokens(model, torch.randn(1, count, WIDTH).double()) == ()


@torch.no_grad()
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("kind", [_Model, _Later])
@pytest.mark.parametrize("pair", [(0, 1), (3, 9), (28, 29)])
def test_two_of_many_tokens_that_change_places_before_a_gate_have_no_names(
    pair: tuple[int, int], kind: Callable[..., nn.Module], is_fused: bool
) -> None:
    order = list(range(30))
    order[pair[0]], order[pair[1]] = pair[::-1]
    for mix in ("by a gate", "less the mean"):
        model = _made(mix, lambda x: x[:, order], 0, is_fused=is_fused, kind=kind)
        with pytest.warns(UserWarning, match="have no names"):
            assert _tokens(model, torch.randn(1, 30, WIDTH).double()) == ()


@torch.no_grad()
def test_edits_of_moved_and_mixed_tokens_are_refused() -> None:
    model = _made("by a gate", MOVES["flip"], 0, kind=_Model)
    cut = edited(model, Cut(key="a"), tokens=list("abcde"))
    with pytest.raises(EditError, match="not known which"), cut:
        model(torch.randn(1, 5, WIDTH).double())


@torch.no_grad()
@pytest.mark.parametrize("kind", [_Model, _Later])
@pytest.mark.parametrize("mix", MIXES)
def test_tokens_that_are_only_mixed_keep_their_names(
    mix: str, kind: Callable[..., nn.Module]
) -> None:
    for seed, count in enumerate((3, 5, 6, 9, WIDTH, 20)):
        model = _made(mix, lambda x: x, seed, kind=kind)
        found = _tokens(model, torch.randn(1, count, WIDTH).double())
        assert found == tuple(f"t{n}" for n in range(count))


@torch.no_grad()
@pytest.mark.parametrize("is_moved", [True, False])
def test_equal_tokens_are_told_apart(is_moved: bool) -> None:
    for seed in (1, 2):
        move = MOVES["flip"] if is_moved else lambda x: x
        model = _made("normalized over tokens", move, seed, kind=_Model)
        x = torch.randn(1, 3, WIDTH).double().repeat_interleave(2, 1)
        with pytest.warns(UserWarning, match="have no names") if is_moved else nullcontext():
            found = _tokens(model, x)
        assert found == (() if is_moved else tuple(f"t{n}" for n in range(6)))


class _OneSide(nn.Module):
    """Moves and mixes the queries or the keys in the module that attends."""

    def __init__(self, side: str, mix: Change, move: Change, *, is_causal: bool) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.side, self.is_causal = side, is_causal
        self.change: Change = lambda x: mix(move(x))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x) for layer in self.qkv)
        q = self.change(q) if self.side == "queries" else q
        k = self.change(k) if self.side == "keys" else k
        scores = q[:, None] @ k[:, None].mT / WIDTH**0.5  # One head.
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf)
        found: Tensor = (scores.softmax(-1) @ v[:, None])[:, 0]
        return found


@torch.no_grad()
@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("side", ["queries", "keys"])
@pytest.mark.parametrize("move", ["stay", *MOVES])
@pytest.mark.parametrize("mix", ["less the mean", "divided by norms", "by a gate"])
def test_one_side_that_is_moved_and_mixed_has_no_names(
    mix: str, move: str, side: str, count: int
) -> None:
    torch.manual_seed(0)
    stays = move == "stay"
    change = (lambda x: x) if stays else MOVES[move]
    model = _OneSide(side, MIXES[mix], change, is_causal=False).double().eval()
    names = [f"t{n}" for n in range(count)]
    told = nullcontext() if stays else pytest.warns(UserWarning, match="moves and mixes")
    with told, capturing(model, tokens=names) as run:
        model(torch.randn(1, count, WIDTH, dtype=torch.float64))
    assert bool(run.trace[0, 0].tokens) == stays


@torch.no_grad()
@pytest.mark.parametrize("count", [4, 5, 6, 8, 10, 17, 30])
@pytest.mark.parametrize("side", ["queries", "keys"])
@pytest.mark.parametrize("move", ["stay", *MOVES])
def test_a_causal_mask_hides_no_move(move: str, side: str, count: int) -> None:
    stays = move == "stay"
    change = (lambda x: x) if stays else MOVES[move]
    for seed in range(3):
        torch.manual_seed(seed)
        model = _OneSide(side, MIXES["less the mean"], change, is_causal=True).double().eval()
        told = nullcontext() if stays else pytest.warns(UserWarning, match="moves and mixes")
        with told, capturing(model, tokens=[f"t{n}" for n in range(count)]) as run:
            model(torch.randn(1, count, WIDTH, dtype=torch.float64))
        assert bool(run.trace[0, 0].tokens) == stays
