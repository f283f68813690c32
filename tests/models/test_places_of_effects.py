"""The query and key that a row of effects names: the position, however the edit names it."""

import pandas as pd
import pytest
import torch
from torch import nn

import gattn

WORDS = ["the", "lamp", "and", "the", "dog", "slept"]


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model, x = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(),
        torch.randn(1, 6, 8),
    )
    return model, lambda: model(x)[0, 0]


@pytest.mark.parametrize(
    ("where", "position"),
    [
        (5, 5),
        (-2, 4),
        ([5], 5),
        ((4,), 4),
        ([4, 4], 4),
        ([4, -2, "dog"], 4),
        (torch.tensor([3]), 3),
        ("lamp", 1),
        ("the", None),
        ([1, 2], None),
        (None, None),
        (range(2, 3), 2),
        (range(2, 4), None),
        (slice(2, 3), 2),
        (slice(-1, None), 5),
        (slice(2, None), None),
        (slice(None, 1), 0),
    ],
)
@pytest.mark.parametrize("side", ["query", "key"])
def test_a_single_token_is_given_as_its_position(run, where, position, side):
    model, function = run
    cuts = [gattn.Cut(layer=0, **{side: where}), gattn.Cut(layer=1, head=1)]
    found = gattn.effect(function, cuts, model, tokens=WORDS, progress=False)
    other = {"query": "key", "key": "query"}[side]
    assert pd.isna(found[side][0]) if position is None else found[side][0] == position
    assert pd.isna(found[other]).all()
    assert pd.isna(found[side][1])


def test_a_patch_is_given_as_its_token(run):
    model, function = run
    cuts = [gattn.Cut(layer=0, key="1,2"), [gattn.Cut(key=1, layer=0), gattn.Cut(key=2, layer=0)]]
    found = gattn.effect(function, cuts, model, grid=(2, 3), progress=False)
    assert found["key"][0] == 5
    assert pd.isna(found["key"][1])


def test_a_batch_of_edits_names_the_token_of_each(tiny):
    model, words = tiny("llama"), ["a", "b", "c", "a", "d"]
    cuts = [gattn.Cut(layer=0, query=4, key=one) for one in ("b", "a", -2, "d", [2])]
    found = gattn.effect([3, 4, 5, 3, 6], cuts, model, tokens=words, batch_size=5, progress=False)
    assert found["key"].tolist() == [1, pd.NA, 3, 4, 2]
    assert found["query"].tolist() == [4] * 5
