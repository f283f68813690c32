"""Code that decides by its attention, before this meets the values, what it then does."""

from __future__ import annotations

import pytest
import torch
from hand_written import ROOT, made

from gattn import Cut, edited
from gattn.errors import EditError

MOST = 0.9
DECIDES = {
    "one number": lambda a: bool(a.max() > MOST),
    "a number of Python": lambda a: a.max().item() > MOST,
    "less": lambda a: float(a.detach().max()) < MOST,
    "how many": lambda a: len((a > MOST).nonzero()) > 0,
}
LOGS = {
    "places": lambda a: (a > MOST).nonzero().sum(-1).tolist(),
    "where": lambda a: torch.stack(torch.where(a > MOST)).tolist(),
    "distinct": lambda a: a.unique().diff().sum().item(),
}


def only_the_last(attention):
    attention = attention.clone()
    attention[:, :, 4, :5] = 0
    return attention / attention.sum(-1, keepdim=True)


@pytest.mark.parametrize("decides", DECIDES.values(), ids=DECIDES)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_decision_that_an_edit_changes_is_refused(decides, layers, with_gradients):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        if decides(attention):
            v = v.flip(2)
        return attention @ v

    model, x = made(way, layers=layers)
    cut = Cut(layer=layers - 1, query=4, key=slice(0, 5))
    says = rf"blocks\.{layers - 1} decides by its attention what it does before"
    with torch.set_grad_enabled(with_gradients):
        with pytest.raises(EditError, match=says), edited(model, cut):
            model(x)
        plain = model(x)
        with edited(model, Cut(layer=layers - 1, query=4, key=3)):  # which changes no decision
            assert not torch.allclose(model(x), plain)


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("layers", [1, 2])
def test_logs_whose_sizes_attention_decides_decide_nothing(log, layers):
    kept = []

    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        kept.append(log(attention))
        return attention @ v

    model, x = made(way, layers=layers)
    cut = Cut(layer=layers - 1, query=4, key=slice(0, 5))
    with torch.no_grad(), edited(model, cut):
        found = model(x)
    attention, wanted = model.dense(
        x, lambda a, layer: only_the_last(a) if layer == layers - 1 else a
    )
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-12)
    one, other = (torch.tensor(a) for a in (kept[-1], log(attention[-1].detach())))
    torch.testing.assert_close(one, other)
