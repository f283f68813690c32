"""Estimates of effects, against slopes of a model whose attention is dense algebra."""

import numpy as np
import pytest
import torch
from effects_by_hand import (
    IDS,
    PLACE,
    cutting,
    dense_logits,
    difference,
    double,
    estimates,
    headed,
    inputs_of,
    with_own_norms,
)
from scipy import stats
from torch.nn.functional import kl_div

import gattn
from gattn import TopK


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "t5"])
def test_estimates_are_the_slope_towards_the_cut(tiny, name, renormalize):
    model, step = double(tiny, name), 1e-5
    inputs = inputs_of(model)
    found = estimates(model, renormalize=renormalize)
    rng = np.random.default_rng(0)
    for _, group in found.groupby("stack"):
        for place in group.iloc[rng.permutation(len(group))[:12]].to_dict("records"):
            cut = (*(place[name] for name in PLACE), renormalize)
            ends = [
                difference(dense_logits(model, inputs, cutting(cut, share=share)))
                for share in (-step, step)
            ]
            slope = (ends[1] - ends[0]) / (2 * step)
            assert place["estimate"] == pytest.approx(slope, rel=1e-5, abs=1e-8), cut
    assert found["estimate"].abs().max() > 0.1
    assert len(found["stack"].unique()) == (3 if name == "t5" else 1)


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_the_only_edge_and_overwhelming_ones_are_as_precise(tiny, name):
    model, step = double(tiny, name), 1e-5
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 12
    found = estimates(model)
    single = estimates(model.float())
    strongest = found[found["attention"] > 1 - 1e-6]
    assert len(strongest) > 10
    assert (strongest["key"] != strongest["query"]).any()
    model.double()
    for edge in strongest.index:
        cut = (*found.loc[edge, PLACE], True)
        ends = [
            difference(dense_logits(model, {"input_ids": IDS}, cutting(cut, share=share)))
            for share in (-step, step)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        assert found["estimate"][edge] == pytest.approx(slope, rel=1e-4, abs=1e-7), cut
        assert single["estimate"][edge] == pytest.approx(slope, rel=5e-2, abs=1e-3), cut


def test_zeroed_values_add_up_to_the_output(tiny):
    model, rows = double(tiny, "llama"), []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, given: rows.append(given[0])
        )
        for layer in model.model.layers
    ]
    logits = model(torch.tensor([IDS])).logits[0, -1]
    gradients = torch.autograd.grad(logits[7] - logits[11], rows)
    for hook in hooks:
        hook.remove()
    found = estimates(model, renormalize=False)
    sums = found.groupby(["layer", "head", "query"])["estimate"].sum()
    for layer, (output, gradient) in enumerate(zip(rows, gradients, strict=True)):
        product = (output * gradient)[0].unflatten(-1, (4, -1)).sum(-1).detach()
        expected = -product.T.flatten().numpy()
        np.testing.assert_allclose(sums[layer], expected, atol=1e-10)
        assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize("renormalize", [True, False])
def test_divergences_are_estimated_to_second_order(tiny, renormalize):
    labels = {"0": 0, "1": 1, "2": 2}
    model = headed(tiny, "LlamaForSequenceClassification", "llama", num_labels=3, label2id=labels)
    model = with_own_norms(model.double())
    found = gattn.estimate(
        IDS, model, metric="kl", renormalize=renormalize, sample=0, progress=False
    )

    def divergence(cut, share):
        inputs = {"input_ids": IDS}
        rows = [dense_logits(model, inputs, change) for change in (None, cutting(cut, share=share))]
        one, other = (row.log_softmax(-1) for row in rows)
        return float(kl_div(other, one, reduction="sum", log_target=True))

    for place in found.nlargest(8, "estimate").to_dict("records"):
        cut = (*(place[name] for name in PLACE), renormalize)
        step = 1e-3
        near = (divergence(cut, step) + divergence(cut, -step)) / 2
        assert place["estimate"] == pytest.approx(near / step**2, rel=1e-4), cut
    assert (found["estimate"] >= 0).all()
    assert found["estimate"].max() > 1e-4


@pytest.mark.parametrize("position", [-1, [3, -2]])
def test_divergences_of_many_tokens_take_the_likeliest_one_by_one(tiny, position):
    model, step = double(tiny, "llama"), 1e-4
    rows = np.ravel(position).tolist()
    found = gattn.estimate(IDS, model, metric="kl", position=position, sample=0, progress=False)
    plain = dense_logits(model, {"input_ids": IDS})[rows].softmax(-1)
    for place in found.nlargest(6, "estimate").to_dict("records"):
        cut = (*(place[name] for name in PLACE), True)
        ends = [
            dense_logits(model, {"input_ids": IDS}, cutting(cut, share=share))[rows].softmax(-1)
            for share in (-step, step)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        total = 0.0
        for share, change in zip(plain, slope, strict=True):
            order = share.argsort(descending=True)
            parts, changes = (
                torch.cat([x[order[:9]], x[order[9:]].sum()[None]]) for x in (share, change)
            )
            total += float((changes**2 / parts).sum()) / 2 / len(rows)
        assert place["estimate"] == pytest.approx(total, rel=1e-4), cut
    exact = {"metric": "kl", "position": position, "sample": 10_000, "progress": False}
    assert gattn.estimate(IDS, model, **exact).attrs["rank_correlation"] > 0.97


@pytest.mark.parametrize("renormalize", [True, False])
def test_steps_average_gradients_on_the_way_to_no_edges(tiny, renormalize):
    model, kept = double(tiny, "llama"), {}
    found = estimates(model, steps=3, renormalize=renormalize)

    def keep(call, attention):
        kept[call.place] = attention, call.scores, call.value
        return attention

    dense_logits(model, {"input_ids": IDS}, keep)

    def measured(share, place, delta):
        def hook(number):
            def scale(module, given):
                x = share * given[0].clone()
                if number == place["layer"]:
                    x[0, place["query"]].view(4, -1)[place["head"]] += delta
                return (x,)

            return scale

        hooks = [
            layer.self_attn.o_proj.register_forward_pre_hook(hook(number))
            for number, layer in enumerate(model.model.layers)
        ]
        with torch.no_grad():
            number = difference(model(torch.tensor([IDS])).logits[0])
        for one in hooks:
            one.remove()
        return number

    rng, step = np.random.default_rng(0), 1e-5
    for place in found.iloc[rng.permutation(len(found))[:8]].to_dict("records"):
        attention, scores, value = kept["decoder", place["layer"]]
        row = attention[0, place["head"], place["query"]]
        cut = row.clone()
        if renormalize:
            fewer = scores[0, place["head"], place["query"]].clone()
            fewer[place["key"]] = -torch.inf
            cut = fewer.softmax(-1).nan_to_num(0.0)
        cut[place["key"]] = 0
        delta = (cut - row) @ value[0, place["head"]]
        slopes = [
            (measured(share, place, step * delta) - measured(share, place, -step * delta))
            / (2 * step)
            for share in (1, 2 / 3, 1 / 3)
        ]
        assert place["estimate"] == pytest.approx(np.mean(slopes), rel=1e-5, abs=1e-8)
    once = estimates(model, renormalize=renormalize)["estimate"]
    assert (found["estimate"] - once).abs().max() > 0.01


def test_chosen_heads_have_the_same_estimates(tiny):
    model = double(tiny, "gpt-oss")
    whole = estimates(model).set_index(PLACE)["estimate"]
    for heads in ([2], [3, 0]):
        for renormalize in (True, False):
            expected = (
                whole
                if renormalize
                else estimates(model, renormalize=False).set_index(PLACE)["estimate"]
            )
            some = estimates(model, layers=[1], heads=heads, renormalize=renormalize)
            assert set(some["head"]) == set(heads)
            some = some.set_index(PLACE)["estimate"]
            np.testing.assert_allclose(some, expected[some.index], atol=1e-12)


def test_estimates_are_of_heads_at_some_places(tiny):
    model = tiny("llama")
    whole = estimates(model).set_index(PLACE)["estimate"]
    some = estimates(model, heads=[(1, 2), "0.3"])
    assert set(zip(some["layer"], some["head"], strict=True)) == {(1, 2), (0, 3)}
    some = some.set_index(PLACE)["estimate"]
    np.testing.assert_allclose(some, whole[some.index], atol=1e-6)


def test_only_what_is_kept_is_estimated(tiny):
    model = double(tiny, "llama")
    whole = estimates(model).set_index(PLACE)["estimate"]
    kept = estimates(model, keep=TopK(2), sample=5)
    assert len(kept) == 2 * 4 * (1 + 5 * 2)
    np.testing.assert_allclose(kept["estimate"], whole[list(kept.set_index(PLACE).index)])


def test_any_model_that_gives_gradients_will_do(tiny):
    model = tiny("llama").double()
    expected = estimates(model)["estimate"]
    assert all(parameter.grad is None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    np.testing.assert_allclose(estimates(model)["estimate"], expected, atol=1e-12)
    with torch.no_grad():
        np.testing.assert_allclose(estimates(model)["estimate"], expected, atol=1e-12)
    with torch.inference_mode():
        np.testing.assert_allclose(estimates(model)["estimate"], expected, atol=1e-12)
    # Llama's own eager attention takes the softmax in float32, in float64 models too.
    size = float(expected.abs().max())
    eager = estimates(tiny("llama", "eager").double())["estimate"]
    np.testing.assert_allclose(eager, expected, atol=100 * size * np.finfo("float32").eps)
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_near(tiny, dtype):
    expected = estimates(double(tiny, "llama"))["estimate"]
    found = estimates(tiny("llama", dtype=dtype), sample=5)["estimate"]
    assert stats.pearsonr(found, expected).statistic > 0.99
    np.testing.assert_allclose(found, expected, atol=0.05 * expected.abs().max())
