"""Softmaxes that a model writes out, and products with values under other names."""

from __future__ import annotations

import warnings

import pytest
import torch
from hand_written import CAUSAL, ROOT, WIDTH, Layer, check, halved, made
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError, EditError

MASK = CAUSAL.double()


def scores(q, k):
    return q @ k.mT / ROOT


def logarithm(q, k, v):
    return F.log_softmax(scores(q, k), -1).exp() @ v


def logarithm_of_keys_first(q, k, v):
    return (v.mT @ torch.exp(torch.special.log_softmax(scores(k, q), dim=2))).mT


def less_the_logarithm(q, k, v):
    s = scores(q, k)
    return torch.exp(s - s.logsumexp(-1, keepdim=True)) @ v


def less_the_logarithm_in_place(q, k, v):
    s = scores(k, q)
    s -= torch.logsumexp(s, -2).unsqueeze(-2)
    return s.exp().mT @ v


def less_the_maximum_then_scaled(q, k, v):
    s = scores(q, k) / 2
    s = s - s.amax(-1, keepdim=True)
    s.mul_(2)
    weights = s.exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def less_the_maximum(q, k, v):
    s = scores(q, k)
    weights = torch.exp(s - s.max(-1, keepdim=True).values)
    return weights / weights.sum(-1, keepdim=True) @ v


def in_place(q, k, v):
    s = scores(q, k)
    s -= s.amax(-1, keepdim=True)
    s.exp_()
    s /= s.sum(-1, keepdim=True)
    return s @ v


def exponentials(q, k, v):
    weights = scores(q, k).exp()
    return weights / (weights.sum(-1, keepdim=True) + 1e-14) @ v


def exponentials_of_keys_first(q, k, v):
    weights = scores(k, q).exp()
    return (weights / weights.sum(-2, keepdim=True)).transpose(-2, -1) @ v


def exponentials_normalized(q, k, v):
    return F.normalize(scores(q, k).exp(), p=1, dim=-1) @ v


def reciprocal(q, k, v):
    weights = scores(q, k).exp()
    return (weights * weights.sum(-1, keepdim=True).reciprocal()) @ v


def divided_late(q, k, v):
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(ROOT).exp()
    return torch.einsum("bhij,bhjd->bhid", weights, v) / weights.sum(-1)[..., None]


def summed_late(q, k, v):
    weights = scores(q, k).exp()
    output = weights @ v
    return output * (1 / weights.sum(-1, keepdim=True))


def in_another_precision(q, k, v):
    weights = scores(q, k).exp()
    return (weights / weights.sum(-1, keepdim=True)).float().to(q.dtype).double() @ v


def multiplied_with_a_mask(q, k, v):
    weights = scores(q, k).exp() * MASK
    return (weights / weights.sum(-1, keepdim=True)) @ v


def softmax_renormalized(q, k, v):
    weights = scores(q, k).softmax(-1) * MASK
    return (weights / weights.sum(-1, keepdim=True)) @ v


def softmax_filled(q, k, v):
    weights = scores(q, k).softmax(-1).masked_fill(~CAUSAL, 0)
    return weights.div(weights.sum(-1).unsqueeze(-1)) @ v


def softmax_normalized(q, k, v):
    return F.normalize(torch.where(CAUSAL, scores(q, k).softmax(-1), 0.0), p=1, dim=-1) @ v


def baddbmm(q, k, v):
    shape, (q, k, v) = q.shape, (x.flatten(0, 1) for x in (q, k, v))
    nothing = torch.full_like(v, torch.nan)
    return torch.baddbmm(nothing, scores(q, k).softmax(-1), v, beta=0).view(shape)


def added_to_something(q, k, v):
    shape, (q, k, v) = q.shape, (x.flatten(0, 1) for x in (q, k, v))
    before = torch.ones_like(v)
    return (torch.baddbmm(before, scores(q, k).softmax(-1), v, beta=2, alpha=0.5) - 2).view(
        shape
    ) * 2


def implicit_einsum(q, k, v):
    shape, (q, k, v) = q.shape, (x.flatten(0, 1) for x in (q, k, v))
    return torch.einsum("...ij,...jk", scores(q, k).softmax(-1), v).view(shape)


def values_made_in_the_einsum(q, k, v):
    turn = torch.eye(v.shape[-1], dtype=v.dtype).flip(0)
    weights = scores(q, k).softmax(-1)
    return torch.einsum("bhjc, bhij, cd -> bhid", v.flip(-1), weights, turn)


WAYS = [
    *(logarithm, logarithm_of_keys_first, less_the_maximum, in_place, exponentials),
    *(exponentials_of_keys_first, reciprocal, divided_late, summed_late, baddbmm),
    *(added_to_something, implicit_einsum, less_the_logarithm, less_the_logarithm_in_place),
    *(values_made_in_the_einsum, less_the_maximum_then_scaled),
]
MASKED = [multiplied_with_a_mask, softmax_renormalized, softmax_filled, softmax_normalized]


@pytest.mark.parametrize("way", WAYS)
def test_a_softmax_in_other_words_is_shown_and_edited(way):
    check(way)


@pytest.mark.parametrize("way", MASKED)
def test_a_mask_before_the_division_is_part_of_the_softmax(way):
    check(way, is_causal=True)


@pytest.mark.parametrize("way", [logarithm, less_the_maximum, divided_late, added_to_something])
def test_gradients_flow_through_an_edit(way):
    model, x = made(way)
    x.requires_grad_()
    with edited(model, Scale(0.5, layer=0, head=1, query=slice(2, None))):
        model(x).square().sum().backward()
    found, x.grad = x.grad, None
    model.dense(x, halved)[1].square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-10, atol=1e-12)


def test_rounding_on_the_way_is_no_change():
    check(in_another_precision, atol=1e-6)


def test_a_residual_stream_that_is_added_stays_bit_for_bit():
    model, x = made(added_to_something)
    with torch.no_grad():
        plain = model.blocks[1](x)
        with edited(model.blocks[1], Cut(layer=0, query=4, key=3)):
            changed = (model.blocks[1](x) != plain).any(-1)
    assert changed.any(0).tolist() == [False] * 4 + [True, False]


def merged(q, k, v):
    """Softmaxes over two chunks of keys, added up by their shares."""
    outputs, totals = [], []
    for some, values in zip(k.split(3, 2), v.split(3, 2), strict=True):
        weights = scores(q, some).exp()
        totals.append(weights.sum(-1, keepdim=True))
        outputs.append(weights / totals[-1] @ values)
    return (outputs[0] * totals[0] + outputs[1] * totals[1]) / (totals[0] + totals[1])


def merged_by_products(q, k, v):
    """The same, with a product that takes the sums."""
    ones, outputs, totals = torch.ones_like(v[:, :, :3, :1]), [], []
    for some, values in zip(k.split(3, 2), v.split(3, 2), strict=True):
        weights = scores(q, some).exp()
        totals.append(weights @ ones)
        outputs.append(weights @ values / totals[-1])
    shares = torch.cat(totals, -1)
    shares = shares / shares.sum(-1, keepdim=True)
    return outputs[0] * shares[..., :1] + outputs[1] * shares[..., 1:]


def merged_by_logarithms(q, k, v):
    """The same, by the logarithms of the sums, as flash attention returns them."""
    outputs, totals = [], []
    for some, values in zip(k.split(3, 2), v.split(3, 2), strict=True):
        s = scores(q, some)
        totals.append(s.logsumexp(-1, keepdim=True))
        outputs.append((s - totals[-1]).exp() @ values)
    share = torch.sigmoid(totals[0] - totals[1])
    return outputs[0] * share + outputs[1] * (1 - share)


def logged(q, k, v):
    weights = scores(q, k).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total @ v + 0 * total.log()


@pytest.mark.parametrize("way", [merged, merged_by_products, merged_by_logarithms, logged])
def test_sums_that_weigh_something_else_are_refused(way):
    model, x = made(way)
    says = "the sum by which its softmax divides"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(x)


class Chunk(Layer):
    """Attends to some keys, and also returns the logarithms of its normalizer."""

    def forward(self, q, k, v):
        s = scores(q, k)
        total = s.logsumexp(-1, keepdim=True)
        return (s - total).exp() @ v, total


class Merging(Layer):
    """Merges what chunks of keys gave, outside of the module that attends to them."""

    def __init__(self):
        super().__init__(None)
        self.chunk = Chunk(None)

    def forward(self, x):
        q, k, v = self.parts(x)
        (one, first), (other, second) = (
            self.chunk(q, *some) for some in zip(k.split(3, 2), v.split(3, 2), strict=True)
        )
        share = torch.sigmoid(first - second)
        return self.out((one * share + other * (1 - share)).transpose(1, 2).flatten(2))


def test_chunks_that_are_merged_around_the_attending_module_are_refused():
    torch.manual_seed(0)
    model, x = Merging().double().eval(), torch.randn(2, 6, WIDTH).double()
    says = "the sum by which its softmax divides"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(x)


def divided_by_another(q, k, v):
    weights = scores(q, k).softmax(-1) * MASK
    return weights / weights.amax(-1, keepdim=True) @ v


def test_attention_that_is_divided_by_other_numbers_than_sums_is_refused():
    model, x = made(divided_by_another)
    with pytest.raises(CaptureError, match="changed by"), torch.no_grad(), capturing(model):
        model(x)


def with_a_sink(q, k, v):
    weights = scores(q, k).exp()
    return weights / (1 + weights.sum(-1, keepdim=True)) @ v


def with_a_sink_less_the_maximum(q, k, v):
    s = scores(q, k)
    most = s.amax(-1, keepdim=True).clamp(min=0)
    weights = (s - most).exp()
    return weights / ((-most).exp() + weights.sum(-1, keepdim=True)) @ v


@torch.no_grad()
@pytest.mark.parametrize("way", [with_a_sink, with_a_sink_less_the_maximum])
def test_a_sum_that_one_is_added_to_is_a_sink(way):
    model, x = made(way)

    def dense(is_cut):
        found, y = [], x
        for n, block in enumerate(model.blocks):
            q, k, v = block.parts(y)
            weights = scores(q, k).exp()
            weights[:, 2, 4, 3] *= not (is_cut and n == 1)
            found.append(weights / (1 + weights.sum(-1, keepdim=True)))
            y = y + block.out((found[-1] @ v).transpose(1, 2).flatten(2))
        return found, y

    with capturing(model) as run:
        plain = model(x)
    found, output = dense(is_cut=False)
    torch.testing.assert_close(plain, output, rtol=0, atol=1e-12)
    for row, trace in enumerate(run.traces):
        for (layer, head), graph in trace.only_stack.items():
            wanted = found[layer][row, head].numpy()
            assert graph.to_dense() == pytest.approx(wanted, rel=0, abs=1e-12)
            assert graph.total_mass == pytest.approx(wanted.sum(-1), rel=0, abs=1e-12)
    with edited(model, Cut(layer=1, head=2, query=4, key=3)):
        now = model(x)
    torch.testing.assert_close(now, dense(is_cut=True)[1], rtol=0, atol=1e-11)


def with_a_sink_of_the_maximum(q, k, v):
    s = scores(q, k)
    weights = (s - s.amax(-1, keepdim=True)).exp()
    return weights / (1 + weights.sum(-1, keepdim=True)) @ v


def with_half(q, k, v):
    weights = scores(q, k).exp()
    return weights / (2 * weights.sum(-1, keepdim=True)) @ v


def to_the_square(q, k, v):
    weights = scores(q, k).exp()
    return weights / weights.square().sum(-1, keepdim=True).sqrt() @ v


def never_divided(q, k, v):
    return (2 * torch.log_softmax(scores(q, k), -1)).exp() @ v


NO_SOFTMAXES = [with_a_sink_of_the_maximum, with_half, to_the_square, never_divided]


@pytest.mark.parametrize("way", NO_SOFTMAXES)
def test_what_is_not_the_softmax_of_its_scores_is_not_shown(way):
    model, x = made(way)
    with pytest.raises(CaptureError), torch.no_grad(), capturing(model):
        model(x)


def entropy(q, k, v):
    s = scores(q, k)
    weights = (s - s.amax(-1, keepdim=True)).exp()
    extra = weights.square().mean()
    return weights / weights.sum(-1, keepdim=True) @ v + 0 * extra


def test_edits_of_exponentials_that_something_else_reads_are_refused():
    model, x = made(entropy)
    with torch.no_grad():
        with capturing(model) as run, warnings.catch_warnings():
            model(x)
        assert list(run.traces[0].stacks) == ["blocks"]
        cut, says = Cut(layer=0, query=4, key=3), "reads its attention by square"
        with pytest.raises(EditError, match=says), edited(model, cut):
            model(x)


def guarded(q, k, v):
    s = scores(q, k)
    weights = (s - s.amax(-1, keepdim=True)).exp()
    return weights / (weights.sum(-1, keepdim=True) + 1e-4) @ v


def test_numbers_added_to_sums_that_show_in_float64_are_not_passed_over():
    model, _ = made(guarded)
    x = torch.randn(1, 24, WIDTH).double()
    with pytest.raises(CaptureError), torch.no_grad(), capturing(model):
        model(x)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("way", "sink"),
    [(less_the_maximum, 0), (divided_late, 0), (less_the_logarithm, 0), (with_a_sink, 1)],
)
def test_rounding_hides_no_sink(way, sink, dtype):
    torch.manual_seed(0)
    model, x = Layer(way).to(dtype).eval(), torch.randn(1, 24, WIDTH).to(dtype)
    with capturing(model) as run:
        model(x)
    q, k, _ = model.parts(x)
    weights = scores(q, k).double().exp()
    wanted = weights / (sink + weights.sum(-1, keepdim=True))
    sums = weights.sum(-1).log().max() / 2 if way is less_the_logarithm else 0
    rounded = torch.finfo(dtype).eps * float(2 + sums)
    for (_, head), graph in run.trace.only_stack.items():
        found = graph.to_dense()
        assert found == pytest.approx(wanted[0, head].numpy(), rel=0, abs=rounded)
        assert graph.total_mass == pytest.approx(wanted[0, head].sum(-1).numpy(), abs=2 * rounded)


def with_half_a_sink(q, k, v):
    weights = scores(q, k).exp()
    return weights / (0.5 + weights.sum(-1, keepdim=True)) @ v


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounding_does_not_make_a_softmax_of_others(dtype):
    torch.manual_seed(0)
    model, x = Layer(with_half_a_sink).to(dtype).eval(), torch.randn(1, 24, WIDTH).to(dtype)
    with pytest.raises(CaptureError), capturing(model):
        model(x)
