"""A softmax that meets values in a product which no door follows is named, beside other layers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

_HEADS, _DIM, _TOKENS = 2, 4, 7
_WIDTH = _HEADS * _DIM
_F = nn.functional


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / _DIM**0.5


def _by_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = _scores(q, k).softmax(-1)
    return sum(a[..., n, None] * v[:, :, n, None] for n in range(k.shape[2]))


def _bag(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, n = _scores(q, k).softmax(-1).flatten(0, 1), k.shape[2]
    keys = torch.arange(n).repeat(n, 1)
    some = zip(a, v.flatten(0, 1), strict=True)
    bags = [_F.embedding_bag(keys, one, per_sample_weights=x, mode="sum") for x, one in some]
    return torch.stack(bags).view_as(q)


def _convolution(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = _scores(q, k).softmax(-1).flatten(0, 1)
    y = _F.conv1d(v.reshape(1, -1, _DIM), a.flatten(0, 1)[..., None], groups=len(a))
    return y.view_as(q)


def _sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = _scores(q, k).softmax(-1).flatten(0, 1)
    some = zip(a, v.flatten(0, 1), strict=True)
    return torch.stack([torch.sparse.mm(x.to_sparse(), one) for x, one in some]).view_as(q)


def _compressed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = _scores(q, k).softmax(-1).flatten(0, 1)
    some = zip(a, v.flatten(0, 1), strict=True)
    return torch.stack([x.to_sparse_csr() @ one for x, one in some]).view_as(q)


def _in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, v = _scores(q, k).softmax(-1).flatten(0, 1), v.flatten(0, 1)
    return torch.zeros_like(v).baddbmm_(a, v).view_as(q)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, v = _scores(q, k).softmax(-1).flatten(0, 1), v.flatten(0, 1)
    made = [torch.addbmm(torch.zeros_like(one), x[None], one[None]) for x, one in zip(a, v)]  # noqa: B905
    return torch.stack(made).view_as(q)


def _buffer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = q.new_empty(*q.shape[:3], k.shape[2])
    for n in range(q.shape[2]):
        a[:, :, n] = _scores(q[:, :, n, None], k)[:, :, 0].softmax(-1)
    return a @ v


def _stacked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = _scores(q, k).softmax(-1)
    return (torch.stack([a] * _DIM, -1) * v[:, :, None]).sum(-2)


def _vecdot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = _scores(q, k).softmax(-1)
    return torch.linalg.vecdot(a[..., None, :], v.mT[:, :, None])


_library = torch.library.Library("gattn_tests", "DEF")
_library.define("attend(Tensor q, Tensor k, Tensor v) -> Tensor")
_library.impl("attend", lambda q, k, v: _scores(q, k).softmax(-1) @ v, "CompositeExplicitAutograd")


def _custom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.ops.gattn_tests.attend(q, k, v)


def _causal_and_linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = _F.elu(q) + 1, _F.elu(k) + 1
    return torch.einsum("bhnd,bhnde->bhne", q, (k[..., None] * v[..., None, :]).cumsum(2))


_WAYS = [
    _vecdot,
    _by_keys,
    _bag,
    _convolution,
    _sparse,
    _compressed,
    _in_place,
    _one_by_one,
    _custom,
    _buffer,
    _stacked,
    _causal_and_linear,
]


class _Seen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def heads(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, _HEADS, _DIM)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return x + (_scores(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2)


class _Other(_Seen):
    def __init__(self, way) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return x + self.way(*self.heads(x)).transpose(1, 2).flatten(2)


class _Inline(_Seen):
    """A model that attends itself, beside a layer that is seen."""

    def __init__(self, way) -> None:
        super().__init__()
        self.layer, self.way = _Seen(), way

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x + self.way(*self.heads(x)).transpose(1, 2).flatten(2)


class _Matrix(nn.Module):
    def __init__(self, size: int, columns: int, *, bias: bool) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(size, columns))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class _Memory(nn.Module):
    """Attention to learned keys and values, in parameters or in linear layers."""

    def __init__(self, values: int = 5, *, is_linear: bool = False) -> None:
        super().__init__()
        kind = nn.Linear if is_linear else _Matrix
        self.keys = kind(_WIDTH, values, bias=False)
        self.values = kind(values, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.values(self.keys(x).softmax(-1))


class _Sum(nn.Module):
    """Experts whose outputs are summed one by one, by a router with or without a bias."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, 4, bias=bias)
        self.experts = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return sum(weights[..., n, None] * one(x) for n, one in enumerate(self.experts))


class _Kernels(nn.Module):
    """Channels weighed by branches of a convolution, as in selective kernel networks."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.weigh = nn.Linear(_WIDTH, 4 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weigh(x.mean(1)).unflatten(-1, (4, _WIDTH)).softmax(1)
        return sum(weights[:, None, n] * one(x) for n, one in enumerate(self.branches))


class _Labels(nn.Module):
    """Probabilities that are returned, or looked at, and no attention."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.head = style, nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(x).softmax(-1)
        if self.style == "gate":
            return x * found
        if self.style == "joined":
            return torch.cat([x, found], -1)[..., :_WIDTH]
        return found


class _Bias(nn.Module):
    """A softmax as an activation between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_WIDTH, 5), nn.Linear(5, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).softmax(-1))


class _Shared(nn.Module):
    """A second layer multiplies the attention of the first with values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Attention(), _Values()

    def forward(self, x: Tensor) -> Tensor:
        y, attention = self.first(x)
        return self.second(x + y, attention)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        attention = (self.q(x) @ self.k(x).mT).softmax(-1)
        return attention @ self.v(x), attention


class _Values(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor, attention: Tensor) -> Tensor:
        return x + attention @ self.v(x)


def _told(model: nn.Module, batch: int = 1) -> list[str]:
    torch.manual_seed(0)
    model, x = model.eval(), torch.randn(batch, _TOKENS, _WIDTH)
    with warnings.catch_warnings(record=True) as found, torch.no_grad():
        warnings.simplefilter("always")
        expected = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), expected)
    assert len(run.traces) == batch
    return [str(one.message) for one in found if "Sparse CSR" not in str(one.message)]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("way", _WAYS)
def test_a_product_that_is_not_followed_is_told(way, batch):
    (said,) = _told(nn.Sequential(_Seen(), _Other(way)), batch)
    assert "1 (_Other) does not show its attention: " in said


@pytest.mark.parametrize("way", [_by_keys, _bag, _convolution, _in_place, _custom])
def test_the_model_itself_is_told_too(way):
    (said,) = _told(_Inline(way))
    assert "The model itself (_Inline) does not show its attention" in said


@pytest.mark.parametrize("way", _WAYS[:-1])
def test_a_model_of_which_nothing_is_followed_is_refused_with_this_reason(way):
    model, x = nn.Sequential(_Other(way)).eval(), torch.randn(1, _TOKENS, _WIDTH)
    says = r"0 \(_Other\) multiplies a softmax with values in a way that is not followed"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(x)


def test_attention_without_a_softmax_is_refused_as_such():
    model, x = nn.Sequential(_Other(_causal_and_linear)).eval(), torch.randn(1, _TOKENS, _WIDTH)
    says = "Attention without a softmax"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(x)


@pytest.mark.parametrize("is_linear", [True, False])
def test_a_learned_memory_of_keys_and_values_is_told(is_linear):
    (said,) = _told(nn.Sequential(_Seen(), _Memory(is_linear=is_linear)))
    assert said.startswith("1")
    assert ") attends to parameters or buffers, as to a codebook: " in said


@pytest.mark.parametrize(
    "other",
    [
        _Sum(bias=True),
        _Sum(bias=False),
        _Kernels(),
        _Bias(),
        *map(_Labels, ("gate", "joined", "returned")),
    ],
    ids=lambda one: getattr(one, "style", type(one).__name__),
)
def test_weights_of_what_parameters_make_are_not_told(other):
    assert _told(nn.Sequential(_Seen(), other)) == []


def test_attention_that_another_layer_uses_again_is_told_and_cut_in_both():
    torch.manual_seed(0)
    model, x = _Shared().eval(), torch.randn(1, _TOKENS, _WIDTH)
    says = r"second \(_Values\) multiplies the attention of another module"
    with torch.no_grad():
        with pytest.warns(UserWarning, match=says), edited(model, Cut(layer=0, query=2, key=3)):
            found = model(x)
        first, second = model.first, model.second
        scores = first.q(x) @ first.k(x).mT
        scores[0, 2, 3] = -torch.inf
        attention = scores.softmax(-1)
        y = x + attention @ first.v(x)
        torch.testing.assert_close(found, y + attention @ second.v(y))
