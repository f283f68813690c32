"""Predicted changes of attention beside measured ones."""

import math

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError, SelectionError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
SIDES = ("query", "key")


def attention(model, head=0):
    return torch.as_tensor(gattn.capture(IDS, model)[1, head].to_dense()).double()


@pytest.mark.parametrize("name", ["gpt2", "mistral", "gemma2"])
def test_measured_changes_are_those_of_edits_by_name(tiny, name):
    model = tiny(name, "eager" if name == "gemma2" else "sdpa", dtype=torch.float64)
    plain = attention(model, 1)
    found = gattn.why(IDS, model, layer=1, head=1, query=[5, 8], key=[2, 4], measure=4)
    for side in SIDES:
        table = found.without(side)
        assert table["measured"].notna().sum() == 4
        some = table[table["measured"].notna()]
        assert (
            some["change"].abs().min()
            >= table["change"]
            .abs()
            .drop(some.index)
            .drop(table.index[table["part"] == "bias"], errors="ignore")
            .max()
        )
        for part, measured in zip(some["part"], some["measured"], strict=True):
            with gattn.edited(model, gattn.Without(part, side=side, layer=1, head=1)):
                change = (attention(model, 1) - plain)[list(found.query)][:, [2, 4]].sum()
            mean = float(change) / len(found.query)
            assert measured == pytest.approx(mean, abs=1e-6)
        assert (some["measured"] - some["change"]).abs().max() > 1e-4  # Norms feel it.


def test_without_norms_predictions_hold(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    model.transformer.h[1].ln_1 = nn.Identity()
    for options in ({"query": 8, "key": [1, 3]}, {"query": [4, 8]}, {}):
        found = gattn.why(IDS, model, layer=1, head=0, measure=99, **options)
        for side in SIDES:
            table = found.without(side).set_index("part")
            assert math.isnan(table["measured"]["bias"])
            table = table.drop("bias")
            assert table["measured"].to_numpy() == pytest.approx(
                table["change"].to_numpy(), abs=1e-8
            )
            assert table["change"].abs().max() > 1e-3


def test_parts_of_ones_own_are_measured_as_vectors(tiny):
    """Two features and the error, which the others leave."""
    model = tiny("gpt2", dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(2, 32, generator=generator, dtype=torch.double)
    active = torch.rand(9, 2, generator=generator, dtype=torch.double)
    features = gattn.Features(directions, active, names=["lamp", "river"])
    own = {n: active[:, [k]] * directions[k] for k, n in enumerate(["lamp", "river"])}
    plain = attention(model)
    for parts in (features, own):
        found = gattn.why(IDS, model, layer=1, head=0, query=8, key=3, parts=parts, measure=9)
        for side in SIDES:
            measured = found.without(side).set_index("part")["measured"]
            for name, vectors in own.items():
                edit = gattn.Without({name: vectors}, side=side, layer=1, head=0)
                with gattn.edited(model, edit):
                    change = (attention(model) - plain)[8, 3]
                assert measured[name] == pytest.approx(float(change), abs=1e-8)
                assert abs(change) > 1e-4
            assert math.isfinite(measured["error"])


def test_what_one_head_read_of_one_token_is_measured(tiny):
    """The parts of a head, split by the token that it read, sum to the head's."""
    model = tiny("gpt2", dtype=torch.float64)
    model.transformer.h[1].ln_1 = nn.Identity()
    found = gattn.why(IDS, model, layer=1, head=0, query=8, key=3, split="0.1", measure=99)
    table = found.without("key").set_index("part")
    some = table[[name.startswith("0.1 from") for name in table.index]]
    assert len(some) >= 4
    assert some["measured"].to_numpy() == pytest.approx(some["change"].to_numpy(), abs=1e-8)


def test_a_function_is_run_once_for_each_part(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    ids = torch.tensor([IDS])
    found, expected = (
        gattn.why(what, model, layer=1, head=0, query=8, key=3, measure=2)
        for what in (lambda: model(ids, use_cache=False), IDS)
    )
    for side in SIDES:
        one, other = (x.without(side)["measured"].dropna() for x in (found, expected))
        assert one.to_numpy() == pytest.approx(other.to_numpy(), abs=1e-9)


def test_nothing_is_measured_unless_it_is_asked_for(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    found = gattn.why(IDS, model, layer=1, head=0, query=8, key=3)
    assert "measured" not in found.without("key")
    with pytest.raises(SelectionError, match="measure"):
        gattn.why(IDS, model, layer=1, head=0, measure=-1)
    with (
        gattn.edited(model, gattn.Scale(0.5, layer=1, head=0)),
        pytest.raises(CaptureError, match="not the softmax"),
    ):
        gattn.why(IDS, model, layer=1, head=0, query=8, key=3, measure=1)
