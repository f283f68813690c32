"""Contributions by norms, held to all vectors written out in double precision."""

import re

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pytest
import torch
from dense_sublayers import build, dense
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis.vectors.contributions import contributions, residual_shares
from gattn.errors import CaptureError, SelectionError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21, 40, 11]
NAMES = ["gpt2", "llama", "bert"]
# RMS norms compute in single precision even in a model of doubles.
WITHIN = {"gpt2": 1e-9, "llama": 1e-6, "bert": 1e-9}


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    model = build(request.param)
    return request.param, model, dense(request.param, model, IDS)


def measured(model, **options):
    return contributions(IDS, model, progress=False, **options)


def test_the_oracle_is_the_model(case):
    name, model, layers = case
    paths = {
        "gpt2": "ln_2",
        "llama": "post_attention_layernorm",
        "bert": "attention.output.LayerNorm",
    }
    seen, handles = [], []
    for path, module in model.named_modules():
        if path.endswith(paths[name]):
            handles.append(
                module.register_forward_hook(
                    lambda _, given, output: seen.append((given[0][0], output[0]))
                )
            )
    with torch.no_grad():
        model(torch.tensor([IDS]))
    for handle in handles:
        handle.remove()
    for layer, (summed, output) in zip(layers, seen, strict=True):
        torch.testing.assert_close(layer.after, summed, rtol=0, atol=WITHIN[name] * 10)
        torch.testing.assert_close(
            layer.norm(layer.after, shift=True), output, rtol=0, atol=WITHIN[name] * 10
        )


EXPECTED = {
    "head": lambda layer: layer.vectors.norm(dim=-1),
    "attention": lambda layer: layer.vectors.sum(0).norm(dim=-1),
    "residual": lambda layer: layer.whole.norm(dim=-1),
    "norm": lambda layer: layer.norm(layer.whole).norm(dim=-1),
}


@pytest.mark.parametrize("of", EXPECTED)
def test_lengths_are_those_of_the_vectors(case, of):
    name, model, layers = case
    found = measured(model, of=of)
    expected = torch.stack([EXPECTED[of](layer) for layer in layers])
    axes = ("layer", "head", "query", "key") if of == "head" else ("layer", "query", "key")
    assert found.dims == axes
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=WITHIN[name] * 10)
    assert found.attrs["holds_residual"] == (of in ("residual", "norm"))
    assert expected.min() == 0 or name == "bert"


def test_shares_are_those_of_the_vectors(case):
    """What other tokens add is summed one by one."""
    name, model, layers = case
    found = residual_shares(IDS, model, progress=False)
    assert found.dims == ("layer", "query")
    for n, layer in enumerate(layers):
        vectors, _ = layer.output()
        for i in range(len(IDS)):
            kept = vectors[i, i].norm()
            mixed = sum(vectors[i, j] for j in range(len(IDS)) if j != i).norm()
            assert float(found[n, i]) == pytest.approx(float(kept / (kept + mixed)), abs=1e-6)
    assert found[:, 0].min() > (0.999 if name != "bert" else 0)


def test_a_capture_measures_the_same(case):
    _, model, _ = case
    trace, found = gattn.capture(IDS, model, contributions=True), measured(model, of="head")
    for place, head in trace.only_stack.items():
        lengths = np.zeros((len(IDS), len(IDS)))
        lengths[head.query, head.key] = head.contribution
        np.testing.assert_allclose(found[place], lengths, rtol=1e-6, atol=1e-9)


@settings(max_examples=8)
@given(ids=st.lists(st.integers(3, 59), min_size=1, max_size=12))
def test_sums_are_no_longer_than_their_parts(gpt2, ids):

    heads = contributions(ids, gpt2, of="head", progress=False)
    both = contributions(ids, gpt2, progress=False)
    assert (both <= heads.sum("head") + 1e-9).all()
    shares = residual_shares(ids, gpt2, progress=False)
    assert ((shares > 0) & (shares <= 1)).all()
    np.testing.assert_allclose(shares[:, 0], 1, atol=1e-7)


def test_many_keys_are_taken_some_at_a_time(case, monkeypatch):
    from gattn.analysis.vectors import contributions as norms

    _, model, _ = case
    whole = [measured(model, of=of) for of in ("head", "residual")]
    monkeypatch.setattr(norms, "_NUMBERS", 4 * 24 * 3)
    for found in whole:
        np.testing.assert_allclose(measured(model, of=found.attrs["of"]), found, atol=1e-12)


def test_it_says_what_it_was_computed_from(case):
    _, model, _ = case
    found = measured(model, layers=[2, 1])
    assert found.layer.values.tolist() == [1, 2]
    assert found.computed_from.endswith("stack, layers 1-2, 11 tokens")
    assert "sum to what the model's attention adds to the residual stream within" in found.notes[0]
    np.testing.assert_array_equal(found, measured(model)[1:])


def test_tokens_are_named_and_results_draw_themselves():
    text = "The dog chased the cat"
    found = contributions(text)
    names = gattn.capture(text).only_stack.tokens
    assert found.query_token.values.tolist() == found.key_token.values.tolist() == list(names)
    assert found.sel(layer=1).draw().get_figure() is not None
    assert residual_shares(text).draw().get_figure() is not None


def test_rollout_takes_what_holds_the_residual():
    from gattn.analysis.reading.layers_of import layers_of

    text = "The dog chased the cat"
    assert layers_of(contributions(text, of="residual")).holds_residual
    assert not layers_of(contributions(text)).holds_residual


def test_half_precision_measures_what_single_does_or_refuses():
    model = build("llama").float()
    single, half = measured(model), measured(model.bfloat16())
    looks = single.to_numpy() > 0
    assert np.median(half.to_numpy()[looks] / single.to_numpy()[looks]) == pytest.approx(
        1, abs=0.02
    )
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1e7)
    assert measured(model.float()).max() > 0
    with pytest.raises(CaptureError, match=r"rounding to bfloat16 hides it.*model\.float\(\)"):
        measured(model.bfloat16())


def test_shares_are_for_a_rollout(case):
    from gattn.analysis import rollout

    _, model, _ = case
    trace, shares = gattn.capture(IDS, model), residual_shares(IDS, model, progress=False)
    found, state = rollout(trace, residual=shares), np.eye(len(IDS))
    for layer in range(3):
        mean = np.mean([trace[layer, h].to_dense() for h in range(4)], axis=0, dtype=np.float64)
        share = shares[layer].to_numpy()[:, None]
        state = ((1 - share) * mean + share * np.eye(len(IDS))) @ state
    np.testing.assert_allclose(found[-1], state, atol=1e-6)


def test_long_ones_say_what_they_will_take(capsys, monkeypatch):
    from gattn import progress

    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    contributions(IDS, build("gpt2"), layers=[0, 2])
    said = capsys.readouterr().err
    assert re.search(r"decomposing: 2 x layer, about \d+ s; choose some with layers=", said)
    contributions(IDS, build("gpt2"), progress=False)
    assert capsys.readouterr().err == ""


def test_wrong_choices_are_refused():
    model = build("gpt2")
    with pytest.raises(SelectionError, match="'head', 'attention', 'residual', 'norm', not 'all'"):
        measured(model, of="all")
    with pytest.raises(SelectionError, match="No layer 9"):
        measured(model, layers=[9])


@pytest.mark.filterwarnings("ignore")
def test_no_norm_reads_the_sum_of_a_parallel_block():
    from benchmarks import zoo

    model = zoo.specimen("gpt_neox").model
    with pytest.raises(SelectionError, match=r"No norm reads the sum.*of='residual'"):
        contributions([3, 4, 5], model, of="norm", progress=False)
    assert contributions([3, 4, 5], model, of="residual", progress=False).shape == (2, 3, 3)
