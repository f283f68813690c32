"""Modules that are given the same tokens twice, as two tensors of the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gattn import capturing

WIDTH, SIDE = 16, 4
Given = tuple[Tensor, Tensor, Tensor]


class _Layer(nn.Module):
    """Attends to what `given` makes of tokens and their positions, as in DETR."""

    def __init__(self, given: Callable[[Tensor, Tensor], Given]) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.given = given

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        y, weights = self.attend(*self.given(x, positions), average_attn_weights=False)
        self.shown = weights.detach()
        return x + y


class _OfImages(nn.Module):
    def __init__(self, given: Callable[[Tensor, Tensor], Given]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(3, WIDTH, 4, 4), nn.Conv2d(WIDTH, WIDTH, 3, 2, 1))
        self.positions = nn.Parameter(torch.randn(1, SIDE**2, WIDTH))
        self.layers = nn.ModuleList(_Layer(given) for _ in range(2))
        self.double().eval()

    def forward(self, image: Tensor) -> Tensor:
        x = self.backbone(image).flatten(2).mT
        for layer in self.layers:
            x = layer(x, self.positions)
        return x


WAYS: dict[str, Callable[[Tensor, Tensor], Given]] = {
    "one": lambda x, positions: ((both := x + positions), both, x),
    "two": lambda x, positions: (x + positions, x + positions, x),
    "all": lambda x, positions: (x + positions, x + positions, x + positions),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_queries_and_keys_that_are_computed_twice_are_the_same_tokens(way: str, batch: int) -> None:
    model = _OfImages(WAYS[way])
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(batch, 3, 32, 32).double())
    for n, trace in enumerate(run.traces):
        for layer, of in enumerate(model.layers):
            for head in range(2):
                found = trace[layer, head]
                assert not found.graph.is_bipartite
                np.testing.assert_allclose(found.to_dense(), of.shown[n, head], atol=1e-12)


class _Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        found: Tensor = self.layer(x, states, states)[0]
        return found


def test_two_inputs_of_a_model_that_are_equal_by_chance_are_not() -> None:
    torch.manual_seed(0)
    model, x = _Reads().eval(), torch.randn(1, 6, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x, x.clone())
    assert run.trace[0, 0].graph.is_bipartite


def test_tokens_all_of_which_are_alike_are_not() -> None:
    class Zeros(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reads = _Reads()
            self.scale = nn.Parameter(torch.tensor(0.0))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            found: Tensor = self.reads(self.scale * x, self.scale * y)
            return found

    model = Zeros().eval()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(1, 6, WIDTH), torch.randn(1, 6, WIDTH))
    assert run.trace[0, 0].graph.is_bipartite


class _OfPairs(nn.Module):
    """Reads one part of a text from another one, which `split` takes from the same tensor."""

    def __init__(self, split: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(30, WIDTH)
        self.positions = nn.Parameter(torch.randn(6, WIDTH))
        self.split, self.reads = split, _Reads()

    def forward(self, ids: Tensor) -> Tensor:
        one, other = map(self.embed, self.split(ids))
        found: Tensor = self.reads(one + self.positions, other + self.positions)
        return found


@pytest.mark.parametrize("way", ["beside", "after"])
def test_parts_of_an_input_that_are_equal_by_chance_are_not_the_same_tokens(way: str) -> None:
    def beside(ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids[:, 0], ids[:, 1]

    def after(ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids[:, :6], ids[:, 6:]

    model = _OfPairs(beside if way == "beside" else after).eval()
    some, others = torch.randint(30, (2, 1, 6))
    for second in (some, others):  # The same proof holds for both.
        ids = torch.stack([some, second], 1) if way == "beside" else torch.cat([some, second], 1)
        with torch.no_grad(), capturing(model) as run:
            model(ids)
        assert run.trace[0, 0].graph.is_bipartite


def test_a_text_that_repeats_itself_does_not_meet_itself() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.reads = nn.Embedding(30, WIDTH), _Reads()

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            found: Tensor = self.reads(x[:, :-2], x[:, 2:])
            return found

    model = Shifted().eval()
    with torch.no_grad(), capturing(model) as run:
        model(torch.tensor([[1, 2] * 4]))
    found = run.trace[0, 0]
    assert (found.to_dense()[6:] == 0).all()
    assert (found.to_dense()[:, :2] == 0).all()
    assert found.to_dense()[:6, 2:].sum() == pytest.approx(6, abs=1e-5)


def test_equal_masks_do_not_part_tokens_that_are_computed_twice() -> None:
    class Masked(_OfImages):
        def forward(self, image: Tensor, *masks: Tensor) -> Tensor:
            return super().forward(image + sum(mask.sum() for mask in masks))

    model, mask = Masked(WAYS["two"]), torch.zeros(6, 6).double()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(1, 3, 32, 32).double(), mask, mask.clone())
    assert not run.trace[0, 0].graph.is_bipartite


def test_one_sequence_whose_tokens_come_first_is_the_same_tokens() -> None:
    class First(_OfImages):
        def __init__(self) -> None:
            super().__init__(WAYS["two"])
            for layer in self.layers:
                layer.attend.batch_first = False

        def forward(self, image: Tensor) -> Tensor:
            x = self.backbone(image).flatten(2).permute(2, 0, 1)
            for layer in self.layers:
                x = layer(x, self.positions.transpose(0, 1))
            return x

    model = First()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(1, 3, 32, 32).double())
    assert not run.trace[0, 0].graph.is_bipartite


def test_inputs_behind_gates_that_begin_at_zero_are_not_the_same_tokens() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reads, self.gate = _Reads(), nn.Parameter(torch.zeros(()))
            self.positions = nn.Parameter(torch.randn(6, WIDTH))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            found: Tensor = self.reads(
                self.gate * x + self.positions, self.gate * y + self.positions
            )
            return found

    model = Gated().eval()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(1, 6, WIDTH), torch.randn(1, 6, WIDTH))
    assert run.trace[0, 0].graph.is_bipartite
