"""Scores element by element: products of the model's own queries and keys."""

import numpy as np
import pytest
import torch

import gattn

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]


@pytest.fixture
def gpt2(tiny):
    return tiny("gpt2", dtype=torch.float64)


def projected(model, layer, head):
    """A head's queries and keys in a plain run: (tokens, dim) each, read by a hook."""
    seen = []
    module = model.transformer.h[layer].attn.c_attn
    handle = module.register_forward_hook(lambda *given: seen.append(given[-1][0]))
    with torch.no_grad():
        model(torch.tensor([IDS]))
    handle.remove()
    query, key, _ = seen[0].split(model.config.n_embd, dim=-1)
    sides = (side.unflatten(-1, (model.config.n_head, -1))[:, head] for side in (query, key))
    return [side.numpy() for side in sides]


def test_elements_are_the_products_that_a_score_is_a_sum_of(gpt2):
    query, key = projected(gpt2, 1, 1)
    found = gattn.why(IDS, gpt2, layer=1, head=1, query=7, key=3).elements()
    scale = query.shape[1] ** -0.5
    table = found.set_index("element").sort_index()
    assert table["query"].to_numpy() == pytest.approx(query[7] * scale)
    assert table["key"].to_numpy() == pytest.approx(key[3])
    assert table["score"].to_numpy() == pytest.approx(query[7] * scale * key[3])
    assert (np.diff(found["score"].abs()) <= 0).all()
    head = gattn.capture(IDS, gpt2, scores=True)[1, 1]
    score = head.score[(head.query == 7) & (head.key == 3)]
    assert found["score"].sum() == pytest.approx(float(score[0]))


def test_of_several_edges_they_are_means(gpt2):
    query, key = projected(gpt2, 1, 0)
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=[7, 8], key=[2, 3]).elements()
    expected = (query[[7, 8]].mean(0) * key[[2, 3]].mean(0)) * query.shape[1] ** -0.5
    assert found.columns.tolist() == ["element", "score"]
    assert found.set_index("element").sort_index()["score"].to_numpy() == pytest.approx(expected)


def test_what_a_model_adds_and_what_a_cap_takes_off_are_rows(gpt2):
    from dataclasses import replace

    found = gattn.why(IDS, gpt2, layer=1, head=1, query=7, key=3)
    size = len(IDS)
    other = replace(found, bias=torch.full((size, size), 2.5, dtype=torch.float64), softcap=0.7)
    table = other.elements().set_index("element")["score"]
    raw = found.elements()["score"].sum()
    assert table["added"] == 2.5
    assert table["soft cap"] == pytest.approx(0.7 * np.tanh(raw / 0.7) - raw)
    assert table.sum() == pytest.approx(other.table().attrs["total"])
