from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr
from attentions import TEXT, random_attention, trace_of
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import contributions, flow, oversquashing, rank_collapse, rollout
from gattn.analysis.reading.results import array
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Stack
from gattn.keep import Threshold, TopK

FIRST = [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]]
SECOND = [[0.2, 0.2, 0.6], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]]
PAPER = np.array([FIRST, SECOND])[:, None]


def by_hand(attention, reduce, residual=0.5):
    """Roll out in plain loops: (layers, heads, n, n) -> (layers, n, n)."""
    count = attention.shape[-1]
    state, states = np.eye(count), []
    for layer in attention:
        one = reduce(layer)
        mixed = np.zeros((count, count))
        for i in range(count):
            row = [(1 - residual) * one[i, j] + residual * (i == j) for j in range(count)]
            mixed[i] = np.array(row) / sum(row)
        state = np.array([sum(mixed[i, k] * state[k] for k in range(count)) for i in range(count)])
        states.append(state)
    return np.array(states)


def test_the_fixture_of_the_original_code():
    found = rollout(PAPER)
    expected = [
        [0.4925, 0.2175, 0.29],
        [0.16625, 0.67125, 0.1625],
        [0.30875, 0.17125, 0.52],
    ]
    np.testing.assert_allclose(found.sel(layer=1), expected, atol=1e-12)
    np.testing.assert_allclose(found.sel(layer=0), (FIRST + np.eye(3)) / 2, atol=1e-12)
    assert found.dims == ("layer", "query", "key")
    assert not found.error_bound.any()
    assert found.notes == []
    assert "3 tokens" in found.computed_from


WEIGHTS = np.array([[1.0, 2.0, 0.0], [0.5, 0.0, 0.5]])
REDUCTIONS = {
    "mean": lambda layer: layer.mean(0),
    "max": lambda layer: layer.max(0),
    "min": lambda layer: layer.min(0),
    2: lambda layer: layer[2],
}


def chosen(heads):
    return {"heads": heads} if isinstance(heads, int) else {"reduce": heads}


@pytest.mark.parametrize("heads", REDUCTIONS)
@pytest.mark.parametrize("residual", [0, 0.3, 0.5, 1])
def test_plain_loops_give_the_same(heads, residual):
    attention = random_attention(3, 3, 5)
    found = rollout(attention, **chosen(heads), residual=residual)
    expected = by_hand(attention, REDUCTIONS[heads], residual)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found.sum("key"), 1)


def test_weights_of_heads_of_each_layer():
    attention = random_attention(2, 3, 4, seed=1)
    found = rollout(attention, reduce=WEIGHTS)
    shares = WEIGHTS / WEIGHTS.sum(1, keepdims=True)
    one = np.einsum("lh,lhij->lij", shares, attention)[:, None]
    np.testing.assert_allclose(found, by_hand(one, lambda layer: layer[0]), atol=1e-12)


CHOICES = {
    "two numbers": ([0, 2], [[0, 2]] * 3),
    "places": ([(0, 1), (2, 0), (2, 2)], [[1], [], [0, 2]]),
    "a tuple of three": ((2, 1, 0), [[0, 1, 2]] * 3),
    "numbers as text": ("0,2", [[0, 2]] * 3),
    "places as text": ("0.1,2.0-2", [[1], [], [0, 1, 2]]),
    "layers of one head": ("0,2.1", [[1], [], [1]]),
    "texts and places": (["0.1", (2, 0)], [[1], [], [0]]),
}


@pytest.mark.parametrize(("heads", "read"), CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_heads_say_which_are_read(heads, read, reduce):
    attention = random_attention(3, 3, 4, seed=5)
    none = np.zeros((1, 4, 4))
    layers = [
        getattr(attention[n, some] if some else none, reduce)(0) for n, some in enumerate(read)
    ]
    expected = by_hand(np.stack(layers)[:, None], lambda layer: layer[0])
    found = rollout(attention, heads=heads, reduce=reduce)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert f"{reduce} of heads" in found.computed_from
    weighted = rollout(attention, heads=[2, 0], reduce=[1, 3])
    one = (attention[:, 2] + 3 * attention[:, 0]) / 4
    np.testing.assert_allclose(weighted, by_hand(one[:, None], lambda layer: layer[0]), atol=1e-12)


@pytest.mark.parametrize(
    ("how", "hint"),
    [
        ({"heads": "mean"}, "reduce='mean'"),
        ({"heads": [0.5, 0.5, 0.0]}, "weights go into reduce="),
        ({"heads": np.array([1.0, 2.0, 3.0])}, "weights go into reduce="),
        ({"heads": (2, 1)}, r"write \[\(2, 1\)\] for head 1 of layer 2, or \[2, 1\]"),
        ({"heads": [0, 0]}, "each once"),
        ({"heads": "0,0"}, "each once"),
        ({"heads": "2.*"}, r"places such as .* or '2.0,2.1', not '2.\*'"),
        ({"heads": "1-"}, r"a number from 0, several such as .*not .1-."),
        (
            {"heads": "decoder:2.1"},
            r"names a stack.*take one from the trace, as in trace\['decoder'\]",
        ),
        ({"heads": []}, "at least one"),
        ({"heads": [0, 7]}, "No head 7"),
        ({"heads": [(1, 0), 2]}, "must be a number"),
        ({"heads": [True, False, True]}, "must be a number"),
        ({"heads": [(0, 1), (2, 0), (2, 2)], "reduce": [1, 2]}, "same number of heads"),
        ({"heads": [0, 1], "reduce": [1, 2, 3]}, r"\(2,\) or \(3, 2\) here"),
    ],
)
def test_choices_of_heads_that_may_mean_something_else_are_refused(how, hint):
    for analysis in (rollout, partial(flow, queries=1), rank_collapse, oversquashing):
        with pytest.raises(SelectionError, match=hint):
            analysis(random_attention(3, 3, 4, seed=5), **how)


def test_maxima_are_divided_by_their_rows_sum_with_the_residual():
    attention = random_attention(1, 4, 4, seed=2)
    largest = attention[0].max(0) + np.eye(4)
    expected = largest / largest.sum(1, keepdims=True)
    np.testing.assert_allclose(rollout(attention, reduce="max")[0], expected)


def test_the_models_own_eager_attention_gives_the_same():
    model, tokenizer = gattn.load_model()
    found = rollout(gattn.capture(TEXT, model, tokenizer))
    model.set_attn_implementation("eager")
    try:
        inputs = tokenizer(TEXT, return_tensors="pt")
        attentions = model(**inputs, output_attentions=True).attentions
    finally:
        model.set_attn_implementation("sdpa")
    eager = torch.stack(attentions)[:, 0].detach().double().numpy()
    expected = by_hand(eager, REDUCTIONS["mean"])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(rollout(attentions), expected, atol=1e-6)
    assert list(found.key_token.to_numpy()) == gattn.capture(TEXT).tokens
    assert found.draw().get_title().startswith("rollout")


def test_all_forms_of_attention_agree():
    attention = random_attention(3, 2, 5, seed=3)
    expected = rollout(attention)
    labelled = xr.DataArray(attention, dims=("layer", "head", "query", "key"))
    for form in (trace_of(attention), trace_of(attention).only_stack, labelled):
        np.testing.assert_allclose(rollout(form), expected, atol=1e-12)
    tensor = torch.from_numpy(attention)
    np.testing.assert_allclose(rollout(tensor), expected, atol=1e-12)
    np.testing.assert_allclose(rollout(tensor.half()), expected, atol=5e-3)


def test_it_starts_at_any_layer():
    attention = random_attention(4, 2, 5, seed=4)
    found = rollout(trace_of(attention), from_layer=2)
    assert found.layer.to_numpy().tolist() == [2, 3]
    np.testing.assert_allclose(found, rollout(attention[2:]), atol=1e-12)
    with pytest.raises(SelectionError, match=r"No layer 4 to start from; there are \[0, 1, 2, 3\]"):
        rollout(attention, from_layer=4)


def test_shares_of_each_layer_and_token():
    attention = random_attention(2, 1, 3, seed=5)
    shares = np.array([[0.1, 0.5, 1.0], [0.0, 0.9, 0.3]])
    first, second = (
        (1 - r[:, None]) * layer[0] + np.diag(r) for r, layer in zip(shares, attention, strict=True)
    )
    np.testing.assert_allclose(rollout(attention, residual=shares)[1], second @ first)
    named = array(
        np.vstack([[[0.7] * 3], shares]),
        {"layer": [0, 1, 2], "query": [0, 1, 2]},
        name="share",
        computed_from="",
    )
    later = xr.DataArray(
        attention, dims=("layer", "head", "query", "key"), coords={"layer": [1, 2]}
    )
    np.testing.assert_allclose(rollout(later, residual=named)[1], second @ first)
    with pytest.raises(SelectionError, match="which do not hold layers"):
        rollout(later, residual=named.sel(layer=[0, 1]))


@given(st.integers(0, 10**6), st.integers(2, 5))
@settings(max_examples=20)
def test_tokens_in_another_order_are_rolled_out_in_that_order(seed, tokens):
    attention = random_attention(3, 2, tokens, seed=seed)
    order = np.random.default_rng(seed).permutation(tokens)
    moved = attention[:, :, order][:, :, :, order]
    expected = rollout(attention).to_numpy()[:, order][:, :, order]
    np.testing.assert_allclose(rollout(moved), expected, atol=1e-12)


@given(
    st.integers(0, 10**6),
    st.sampled_from(["mean", "max", "min", 0, (1, 3)]),
    st.sampled_from([Threshold(0.05), Threshold(0.3), TopK(1), TopK(2)]),
    st.sampled_from([0.0, 0.2, 0.5]),
)
@settings(max_examples=60)
def test_what_was_dropped_bounds_the_error(seed, heads, keep, residual):
    attention = random_attention(3, 2, 5, seed=seed)
    whole = rollout(attention, **chosen(heads), residual=residual)
    part = rollout(trace_of(attention, keep), **chosen(heads), residual=residual)
    lack = (whole - part).to_numpy()
    assert (lack >= -1e-9).all()
    assert (lack.sum(-1) <= part.error_bound.to_numpy() + 1e-9).all()
    if heads not in ("max", "min"):
        np.testing.assert_allclose(lack.sum(-1), part.error_bound, atol=1e-9)


def test_a_bound_is_noted():
    found = rollout(trace_of(random_attention(2, 2, 6), Threshold(0.2)))
    assert found.notes[1] == (
        f"lower bounds: they lack at most {float(found.error_bound.max()):.2g}, see error_bound"
    )
    assert "of the attention was not kept" in found.notes[0]


def test_rows_without_attention_stay_finite():
    attention = random_attention(2, 1, 4)
    attention[0, 0, 2] = 0
    without = rollout(attention, residual=0)
    assert np.isfinite(without).all()
    assert not without.sel(layer=0, query=2).any()
    assert "1 rows of layers are empty" in without.notes[0]
    assert rollout(attention).sel(layer=0, query=2, key=2) == 1


def test_rows_that_give_to_a_sink_are_shared_out_among_the_tokens():
    attention = random_attention(1, 1, 3) * 0.5
    expected = 0.5 * attention[0, 0] + 0.5 * np.eye(3)
    np.testing.assert_allclose(rollout(attention)[0], expected / 0.75)


def test_numbers_that_hold_the_residual_get_none():
    values = random_attention(2, 1, 3)[:, 0]
    axes = {"layer": [0, 1], "query": [0, 1, 2], "key": [0, 1, 2]}
    held = array(values, axes, name="contribution", computed_from="toy", holds_residual=True)
    np.testing.assert_allclose(rollout(held)[1], values[1] @ values[0])
    np.testing.assert_allclose(rollout(held, residual=0)[1], values[1] @ values[0])
    with pytest.raises(SelectionError, match="must not be added again"):
        rollout(held, residual=0.5)


def test_what_is_rolled_out_is_not_rolled_out_again():
    rolled = rollout(random_attention(2, 1, 3))
    assert rolled.attrs["holds_residual"]
    assert not rollout(random_attention(2, 1, 3), residual=0).attrs["holds_residual"]
    for some in (rolled, rolled.sel(layer=1)):
        for analysis in (rollout, flow):
            with pytest.raises(SelectionError, match="through the layers already"):
                analysis(some)


def test_rows_above_one_are_noted():
    attention = random_attention(2, 2, 4) * 3
    found, share = rollout(attention), (np.eye(4) + attention.mean(1)[0]) / 4
    np.testing.assert_allclose(found[0], share)
    assert found.notes == ["no distributions: rows sum to up to 3"]
    assert rollout(attention / 3).notes == []


def test_it_says_how_heads_and_residual_were_mixed():
    attention = random_attention(2, 2, 4)
    for options, said in (
        ({}, "mean of heads, residual 0.5"),
        ({"heads": 1, "residual": 0}, "head 1, residual 0"),
        (
            {"reduce": [1, 2], "residual": np.full((2, 4), 0.2)},
            "weighted mean of heads, residual 0.2",
        ),
        ({"reduce": "max", "residual": np.eye(4)[:2]}, "max of heads, residual by token"),
    ):
        assert rollout(attention, **options).computed_from.endswith(f"; {said}")


def test_lengths_have_no_residual_beside_them():
    text = "The dog chased the cat"
    for of in ("attention", "head"):
        lengths = contributions(text, of=of, progress=False)
        with pytest.raises(SelectionError, match=r'lengths of vectors.*of="residual"'):
            rollout(lengths)
        with pytest.raises(SelectionError, match="lengths of vectors"):
            rollout(lengths / 1000)
        rollout(lengths / lengths.sum("key"))
    held = contributions(text, of="residual", progress=False)
    rows = (held / held.sum("key")).to_numpy()
    state = np.eye(held.shape[-1])
    for matrix in rows:
        state = matrix @ state
    np.testing.assert_allclose(rollout(held)[-1], state, atol=1e-6)
    single = contributions(text, progress=False)
    rows = single.sel(layer=0) / single.sel(layer=0).sum("key")
    np.testing.assert_allclose(rollout(single, residual=0)[0], rows, atol=1e-6)


@pytest.mark.parametrize(
    ("attention", "options", "error", "said"),
    [
        (PAPER, {"residual": 1.5}, SelectionError, "share from 0 to 1"),
        (PAPER, {"residual": np.nan}, SelectionError, "share from 0 to 1"),
        (PAPER, {"residual": "half"}, SelectionError, "not 'half'"),
        (PAPER, {"residual": [0.5, 0.5]}, SelectionError, r"\(2, 3\) here"),
        (PAPER, {"heads": 3}, SelectionError, "No head 3"),
        (PAPER, {"reduce": "median"}, SelectionError, "'mean', 'max', 'min'"),
        (PAPER, {"reduce": [-1.0]}, SelectionError, "must be ≥ 0"),
        (-PAPER, {}, ShapeError, "needs attention >= 0"),
        (PAPER[..., :2], {}, SelectionError, "self-attention"),
    ],
)
def test_what_cannot_be_rolled_out(attention, options, error, said):
    with pytest.raises(error, match=said):
        rollout(attention, **options)


def test_layers_must_follow_each_other():
    stack = trace_of(random_attention(3, 1, 3)).only_stack
    some = Stack("decoder", {place: head for place, head in stack.items() if place[0] != 1})
    with pytest.raises(SelectionError, match=r"these are \[0, 2\]"):
        rollout(some)
