"""ALTI, held to all transformed vectors written out in double precision."""

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pytest
import torch
from dense_sublayers import build, dense
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.vectors import alti as interactions
from gattn.analysis.vectors.alti import alti
from gattn.models.decompose.decomposing import decompose

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21, 40, 11]


def written_out(layer):
    """The paper's formula, one pair after another."""
    vectors, whole = layer.output()
    count = len(whole)
    raw = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            distance = (whole[i] - vectors[i, j]).abs().sum()
            raw[i, j] = max(0.0, float(whole[i].abs().sum() - distance))
    return raw / raw.sum(1, keepdim=True)


@pytest.fixture(scope="module", params=["gpt2", "llama", "bert"])
def case(request):
    model = build(request.param)
    return model, [written_out(layer) for layer in dense(request.param, model, IDS)]


def test_it_is_the_papers_formula(case):
    model, expected = case
    found = alti(IDS, model, progress=False)
    assert found.dims == ("layer", "query", "key")
    np.testing.assert_allclose(found, torch.stack(expected), atol=1e-6)
    np.testing.assert_allclose(found.sum("key"), 1)
    assert found.std() > 0.05
    assert found.attrs["holds_residual"] is True
    assert layers_of(found).holds_residual


def test_blocks_change_nothing(case, monkeypatch):
    model, _ = case
    whole = alti(IDS, model, progress=False)
    monkeypatch.setattr(interactions, "_ROWS", 3)
    monkeypatch.setattr(interactions, "_NUMBERS", 24 * 3 * 2)
    monkeypatch.setattr(interactions, "_MOVED", 4 * 24 * 3)
    np.testing.assert_allclose(alti(IDS, model, progress=False), whole, atol=1e-12)


def test_layers_are_chosen(case):
    model, _ = case
    found = alti(IDS, model, layers=[1], progress=False)
    assert found.computed_from.endswith("stack, layer 1, 11 tokens")
    assert found.name == "ALTI"
    rolled = gattn.analysis.rollout(found)
    assert rolled.computed_from == f"ALTI of {found.computed_from}"
    np.testing.assert_array_equal(found[0], alti(IDS, model, progress=False)[1])


@settings(max_examples=8)
@given(ids=st.lists(st.integers(3, 59), min_size=1, max_size=12))
def test_rows_are_shares_of_what_a_query_sees(gpt2, ids):
    found = alti(ids, gpt2, progress=False)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum("key"), 1)
    assert not np.triu(found.values, 1).any()
    np.testing.assert_array_equal(found[:, 0, 0], 1)


def test_tokens_swap_as_the_text_does():
    """BERT without positions: a permuted text has permuted shares."""
    model = build("bert")
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    order = np.random.default_rng(0).permutation(len(IDS))
    plain = alti(IDS, model, progress=False).values
    found = alti([IDS[n] for n in order], model, progress=False).values
    np.testing.assert_allclose(found, plain[:, order][:, :, order], atol=1e-9)


def test_it_rolls_out_without_another_identity(case):
    from gattn.analysis import rollout

    model, expected = case
    whole = torch.stack(expected)
    found = rollout(alti(IDS, model, progress=False))
    np.testing.assert_allclose(found[-1], whole[2] @ whole[1] @ whole[0], atol=1e-6)


def test_a_row_that_nothing_brings_nearer_is_zero_and_said():
    """A bias that turns the output round."""
    model = build("gpt2")
    plain = decompose([5], model, read=lambda part: part.after - part.bias, progress=False)
    model.transformer.h[1].attn.c_proj.bias.copy_(-10 * plain.results[1][0])
    found = alti([5], model, progress=False)
    np.testing.assert_array_equal(found[:2, 0, 0], [1, 0])
    assert found.notes[1].startswith("in 1 rows no vector")


def test_it_draws_itself():
    assert alti("The dog chased the cat").sel(layer=2).draw().get_figure() is not None
