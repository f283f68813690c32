"""Tokens that a model moves, and mixes with a mean of all: the share of it in each is no token."""

from __future__ import annotations

from collections.abc import Callable

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


def _made(mix: str, move: Change, seed: int, *, is_fused: bool) -> nn.Module:
    torch.manual_seed(seed)
    return _Model(MIXES[mix], move, is_fused=is_fused).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("mix", MIXES)
def test_tokens_that_are_moved_and_mixed_have_no_names(mix: str, move: str, is_fused: bool) -> None:
    for seed, count in enumerate((5, 6, 9)):
        model = _made(mix, MOVES[move], seed, is_fused=is_fused)
        x, names = torch.randn(1, count, WIDTH).double(), list("abcdefghi"[:count])
        told = pytest.warns(UserWarning, match="have no names")
        with told, capturing(model, tokens=names) as run:
            model(x)
        assert run.trace[0, 0].tokens == ()
        cut = edited(model, Cut(key="a"), tokens=names)
        with pytest.raises(EditError, match="not known which"), cut:
            model(x)


@torch.no_grad()
@pytest.mark.parametrize("mix", ["less the mean", "and the mean"])
def test_tokens_that_are_only_mixed_keep_their_names(mix: str) -> None:
    for seed, count in enumerate((5, 6, 9, 20)):
        model = _made(mix, lambda x: x, seed, is_fused=True)
        names = [f"t{n}" for n in range(count)]
        with capturing(model, tokens=names) as run:
            model(torch.randn(1, count, WIDTH).double())
        assert run.trace[0, 0].tokens == tuple(names)
