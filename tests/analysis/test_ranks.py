"""Ranks against singular values, and against matrices whose rank is known."""

import numpy as np
import pytest
import torch
import xarray as xr
from attentions import TEXT, random_attention

import gattn
from gattn.analysis import effective_rank, hidden_ranks, rank_collapse, rollout
from gattn.errors import SelectionError, ShapeError


def by_hand(matrix):
    sizes = np.linalg.svd(matrix, compute_uv=False)
    shares = sizes[sizes > 0] / sizes.sum()
    return np.exp(-(shares * np.log(shares)).sum())


def test_the_effective_rank_is_that_of_singular_values():
    attention = random_attention(2, 3, 6)
    found = effective_rank(attention)
    assert found.dims == ("layer", "head")
    for place in np.ndindex(2, 3):
        assert float(found[place]) == pytest.approx(by_hand(attention[place]), abs=1e-12)


def test_known_ranks():
    assert float(effective_rank(np.eye(5))[0, 0]) == pytest.approx(5)
    assert float(effective_rank(np.full((5, 5), 0.2))[0, 0]) == pytest.approx(1)
    assert float(effective_rank(np.zeros((5, 5)))[0, 0]) == 0
    halves = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
    assert float(effective_rank(halves)[0, 0]) == pytest.approx(2)


def test_cross_and_signed_attention_have_a_rank_too():
    matrix = np.random.default_rng(0).normal(size=(3, 5))
    assert float(effective_rank(matrix)[0, 0]) == pytest.approx(by_hand(matrix), abs=1e-12)


@pytest.mark.parametrize("residual", [0.0, 0.3])
def test_what_is_left_of_rank_one_is_that_of_the_product(residual):
    attention = random_attention(3, 2, 5)
    found = rank_collapse(attention, residual=residual)
    assert found.dims == ("layer",)
    product = np.eye(5)
    for layer in range(3):
        mixed = (1 - residual) * attention[layer].mean(0) + residual * np.eye(5)
        product = mixed @ product
        column_means = np.ones((5, 1)) @ (product.sum(0, keepdims=True) / 5)
        expected = np.linalg.norm(product - column_means) / np.linalg.norm(product)
        assert float(found[layer]) == pytest.approx(expected, abs=1e-12)


def test_the_mean_of_the_rows_leaves_least():
    matrix = random_attention(1, 1, 5)[0, 0]
    left = float(rank_collapse(matrix)[0]) * np.linalg.norm(matrix)
    rng = np.random.default_rng(1)
    for _ in range(50):
        row = matrix.mean(0) + rng.normal(size=5) * 0.05
        assert np.linalg.norm(matrix - row) >= left


def test_attention_that_reads_one_token_has_collapsed():
    first = np.zeros((4, 4))
    first[:, 0] = 1
    assert float(rank_collapse(first)[0]) == 0
    np.testing.assert_allclose(
        rank_collapse(np.stack([[np.eye(4)]] * 2)), np.full(2, np.sqrt(3 / 4)), atol=1e-15
    )


def test_a_product_of_zero_has_equal_rows():
    found = rank_collapse(np.stack([[np.eye(3, k=-1)]] * 4))
    # Powers with 2, 1 and 0 entries of 1, in columns of their own: 2/3 of each is left.
    left = [np.sqrt(2 / 3), np.sqrt(2 / 3), 0, 0]
    np.testing.assert_allclose(found, left, atol=1e-15)
    assert any("product of all layers is 0" in note for note in found.notes)
    assert rank_collapse(np.zeros((2, 1, 3, 3))).to_numpy().tolist() == [0, 0]
    assert not rank_collapse(np.eye(3)).notes
    assert hidden_ranks(np.zeros((1, 3, 2))).iloc[0].tolist() == [0, 0]


def test_weights_of_heads_are_written_down():
    attention = random_attention(2, 3, 4)
    assert rank_collapse(attention, reduce=np.array([1, 2, 3])).attrs["reduce"] == [1, 2, 3]
    assert rank_collapse(attention, reduce="max").attrs["reduce"] == "max"
    assert rank_collapse(attention, heads=np.int64(1)).attrs["heads"] == 1


def test_one_head_is_followed_by_its_number():
    attention = random_attention(2, 3, 4)
    np.testing.assert_allclose(
        rank_collapse(attention, heads=2), rank_collapse(attention[:, [2]]), atol=1e-15
    )


def test_attention_alone_loses_rank_in_the_embedded_model_and_the_residual_slows_it():
    trace = gattn.capture(TEXT)
    alone, mixed = rank_collapse(trace), rank_collapse(trace, residual=0.5)
    assert (np.diff(alone) < 0).all()
    assert (mixed > alone).all()
    assert "embedded" in alone.computed_from


def test_hidden_states_have_ranks():
    states = np.random.default_rng(0).normal(size=(3, 6, 4))
    states[2] = states[2, 0]
    found = hidden_ranks(states)
    assert found.index.name == "state"
    for state in range(3):
        mean = states[state].mean(0)
        left = np.linalg.norm(states[state] - mean) / np.linalg.norm(states[state])
        assert found.loc[state, "residual"] == pytest.approx(left, abs=1e-12)
        assert found.loc[state, "effective_rank"] == pytest.approx(by_hand(states[state]), abs=1e-6)
    assert found.loc[2, "residual"] == pytest.approx(0, abs=1e-12)
    tensors = [torch.from_numpy(state)[None] for state in states]
    np.testing.assert_array_equal(hidden_ranks(tensors), found)


def test_what_has_no_product():
    attention = random_attention(3, 1, 4)
    for wrong in (2, np.nan, "0.5", None, np.full((3, 4), 0.5)):
        with pytest.raises(SelectionError, match="residual is a share from 0 to 1"):
            rank_collapse(attention, residual=wrong)
    with pytest.raises(ShapeError, match=">= 0"):
        rank_collapse(-attention)
    with pytest.raises(SelectionError, match="No head 7"):
        rank_collapse(attention, heads=7)
    with pytest.raises(SelectionError, match="consecutive"):
        rank_collapse(gattn.capture(TEXT, layers=[0, 2]))
    with pytest.raises(SelectionError, match="queries and keys"):
        rank_collapse(attention[..., :2, :])
    axes = ("layer", "head", "query", "key")
    mixed = xr.DataArray(attention, dims=axes, attrs={"holds_residual": True})
    assert rank_collapse(mixed).shape == (3,)
    for holds in (mixed, rollout(attention)):
        with pytest.raises(SelectionError, match="residual=0"):
            rank_collapse(holds, residual=0.5)


def test_half_kept_graphs_say_so():
    kept = gattn.capture(TEXT, keep=gattn.TopK(2))
    for result in (effective_rank(kept), rank_collapse(kept)):
        assert any("not kept" in note for note in result.notes)
    assert "the product is of the kept edges" in rank_collapse(kept).notes


def test_they_draw_themselves():
    trace = gattn.capture(TEXT)
    (image,) = effective_rank(trace).draw().images
    assert image.get_array().shape == (4, 4)
    assert rank_collapse(trace).draw().lines
    assert hidden_ranks(np.ones((3, 4, 2))).draw().has_data()
