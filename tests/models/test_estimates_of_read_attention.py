"""Estimates of models whose code copies its attention, keeps it, or ranks it before the values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_written import ROOT, made

import gattn
from gattn.errors import EditError

KEEPS = {
    "copy": lambda a: a.detach().clone(),
    "array": lambda a: a.detach().numpy().copy(),
    "form": lambda a: (a.detach().clone(), a.shape, a.dtype, a.requires_grad),
}
READS = {"mean": lambda a: a.mean(1), "number": lambda a: a.max().item()}


def kept_by(keep, change=lambda a: a):
    kept = []

    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        kept.append(keep(attention))
        return change(attention) @ v

    return way


def estimates(*ways):
    """Estimate what each edge is worth in a model, one way to attend for each layer."""
    model, x = made(ways[0], batch=1)
    for block, way in zip(model.blocks, ways, strict=False):
        block.way = way
    found = gattn.estimate(lambda: model(x)[0, 4].sum(), model=model, sample=2)
    return found.set_index(["layer", "head", "query", "key"]).estimate.sort_index()


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
def test_copies_change_no_estimate(keep):
    wanted = estimates(kept_by(lambda a: None))
    found = estimates(kept_by(keep))
    assert found.index.equals(wanted.index)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_divided", [False, True])
def test_attention_that_every_layer_ranks_is_estimated(is_divided):
    masks = []

    def left(a, mask):
        return a * mask / (a * mask).sum(-1, keepdim=True) if is_divided else a * mask

    def ranked(a):
        masks.append(torch.zeros_like(a).scatter(-1, a.topk(3, -1).indices, 1.0))
        return left(a, masks[-1])

    model, x = made(kept_by(lambda a: None, ranked), batch=1)
    with torch.no_grad():
        model(x)
    fixed = [kept_by(lambda a: None, lambda a, m=m: left(a, m)) for m in masks]
    found, wanted = estimates(kept_by(lambda a: None, ranked)), estimates(*fixed)
    assert found.index.equals(wanted.index)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_reads_attention_before_is_named_and_effects_are_exact(read):
    model, x = made(kept_by(read), batch=1)
    cut = gattn.Cut(layer=1, head=2, query=4, key=3)
    with pytest.raises(EditError, match=r"before it meets the values\. Gradients .*gattn\.effect"):
        gattn.estimate(lambda: model(x)[0, 4].sum(), model=model)
    found = gattn.effect(lambda: model(x)[0, 4].sum(), [cut], model=model)
    plain, _ = made(kept_by(lambda a: None), batch=1)
    wanted = gattn.effect(lambda: plain(x)[0, 4].sum(), [cut], model=plain)
    assert found.effect.item() == pytest.approx(wanted.effect.item(), abs=1e-12)
