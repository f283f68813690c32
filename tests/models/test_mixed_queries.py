"""Queries that mix all tokens: they are told by the tokens that their rows are added to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gattn import All, Cut, capturing, edited
from gattn.errors import GattnError

WIDTH, SIDE = 8, 4


class Attention(nn.Module):
    """Keys and values of one token each; a query of all, by a convolution wider than the image."""

    def __init__(self, heads: int = 1, door: str = "softmax", shift: int = 0) -> None:
        super().__init__()
        self.heads, self.door, self.shift = heads, door, shift
        self.qkv = nn.ModuleList(nn.Conv2d(WIDTH // heads, 3 * WIDTH, 1) for _ in range(heads))
        self.mix = nn.ModuleList(
            nn.Conv2d(WIDTH, WIDTH, 2 * SIDE - 1, padding=SIDE - 1, groups=WIDTH)
            for _ in range(heads)
        )
        self.inner = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH // heads, 1) for _ in range(heads))
        self.out = nn.Conv2d(WIDTH * heads, WIDTH, 1)
        self.seen: list[Tensor] = []
        self.without: tuple[int, int, int] | None = None

    def head(self, head: int, x: Tensor) -> Tensor:
        q, k, v = self.qkv[head](x).chunk(3, 1)
        q, k, v = (one.flatten(2).mT for one in (self.mix[head](q), k, v))
        if self.door == "sdpa":
            out = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
            self.seen.append((q @ k.mT / WIDTH**0.5).softmax(-1).detach())
            return out[:, 0].mT.unflatten(-1, (SIDE, SIDE))
        scores = q @ k.mT / WIDTH**0.5
        if self.without is not None and self.without[0] == head:
            scores[:, self.without[1], self.without[2]] = -torch.inf
        weights = scores.softmax(-1)
        self.seen.append(weights.detach())
        return (weights @ v).mT.unflatten(-1, (SIDE, SIDE))

    def forward(self, x: Tensor) -> Tensor:
        self.seen, found = [], []
        parts = x.chunk(self.heads, 1)
        x = parts[0]
        for head in range(self.heads):  # A head is given what the one before it gave.
            x = x + self.inner[head - 1](found[-1]) + parts[head] if found else x
            found.append(self.head(head, x))
        return self.out(torch.cat(found, 1)).roll(self.shift, -1)


class Adding(nn.Module):
    """A block that adds what attention gives to its tokens, or passes on nothing else."""

    def __init__(self, inner: nn.Module, *, has_stream: bool) -> None:
        super().__init__()
        self.inner, self.has_stream = inner, has_stream

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x) if self.has_stream else self.inner(x)


class Model(nn.Module):
    def __init__(self, *, has_stream: bool = True, flips: bool = False, **options: Any) -> None:
        super().__init__()
        self.flips = flips
        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.attending = [Attention(**options) for _ in range(2)]
        blocks = [Adding(one, has_stream=has_stream) for one in self.attending]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(WIDTH, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks[0](self.patches(image))
        x = self.blocks[1](x.flip(-1) if self.flips else x)
        return self.head(x.mean((2, 3)))


def made(**options: Any) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return Model(**options).eval(), torch.randn(2, 3, 2 * SIDE, 2 * SIDE)


@pytest.mark.parametrize(
    "options", [{}, {"door": "sdpa"}, {"heads": 2}], ids=["softmax", "sdpa", "cascade"]
)
@torch.no_grad()
def test_they_are_the_tokens_that_their_rows_are_added_to(options: dict[str, Any]) -> None:
    model, image = made(**options)
    plain = model(image)
    with capturing(model, keep=All()) as run:
        assert torch.equal(model(image), plain)
    for element, trace in enumerate(run.traces):  # In a cascade each head is a stack of its own.
        for head, stack in enumerate(trace.stacks.values()):
            assert len(stack.layers) == len(model.attending)
            for layer, one in enumerate(model.attending):
                found = torch.from_numpy(stack[layer, 0].to_dense())
                torch.testing.assert_close(found, one.seen[head][element], rtol=0, atol=2e-7)
        assert len(trace.stacks) == options.get("heads", 1)


@torch.no_grad()
def test_an_edge_is_cut_between_the_same_tokens() -> None:
    model, image = made(heads=2)
    plain = model(image)
    model.attending[0].without = 1, 5, 9
    expected = model(image)
    model.attending[0].without = None
    with edited(model, Cut(layer=0, query=5, key=9, stack="blocks.inner 2")):
        torch.testing.assert_close(model(image), expected, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(expected, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{"shift": 1}, {"has_stream": False}])
@torch.no_grad()
def test_rows_that_are_added_to_no_token_or_another_are_refused(options: dict[str, Any]) -> None:
    model, image = made(**options)
    with pytest.raises(GattnError, match="do not tell its slots apart"), capturing(model):
        model(image)


@torch.no_grad()
def test_tokens_that_the_model_moves_keep_their_numbers() -> None:
    model, image = made(flips=True)
    order = torch.arange(SIDE * SIDE).unflatten(0, (SIDE, SIDE)).flip(-1).flatten()
    with capturing(model, keep=All()) as run:
        model(image)
    for element, trace in enumerate(run.traces):
        for layer, own in enumerate(one.seen[0][element] for one in model.attending):
            expected = own[order][:, order] if layer else own
            found = torch.from_numpy(trace[layer, 0].to_dense())
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-7)
