"""Only what is random in training mode is refused, not the flag of what wraps a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import ModelError

WIDTH, TOKENS = 8, 6


class Layer(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(p)

    def attention(self, x, bias=0.0):
        q, k, _ = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5 + bias).softmax(-1)

    def forward(self, x, bias=0.0):
        return self.drop(self.attention(x, bias)) @ self.qkv(x).chunk(3, -1)[2]


class Literal(Layer):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class OwnRate(Layer):
    def __init__(self, p):
        super().__init__(0.0)
        self.p = p

    def forward(self, x, bias=0.0):
        weights = nn.functional.dropout(self.attention(x, bias), p=self.p, training=self.training)
        return weights @ self.qkv(x).chunk(3, -1)[2]


class Noisy(OwnRate):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x) if self.training else x)


class OwnDropout(OwnRate):
    def dropout(self, x, p, training):
        return x + p + torch.randn_like(x) * float(training)

    def forward(self, x):
        return super().forward(self.dropout(x, 0.0, self.training))


def dropout(x, p, training):
    return x + p + torch.randn_like(x) * float(training)


class Library:
    dropout = staticmethod(dropout)


class GlobalDropout(OwnRate):
    def forward(self, x):
        return super().forward(dropout(x, 0.0, self.training))


class LibraryDropout(OwnRate):
    def forward(self, x):
        return super().forward(Library.dropout(x, 0.0, self.training))


class LocalDropout(OwnRate):
    def forward(self, x):
        nn = Library
        nn.functional = Library
        return super().forward(nn.functional.dropout(x, 0.0, self.training))


class OtherNames(OwnRate):
    def forward(this, x, bias=0.0):  # noqa: N805
        weights = torch.nn.functional.dropout(this.attention(x, bias), this.p, this.training)
        return weights @ this.qkv(x).chunk(3, -1)[2]


class OwnInAMethod(OwnRate):
    def forward(model, x):  # noqa: N805
        return super().forward(model.noise(x))

    def noise(model, x):  # noqa: N805
        return model.dropout(x, 0.0, model.training)

    def dropout(self, x, p, training):
        return dropout(x, p, training)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def made(kind=Layer, *given):
    torch.manual_seed(0)
    return kind(*given), torch.randn(2, TOKENS, WIDTH)


@torch.no_grad()
@pytest.mark.parametrize("wrap", [nn.DataParallel, Around, nn.Sequential])
def test_a_wrapper_in_training_mode_around_a_model_in_evaluation(wrap):
    layer, x = made()
    model = wrap(layer.eval())
    assert model.training
    with capturing(model) as run:
        model(x)
    for trace, oracle in zip(run.traces, layer.attention(x).numpy(), strict=True):
        assert trace[0, 0].to_dense() == pytest.approx(oracle, abs=1e-6)
    with edited(model, Cut(query=3, key=1)):
        output = model(x)
    bias = torch.zeros(TOKENS, TOKENS)
    bias[3, 1] = -torch.inf
    assert torch.allclose(output, layer(x, bias), atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("kind", [Layer, OwnRate, OtherNames])
def test_dropout_that_drops_nothing_is_not_random(kind):
    layer, x = made(kind, 0.0)
    with capturing(layer) as run:
        layer(x)
    oracle = layer.attention(x)[1].numpy()
    assert run.traces[1][0, 0].to_dense() == pytest.approx(oracle, abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (Layer, "drop, Dropout"),
        (lambda: Around(Layer()), "inner.drop, Dropout"),
        (lambda: nn.DataParallel(Layer()), "module.drop, Dropout"),
        (lambda: Around(Literal(0.0)), "inner, Literal"),
        (lambda: Around(OwnRate(0.1)), "inner, OwnRate"),
        (lambda: Around(Noisy(0.0)), "inner, Noisy"),
        (lambda: Around(OwnDropout(0.0)), "inner, OwnDropout"),
        (lambda: Around(GlobalDropout(0.0)), "inner, GlobalDropout"),
        (lambda: Around(LibraryDropout(0.0)), "inner, LibraryDropout"),
        (lambda: Around(LocalDropout(0.0)), "inner, LocalDropout"),
        (lambda: Around(OtherNames(0.1)), "inner, OtherNames"),
        (lambda: Around(OwnInAMethod(0.0)), "inner, OwnInAMethod"),
        (lambda: nn.MultiheadAttention(WIDTH, 2, 0.1), ""),
        (lambda: nn.Sequential(Layer(0.0), nn.BatchNorm1d(TOKENS)), "1, BatchNorm1d"),
    ],
)
def test_what_differs_in_training_mode_is_refused_by_name(make, named):
    model, x = made(make)
    says = rf"training mode.*{named}.*call model\.eval\(\)"
    given = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
    with pytest.raises(ModelError, match=says), capturing(model):
        model(*given)
    with capturing(model.eval()):
        model(*given)
