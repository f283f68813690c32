"""Traces read from a survey are those that were captured, whatever the model computes in."""

import pytest
import torch
from pairs import all_pairs
from runs import run
from same import assert_same_trace

import gattn

ROWS = [[5, 6, 7, 8, 9, 6, 7], [3], [4, 4, 4]]
CHOSEN = {
    "value norms": {"contributions": "value", "scores": True},
    "one head": {"contributions": True, "layers": [1], "heads": [0]},
    "all": {"keep": gattn.All()},
}


@pytest.mark.parametrize(
    ("name", "dtype", "chosen"),
    all_pairs(
        ["llama", "modernbert", "t5"], [torch.bfloat16, torch.float16, torch.float64], CHOSEN
    ),
)
def test_in_every_precision_and_order(tmp_path, tiny, name, dtype, chosen):
    model = tiny(name, dtype=dtype)
    rows = [{"input_ids": ids} for ids in ROWS]
    if model.config.is_encoder_decoder:
        rows = [row | {"decoder_input_ids": [1, 2, 3, 1]} for row in rows]
    options = {"keep": gattn.Threshold(0.05)} | CHOSEN[chosen]
    survey = run(rows, model, tmp_path, most_tokens=1, **options)
    for text_id, row in enumerate(rows):
        inputs = {name: torch.tensor([ids]) for name, ids in row.items()}
        captured = gattn.capture(inputs if len(row) > 1 else row["input_ids"], model, **options)
        found = survey.trace(text_id)
        assert list(found.stacks) == list(captured.stacks)
        assert_same_trace(found, captured)
