"""Attention that no door sees is told, so that layers are never misnumbered in silence."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError, SelectionError

HEADS, DIM = 2, 4
WIDTH = HEADS * DIM


def softmax(q, k, v):
    return (q @ k.mT / DIM**0.5).softmax(-1) @ v


def key_by_key(q, k, v):
    total, output = 0, 0
    for some, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
        weights = (q @ some.mT / DIM**0.5).exp()
        total, output = total + weights.sum(-1, keepdim=True), output + weights @ values
    return output / total


def sigmoids(q, k, v):
    return (q @ k.mT / DIM**0.5).sigmoid() @ v


def by_mean(q, k, v):
    weights = (q @ k.mT / DIM**0.5).exp()
    return weights / weights.mean(-1, keepdim=True) / weights.shape[-1] @ v


def linear(q, k, v):
    q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


class Layer(nn.Module):
    def __init__(self, way=softmax):
        super().__init__()
        self.qkv, self.way = nn.Linear(WIDTH, 3 * WIDTH), way

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        return x + self.way(q, k, v).transpose(1, 2).flatten(2)


class Other(Layer):
    pass


class LinearAttention(Layer):
    pass


class ChannelAttention(nn.Module):
    """Squeeze and excite: a gate on channels."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(WIDTH, 2), nn.ReLU(), nn.Linear(2, WIDTH))

    def forward(self, x):
        return x * self.gate(x.mean(1, keepdim=True)).sigmoid()


class AttentionPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Layer()

    def forward(self, x):
        return self.attn(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return (weights[..., None] * self.experts(x).unflatten(-1, (3, WIDTH))).sum(-2)


class Codebook(nn.Module):
    """Moves each token to its codes, which are parameters."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.codes, self.scale = nn.Parameter(torch.randn(4, WIDTH)), scale

    def forward(self, x):
        return (self.scale * (x @ self.codes.T)).softmax(-1) @ self.codes


class Bank(nn.Module):
    """Mixes parameters by a gate, as experts are mixed."""

    def __init__(self):
        super().__init__()
        self.router, self.bank = nn.Linear(WIDTH, 3), nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x):
        return self.router(x).softmax(-1) @ self.bank


class Pool(nn.Module):
    """One token that reads all others, written as a sum."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return x + (self.score(x).softmax(1) * x).sum(1, keepdim=True)


def bypassed():
    """A layer that does not attend in this model."""
    return Layer(lambda q, k, v: v)


def told(middle):
    """Warnings of a model whose second layer of three is another one."""
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), middle, Layer()).eval()
    with warnings.catch_warnings(record=True) as found, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model) as run:
            model(torch.randn(2, 6, WIDTH))
    assert run.traces
    return [str(one.message) for one in found]


@pytest.mark.parametrize("kind", [Layer, Other])
def test_a_softmax_that_is_written_out_over_chunks_of_keys_is_told(kind):
    (said,) = told(kind(key_by_key))
    assert f"1 ({kind.__name__}) does not show its attention: " in said


@pytest.mark.parametrize("way", [sigmoids, linear, by_mean])
def test_other_functions_of_products_are_told_whatever_the_class(way):
    (said,) = told(Other(way))
    assert "1 (Other) does not show its attention" in said


@pytest.mark.parametrize("way", [key_by_key, by_mean, sigmoids, linear])
def test_what_is_seen_nowhere_is_refused_with_what_is_expected(way):
    says = (
        "has no attention that gattn sees: .* softmaxes of scores that are multiplied with values"
    )
    model = Layer(way).eval()
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(torch.randn(1, 6, WIDTH))


@pytest.mark.parametrize("kind", [Layer, LinearAttention])
@pytest.mark.parametrize("way", [sigmoids, linear])
def test_what_is_called_attention_or_like_what_attends_is_told(way, kind):
    (said,) = told(kind(way))
    assert f"1 ({kind.__name__}) does not show its attention" in said


class Transform(nn.Module):
    """Multiplies with a fixed matrix on both sides, as a cosine transform does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        once = nn.functional.linear(x[:, None] * torch.ones(WIDTH, 1, 1), self.matrix)
        return nn.functional.linear(once.transpose(1, 3), self.matrix).transpose(1, 3)[:, 0] + x


class Buffered(nn.Module):
    """Attends by sigmoids to each text's keys and values, which it writes to buffers."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(6, WIDTH))
        self.register_buffer("values", torch.zeros(6, WIDTH))

    def forward(self, x):
        return x + torch.stack([self.read(one) for one in x])

    def read(self, x):
        self.keys.copy_(self.project(x))
        self.values.copy_(x)
        return (self.project(x) @ self.keys.T).sigmoid() @ self.values


def test_keys_and_values_in_buffers_are_told():
    (said,) = told(Buffered())
    assert "1 (Buffered) does not show its attention" in said


@pytest.mark.parametrize(
    "kind", [ChannelAttention, AttentionPool, Experts, Bank, Layer, Transform, bypassed]
)
def test_what_does_not_attend_or_shows_it_is_not_told(kind):
    assert told(kind()) == []


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_codebook_is_told(scale):
    (said,) = told(Codebook(scale))
    assert "1 (Codebook) attends to parameters or buffers, as to a codebook: " in said


def test_a_pooling_sum_is_shown_and_cut():
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Pool()).eval()
    x = torch.randn(2, 6, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        plain = model(x)
    stack = next(name for name in run.traces[1].stacks if len(run.traces[1][name]) == 1)
    with torch.no_grad(), edited(model, Cut(layer=0, key=[2, 4], stack=stack)):
        found = model(x)
    y = model[0](x)
    weights = model[1].score(y).softmax(1)
    head = run.traces[1][stack][0, 0]
    assert head.to_dense() == pytest.approx(weights[1].mT.detach().numpy(), abs=1e-6)
    torch.testing.assert_close(plain, y + (weights * y).sum(1, keepdim=True))
    rest = torch.arange(6)[torch.tensor([0, 1, 3, 5])]
    weights = model[1].score(y[:, rest]).softmax(1)
    torch.testing.assert_close(found, y + (weights * y[:, rest]).sum(1, keepdim=True))


def test_attention_that_is_multiplied_but_not_summed_is_not_taken_for_a_product():
    class Kept(Layer):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
            attention = (q @ k.mT).softmax(-1)
            other = attention[..., None] * v[:, :, None]
            return x + (attention @ v + other.amax(-2)).transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    model, x = Kept().double().eval(), torch.randn(1, 6, WIDTH).double()
    with torch.no_grad(), edited(model, Scale(0.5, layer=0, key=1)):
        found = model(x)
    q, k, v = model.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
    attention = (q @ k.mT).softmax(-1) * torch.where(torch.arange(6) == 1, 0.5, 1.0)
    other = (attention[..., None] * v[:, :, None]).amax(-2)
    wanted = x + (attention @ v + other).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_several_are_counted_and_edits_tell_them_too():
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Other(key_by_key), Other(key_by_key)).eval()
    x = torch.randn(1, 6, WIDTH)
    says = r"^1 \(Other\) does not show its attention, nor does 1 more module: "
    with pytest.warns(UserWarning, match=says), edited(model, Cut(layer=0, key=1)):
        model(x)


def test_a_module_that_changes_its_attention_is_named_by_its_path_beside_others():
    changed = [Other(lambda q, k, v: (q @ k.mT).softmax(-1) ** 2 @ v) for _ in range(2)]
    model, x = nn.Sequential(Layer(), *changed, Layer()).eval(), torch.randn(1, 6, WIDTH)
    says = r"1 \(Other\) .* and so does 1 more module: it is changed by pow"
    with pytest.warns(UserWarning, match=says), torch.no_grad(), capturing(model) as run:
        model(x)
    assert len(run.trace.only_stack) == 2 * HEADS
    for n, given in enumerate((x, model[:3](x))):
        q, k, _ = model[3 * n].qkv(given).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        for head, wanted in enumerate((q @ k.mT / DIM**0.5).softmax(-1)[0].detach().numpy()):
            assert run.trace[n, head].to_dense() == pytest.approx(wanted, abs=1e-6)
    alone = model[1:3]
    with pytest.raises(CaptureError, match="is changed by pow"), capturing(alone):
        alone(x)


def test_a_sequence_of_padding_has_no_attention():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    padding = torch.tensor([[False] * 4, [True] * 4])
    with capturing(model) as run, torch.no_grad():
        model(torch.randn(2, 4, WIDTH), src_key_padding_mask=padding)
    assert len(run.traces[0].only_stack) == HEADS
    with pytest.raises(SelectionError, match="has no attention: all of its sequence was padding"):
        run.traces[1][0, 0]
