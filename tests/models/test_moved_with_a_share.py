"""Tokens that a model moves where each slot keeps a share of its own, and those it only mixes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gattn import capturing

WIDTH = 16
Change = Callable[[Tensor], Tensor]


class _Attends(nn.Module):
    def __init__(self, *, is_fused: bool, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.is_fused, self.is_causal = is_fused, is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        mask = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        if self.is_causal:
            scores = scores.masked_fill(~mask, -torch.inf)
        self.shown = scores.softmax(-1)
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.shown @ v


class _Model(nn.Module):
    """Attends, or attends twice, after a change."""

    def __init__(self, change: Change, *, is_later: bool, is_fused: bool, is_causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        how = {"is_fused": is_fused, "is_causal": is_causal}
        self.change, self.attends = change, _Attends(**how)
        self.first = _Attends(**how) if is_later else None
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.first is not None:
            x = x + self.first(x)
        found: Tensor = self.attends(self.change(x))
        return found


def _given(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(1, count, WIDTH, generator=generator, dtype=torch.float64)


def _head(model: nn.Module, count: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Give the tokens of the last layer, and its attention."""
    with torch.no_grad(), capturing(model, tokens=[f"t{n}" for n in range(count)]) as run:
        model(_given(count))
    stack = run.trace.stacks["attends"]
    head = stack[stack.layers[-1], 0]
    return tuple(head.tokens), head.to_dense()


MOVES: dict[str, Change] = {
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "two": lambda x: x[:, [1, 0, *range(2, x.shape[1])]],
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("share", [-0.1, 0.1, 0.3])
def test_tokens_that_moved_have_no_names_though_slots_keep_a_share(
    share: float, move: str, is_later: bool, is_fused: bool, is_causal: bool
) -> None:
    how = {"is_later": is_later, "is_fused": is_fused, "is_causal": is_causal}
    model = _Model(lambda x: MOVES[move](x) + share * x, **how)
    for count in (2, 3, 6, 20):
        with pytest.warns(UserWarning, match="moves and mixes"):
            assert _head(model, count)[0] == ()


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("pair", [(0, 3), (4, 11), (8, 19), (10, 13), (16, 15)])
def test_two_of_many_tokens_that_change_places_keep_their_names(
    pair: tuple[int, int], is_later: bool
) -> None:
    order = list(range(20))
    order[pair[0]], order[pair[1]] = pair[1], pair[0]
    how = {"is_later": is_later, "is_fused": True, "is_causal": False}
    model = _Model(lambda x: x[:, order], **how)
    names, found = _head(model, 20)
    assert names == tuple(f"t{n}" for n in range(20))
    own = model.attends.shown[0].numpy()
    np.testing.assert_allclose(found[np.ix_(order, order)], own, atol=1e-9)


class _OfImages(nn.Module):
    """Attends to patches, changes them, and attends again."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.layers = nn.ModuleList(_Attends(is_fused=False) for _ in range(2))
        self.change = change
        self.double().eval()

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).mT
        x = self.change(x + self.layers[0](x))
        found: Tensor = self.layers[1](x)
        return found


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("share", [-0.1, 0.1, 0.3])
def test_moves_of_patches_that_keep_a_share_are_noticed_after_the_first_layer(
    share: float, move: str
) -> None:
    model = _OfImages(lambda x: MOVES[move](x) + share * x)
    for rows, columns in ((1, 2), (2, 3), (4, 5)):
        image = torch.randn(1, 3, 4 * rows, 4 * columns).double()
        told = pytest.warns(UserWarning, match="moves and mixes")
        with torch.no_grad(), told, capturing(model):
            model(image)


class _Mixed(nn.Module):
    """Mixes the tokens of a text, in place of them or beside them."""

    def __init__(self, kind: str, count: int, *, has_stream: bool) -> None:
        super().__init__()
        self.kind, self.has_stream = kind, has_stream
        conv = {"padding": 1} | ({"groups": WIDTH} if kind == "depthwise" else {})
        self.inner: nn.Module = {
            "conv": lambda: nn.Conv1d(WIDTH, WIDTH, 3, **conv),
            "depthwise": lambda: nn.Conv1d(WIDTH, WIDTH, 3, **conv),
            "circular": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, padding_mode="circular"),
            "causal": lambda: nn.Sequential(
                nn.ConstantPad1d((2, 0), 0), nn.Conv1d(WIDTH, WIDTH, 3)
            ),
            "pool": lambda: nn.AvgPool1d(3, 1, 1),
            "mixer": lambda: nn.Sequential(nn.Linear(count, 32), nn.GELU(), nn.Linear(32, count)),
            "lstm": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
            "cumulative": nn.Identity,
            "shift": nn.Identity,
        }[kind]()

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "lstm":
            y = self.inner(x)[0]
        elif self.kind == "cumulative":
            y = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        elif self.kind == "shift":  # By half of the channels, as some language models do.
            y = torch.cat([nn.functional.pad(x[..., :8], (0, 0, 1, -1)), x[..., 8:]], -1)
        else:
            y = self.inner(x.mT).mT
        return x + y if self.has_stream else y


MIXERS = ["conv", "depthwise", "circular", "causal", "pool", "mixer", "lstm", "cumulative", "shift"]


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("has_stream", [False, True])
@pytest.mark.parametrize("kind", MIXERS)
def test_tokens_that_are_only_mixed_keep_their_names(
    kind: str, has_stream: bool, is_fused: bool
) -> None:
    for count in (5, 9, 20, 50):
        torch.manual_seed(count)
        change = _Mixed(kind, count, has_stream=has_stream)
        model = _Model(change, is_later=False, is_fused=is_fused, is_causal=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            names, found = _head(model, count)
        assert names == tuple(f"t{n}" for n in range(count))
        np.testing.assert_allclose(found, model.attends.shown[0], atol=1e-9)


class _Around(nn.Module):
    """A convolution over a circle of tokens, most of which is of one of the neighbours."""

    def __init__(self, reach: int, most: int) -> None:
        super().__init__()
        size = 2 * reach + 1
        self.inner = nn.Conv1d(WIDTH, WIDTH, size, padding=reach, padding_mode="circular")
        with torch.no_grad():
            self.inner.weight[..., most] *= 4

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.mT).mT
        return found


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize(("reach", "most"), [(1, 0), (1, 2), (2, 0), (2, 3)])
def test_a_convolution_around_a_circle_keeps_names_though_it_holds_more_of_neighbours(
    reach: int, most: int, is_later: bool
) -> None:
    for count in (7, 12, 24, 96):
        torch.manual_seed(count)
        how = {"is_later": is_later, "is_fused": False, "is_causal": False}
        model = _Model(_Around(reach, most), **how)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            names, found = _head(model, count)
        assert names == tuple(f"t{n}" for n in range(count))
        np.testing.assert_allclose(found, model.attends.shown[0], atol=1e-9)


@pytest.mark.parametrize("is_later", [False, True])
def test_tokens_moved_in_a_circle_that_leave_little_of_both_neighbours_have_no_names(
    is_later: bool,
) -> None:
    how = {"is_later": is_later, "is_fused": False, "is_causal": False}
    model = _Model(lambda x: x.roll(1, 1) + 0.05 * x + 0.05 * x.roll(-1, 1), **how)
    for count in (7, 12, 24, 96):
        with pytest.warns(UserWarning, match="moves and mixes"):
            assert _head(model, count)[0] == ()


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("moved", [1, -1])
def test_tokens_moved_in_a_circle_before_a_convolution_around_it_have_no_names(
    moved: int, is_later: bool
) -> None:
    for count in (9, 24):
        torch.manual_seed(count)
        around = _Around(1, 1)
        how = {"is_later": is_later, "is_fused": False, "is_causal": False}
        model = _Model(lambda x, around=around: around(x.roll(moved, 1)), **how)
        around.double()
        with pytest.warns(UserWarning, match="moves"):
            assert _head(model, count)[0] != tuple(f"t{n}" for n in range(count))


@pytest.mark.parametrize("is_later", [False, True])
def test_neighbours_that_change_places_beside_a_convolution_around_a_circle_have_no_names(
    is_later: bool,
) -> None:
    for count in (8, 24):
        torch.manual_seed(count)
        around = _Around(1, 1).double()
        how = {"is_later": is_later, "is_fused": False, "is_causal": False}

        def move(x: Tensor, around: nn.Module = around) -> Tensor:
            pairs = x.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)
            mixed: Tensor = around(x)
            return pairs + 0.05 * mixed

        with pytest.warns(UserWarning, match="moves"):
            assert _head(_Model(move, **how), count)[0] != tuple(f"t{n}" for n in range(count))


@pytest.mark.parametrize("kind", MIXERS)
def test_patches_that_are_only_mixed_after_the_first_layer_are_not_moved(kind: str) -> None:
    for rows, columns in ((2, 3), (4, 5)):
        torch.manual_seed(rows)
        model = _OfImages(_Mixed(kind, rows * columns, has_stream=True).double())
        image = torch.randn(1, 3, 4 * rows, 4 * columns).double()
        with torch.no_grad(), warnings.catch_warnings(), capturing(model) as run:
            warnings.simplefilter("error")
            model(image)
        wanted = model.layers[1].shown[0].numpy()
        np.testing.assert_allclose(run.trace[1, 0].to_dense(), wanted, atol=1e-9)


@pytest.mark.parametrize("move", [lambda x: x, MOVES["flip"]])
def test_two_tokens_that_a_norm_makes_alike_have_no_names(move: Change) -> None:
    def normed(x: Tensor) -> Tensor:
        x = move(x)
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)

    model = _Model(normed, is_later=False, is_fused=True, is_causal=False)
    with pytest.warns(UserWarning, match="moves and mixes"):
        assert _head(model, 2)[0] == ()


class _MovesItself(_Attends):
    def __init__(self, order: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        super().__init__(is_fused=False)
        self.order = list(order)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, self.order] + 0.1 * x)


@pytest.mark.parametrize("order", [(3, 0, 2, 1), (4, 3, 2, 1, 0), (1, 0, 5, 4, 3, 2)])
def test_a_softmax_whose_module_moves_a_few_tokens_is_numbered_as_it_is_given_them(order):
    """Half of so few tokens reach all rows, which then tell of no key."""
    model, count = _MovesItself(order), len(order)
    names = [f"t{n}" for n in range(count)]
    told = pytest.warns(UserWarning, match="moves and mixes")
    with told, torch.no_grad(), capturing(model, tokens=names) as run:
        model(_given(count))
    (head,) = run.trace.heads()
    assert head.tokens != names
    np.testing.assert_allclose(head.to_dense(), model.shown[0], atol=1e-12)
