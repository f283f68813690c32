"""Numbers that are sampled between tokens, at places of a grid, as deformable attention does.

The oracle is the attention that the model keeps itself, and the same sampling by `gather`.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from gattn import capturing
from gattn.errors import CaptureError

_HEADS, _DIM, _TOKENS, _POINTS = 2, 4, 6, 3
_WIDTH = _HEADS * _DIM
_F = nn.functional
_NAMES = list("abcdef")


class _Seen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, _DIM)).permute(2, 0, 3, 1, 4)
        self.kept = (q @ k.mT / _DIM**0.5).softmax(-1)
        return x + (self.kept @ v).transpose(1, 2).flatten(2)


def _sampled(x: Tensor, places: Tensor, mode: str = "bilinear") -> Tensor:
    """Sample tokens (batch, tokens, dim) at places (batch, n), which count tokens."""
    along = places / (x.shape[1] - 1) * 2 - 1
    grid = torch.stack([along, torch.zeros_like(along)], -1)[:, None]
    return _F.grid_sample(x.mT[:, :, None], grid, mode, align_corners=True)[:, :, 0].mT


def _nearest(x: Tensor, places: Tensor) -> Tensor:
    return _sampled(x, places, "nearest")


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    below = places.floor().long()
    share = (places - below)[..., None]
    one, next_one = (
        x.gather(1, n[..., None].expand_as(x)) for n in (below, (below + 1).clamp(max=_TOKENS - 1))
    )
    return one * (1 - share) + next_one * share


def _captured(model: nn.Module, x: Tensor, **how):
    with (
        torch.no_grad(),
        warnings.catch_warnings(record=True) as told,
        capturing(model, **how) as run,
    ):
        warnings.simplefilter("always")
        model(x)
    return run.traces[0], [str(one.message) for one in told]


class _Warped(nn.Module):
    """Samples tokens at places that it computes, between layers of attention."""

    def __init__(self, sample, places) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Seen(), _Seen()])
        self.places, self.sample, self.where = nn.Linear(_WIDTH, 1), sample, places

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        return self.layers[1](self.sample(x, self.where(self, x)))


def _by_values(model: nn.Module, x: Tensor) -> Tensor:
    return model.places(x).sigmoid()[..., 0] * (_TOKENS - 1)


def _by_a_parameter_and_values(model: nn.Module, x: Tensor) -> Tensor:
    return (model.places.weight[:, :_TOKENS] * x[:, :, 0]).sigmoid() * (_TOKENS - 1)


def _by_noise(model: nn.Module, x: Tensor) -> Tensor:
    return torch.rand(x.shape[:2]) * (_TOKENS - 1)


@pytest.mark.parametrize("places", [_by_values, _by_a_parameter_and_values, _by_noise])
@pytest.mark.parametrize("sample", [_sampled, _nearest, _gathered])
def test_tokens_that_are_sampled_where_values_decide_have_no_names(sample, places):
    torch.manual_seed(0)
    model, x = _Warped(sample, places).eval(), torch.randn(1, _TOKENS, _WIDTH)
    trace, told = _captured(model, x, tokens=_NAMES)
    assert len(told) == 1
    assert "picks or orders tokens" in told[0]
    (stack,) = trace.stacks.values()
    for layer, one in enumerate(model.layers):
        assert stack[layer, 0].tokens == ()
        found = torch.as_tensor(stack[layer, 1].to_dense())
        torch.testing.assert_close(found, one.kept[0, 1], check_dtype=False)


def _flipped(model: nn.Module, x: Tensor) -> Tensor:
    return torch.linspace(_TOKENS - 1, 0, x.shape[1]).expand(x.shape[:2])


def _flipped_by_parameters(model: nn.Module, x: Tensor) -> Tensor:
    ends = torch.tensor([_TOKENS - 1.0, -1.0]) + 0 * model.places.bias
    return (ends[0] + ends[1] * torch.arange(x.shape[1])).expand(x.shape[:2])


@pytest.mark.parametrize("places", [_flipped, _flipped_by_parameters])
def test_tokens_that_are_always_sampled_at_the_same_places_keep_their_names(places):
    torch.manual_seed(0)
    model, x = _Warped(_nearest, places).eval(), torch.randn(1, _TOKENS, _WIDTH)
    trace, told = _captured(model, x, tokens=_NAMES)
    assert told == []
    (stack,) = trace.stacks.values()
    for layer, one in enumerate(model.layers):
        assert stack[layer, 0].tokens == tuple(_NAMES)
        kept = one.kept[0, 1].flip(0, 1) if layer else one.kept[0, 1]
        found = torch.as_tensor(stack[layer, 1].to_dense())
        torch.testing.assert_close(found, kept, check_dtype=False)


class _Positions(nn.Module):
    """Resamples its positions, as models do for images of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.layer = nn.Parameter(torch.randn(1, 2 * _TOKENS, _WIDTH)), _Seen()

    def forward(self, x: Tensor) -> Tensor:
        places = 2 * torch.arange(x.shape[1])[None] + 0 * x[:, :, 0] + 0.5
        return self.layer(x + _sampled(self.positions.expand(len(x), -1, -1), places))


def test_positions_that_are_sampled_are_no_tokens():
    torch.manual_seed(0)
    model, x = _Positions().eval(), torch.randn(1, _TOKENS, _WIDTH)
    trace, told = _captured(model, x, tokens=_NAMES)
    assert told == []
    assert trace["layer"][0, 0].tokens == tuple(_NAMES)


class _AtPlaces(nn.Module):
    """Attends to keys and values that are sampled where values decide (DAT)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH)
        self.places = nn.Linear(_WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(_sampled(x, _by_values(self, x))).chunk(2, -1)
        return x + (self.q(x) @ k.mT).softmax(-1) @ v


def test_attention_to_keys_that_are_sampled_where_values_decide_is_refused():
    torch.manual_seed(0)
    model, x = nn.Sequential(_Seen(), _AtPlaces()).eval(), torch.randn(2, _TOKENS, _WIDTH)
    picks = pytest.raises(CaptureError, match=r"picks or orders numbers by their values .*grid_s")
    with torch.no_grad(), picks, capturing(model):
        model(x)


def _summed(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum(-1)


def _sliced(values: Tensor, weights: Tensor) -> Tensor:
    return (values[..., :2] * weights[..., :2]).sum(-1)


def _unbound(values: Tensor, weights: Tensor) -> Tensor:
    return sum(v * w for v, w in zip(values.unbind(-1), weights.unbind(-1), strict=True))


def _stacked(values: Tensor, weights: Tensor) -> Tensor:
    levels = torch.stack([values[..., :1], values[..., 1:2]], -2).flatten(-2)
    return (levels * weights[..., :2]).sum(-1)


_FORMS = [_summed, _sliced, _unbound, _stacked]


class _Deformable(nn.Module):
    """Weighs values that it samples around places of its own, as deformable attention does."""

    def __init__(self, form) -> None:
        super().__init__()
        self.offsets = nn.Linear(_WIDTH, 2 * _POINTS)
        self.weights, self.form = nn.Linear(_WIDTH, _POINTS), form

    def forward(self, x: Tensor) -> Tensor:
        places = self.offsets(x).tanh().unflatten(-1, (_POINTS, 2))
        values = _F.grid_sample(x.mT[:, :, None], places, align_corners=False)
        return x + self.form(values, self.weights(x).softmax(-1)[:, None]).mT


@pytest.mark.parametrize("form", _FORMS)
def test_deformable_attention_is_named(form):
    torch.manual_seed(0)
    x = torch.randn(2, _TOKENS, _WIDTH)
    alone = _Deformable(form).eval()
    with pytest.raises(CaptureError, match="sampled between tokens"), capturing(alone):
        alone(x)
    model = nn.Sequential(_Seen(), _Deformable(form)).eval()
    trace, told = _captured(model, x)
    assert len(told) == 1
    assert told[0].startswith("1 (_Deformable) does not show its attention")
    assert list(trace.stacks) == ["_Seen"]
    found = torch.as_tensor(trace["_Seen"][0, 0].to_dense())
    torch.testing.assert_close(found, model[0].kept[0, 0], check_dtype=False)


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return sum(weights[..., n, None] * one(x) for n, one in enumerate(self.experts))


def test_experts_of_sampled_tokens_are_no_deformable_attention():
    torch.manual_seed(0)
    model = nn.Sequential(_Warped(_sampled, _by_values), _Experts()).eval()
    _, told = _captured(model, torch.randn(1, _TOKENS, _WIDTH))
    assert not any("does not show its attention" in one for one in told)
