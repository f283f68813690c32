"""Masks that take tokens between others: positions count those left, and a warning says so."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from gattn import capturing

FOLDER = Path(__file__).resolve().parents[2] / "gattn" / "models" / "embedded"


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()


def test_entities_that_are_gone_are_told() -> None:
    model, x = encoder(), torch.randn(1, 6, 16)
    gone = torch.tensor([[False, False, False, True, False, True]])
    told = pytest.warns(UserWarning, match="takes tokens between others")
    with torch.no_grad(), told, capturing(model, tokens=list("abce")) as run:
        model(x, src_key_padding_mask=gone)
    layer = model.layers[0].self_attn
    weights = layer(x, x, x, key_padding_mask=gone, average_attn_weights=False)[1][0]
    found, left = run.trace[0, 1], [0, 1, 2, 4]
    assert tuple(found.tokens) == ("a", "b", "c", "e")
    wanted = weights[1].detach().numpy()[np.ix_(left, left)]
    np.testing.assert_allclose(found.to_dense(), wanted, atol=1e-6)


@pytest.mark.parametrize("padding", [[0, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0]])
def test_padding_at_the_ends_is_not(padding: list[int]) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with capturing(model := encoder()) as run:
            model(torch.randn(1, 6, 16), src_key_padding_mask=torch.tensor([padding]).bool())
    assert run.trace[0, 0].to_dense().shape == (4, 4)


def test_a_language_model_tells_them_too() -> None:
    model, tokenizer = (of.from_pretrained(FOLDER) for of in (AutoModelForCausalLM, AutoTokenizer))
    given = tokenizer("The river tall green lamp", return_tensors="pt")
    given["attention_mask"][0, 2] = 0
    told = pytest.warns(UserWarning, match="takes tokens between others")
    with torch.no_grad(), told, capturing(model, tokenizer):
        model(**given)
