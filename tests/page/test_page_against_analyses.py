"""What the page computes in the browser is what gattn computes in Python."""

import re

import numpy as np
import pytest
import torch
from looking import LAMP, readings, settle

import gattn
from gattn.graph import TokenGraph
from gattn.trace import AttentionTrace, Stack


def read(page, which):
    """The values of a table of numbers by position; text where there is none."""
    found = {}
    for name, value in readings(page, which).items():
        place = int(re.search(r" (\d+)(?: ·|$)", name).group(1))
        written = value.replace("−", "-").replace("< 0.001", "0").replace(",", "")
        found[place] = float(written) if re.fullmatch(r"-?[\d.]+", written) else value
    return found


@pytest.mark.parametrize("keep", [gattn.TopK(1), gattn.TopK(3), gattn.keep.All()])
def test_rollout_in_the_page_is_the_analysis(keep, look_at):
    trace = gattn.capture(LAMP, keep=keep)
    page = look_at(trace, "view=layered&token=12&level=4")
    expected = gattn.analysis.rollout(trace).sel(layer=3, query=12).to_numpy()
    found = read(page, "can have read of the input")
    assert set(found) == set(np.argsort(-expected)[: len(found)].tolist())
    for place, share in found.items():
        assert share == pytest.approx(expected[place], abs=2e-3)


def test_scores_of_0_are_read(look_at):
    q = torch.zeros(1, 6, 8)
    (head,) = gattn.attention_graphs(q, q, TokenGraph.causal(6), weight=gattn.ALiBi(1), scores=True)
    page = look_at(head, "weight=score&token=4")
    assert read(page, "reads")[4] == 0
    assert "its mass" not in page.locator("#numbers caption").first.text_content()
    assert "4) 0" in page.locator("#view-option").text_content()
