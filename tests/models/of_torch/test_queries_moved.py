"""Queries or keys alone that a module moves where each slot keeps a share of its own token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import capturing

WIDTH = 16


class _Attends(nn.Module):
    def __init__(self, moved: str, move: str, *, is_fused: bool, is_causal: bool) -> None:
        super().__init__()
        self.moved, self.move, self.is_fused, self.is_causal = moved, move, is_fused, is_causal
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = self._moved(q) if "q" in self.moved else q
        k = self._moved(k) if "k" in self.moved else k
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        scores = q @ k.mT / WIDTH**0.5
        if self.is_causal:
            unread = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(unread, -torch.inf)
        return scores.softmax(-1) @ v

    def _moved(self, x: Tensor) -> Tensor:
        order = list(range(x.shape[1]))
        order = {"flip": order[::-1], "roll": [*order[-1:], *order[:-1]], "stay": order}[self.move]
        return x[:, order] + 0.1 * x


class _Model(nn.Module):
    def __init__(self, moved: str, move: str, *, is_fused: bool, is_causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        how = {"is_fused": is_fused, "is_causal": is_causal}
        self.first = _Attends("", "stay", **how)
        self.last = _Attends(moved, move, **how)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        return x + self.last(x)


def _given(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(1, count, WIDTH, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("move", ["flip", "roll"])
@pytest.mark.parametrize("moved", ["q", "k", "qk"])
@pytest.mark.parametrize("count", [3, 4, 6, 9, 20])
def test_queries_or_keys_that_moved_have_no_names(
    count: int, moved: str, move: str, is_fused: bool
) -> None:
    model = _Model(moved, move, is_fused=is_fused)
    told = pytest.warns(UserWarning, match="moves and mixes")
    with torch.no_grad(), told, capturing(model, tokens=[f"t{n}" for n in range(count)]) as run:
        model(_given(count))
    assert run.trace.stacks["last"][0, 0].tokens == ()


@pytest.mark.parametrize("moved", ["q", "k", "qk"])
@pytest.mark.parametrize("move", ["flip", "roll"])
@pytest.mark.parametrize("count", [6, 12, 16, 20, 40])
def test_a_causal_mask_hides_no_moves(count: int, moved: str, move: str) -> None:
    """It hides the first query and the last key, of which a single score is read."""
    model = _Model(moved, move, is_fused=False, is_causal=True)
    told = pytest.warns(UserWarning, match="moves and mixes")
    with torch.no_grad(), told, capturing(model, tokens=[f"t{n}" for n in range(count)]) as run:
        model(_given(count))
    assert run.trace.stacks["last"][0, 0].tokens == ()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("count", [3, 4, 6, 20])
def test_queries_that_stay_keep_their_names(count: int, is_causal: bool) -> None:
    model = _Model("qk", "stay", is_fused=False, is_causal=is_causal)
    names = tuple(f"t{n}" for n in range(count))
    with torch.no_grad(), capturing(model, tokens=list(names)) as run:
        model(_given(count))
    assert tuple(run.trace.stacks["last"][0, 0].tokens) == names


class _Shifts(nn.Module):
    """Mixes each token with the one before it, as some language models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attends = _Attends("", "stay", is_fused=False, is_causal=True)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attends(0.2 * x + 0.8 * nn.functional.pad(x, (0, 0, 1, -1)))
        return found


@pytest.mark.parametrize("count", [3, 4, 6, 12, 20])
def test_tokens_that_are_mixed_with_those_before_them_keep_their_names(count: int) -> None:
    """A causal mask hides the first query, but its value is known."""
    names = [f"t{n}" for n in range(count)]
    with torch.no_grad(), capturing(model := _Shifts(), tokens=names) as run:
        model(_given(count))
    assert run.trace[0, 0].tokens == tuple(names)
