"""Circuits: known ones are found, and what is measured of them is what dense algebra gives."""

import copy

import numpy as np
import pytest
import torch
from circuits_by_hand import (
    QUIET,
    TEXT,
    Patches,
    all_heads,
    edges_of,
    kept_alone,
    pairs,
    rows_of,
)
from planted_circuits import Induction
from torch import nn

import gattn
from gattn.analysis.circuits.measuring.testing import _drawn
from gattn.errors import CaptureError, EditError, ModelError, SelectionError

BEGIN = 0


SLOW = pytest.mark.slow


def answer(target, other):
    def difference(logits):
        return logits[-1, target] - logits[-1, other]

    return difference


@pytest.mark.parametrize("place", [(0, 0), (1, 0), (0, 2)])
def test_the_hand_built_induction_circuit_is_exactly_its_two_edges(place):
    model = Induction(6, 7, heads=3, place=place)
    ids = torch.tensor([[BEGIN, 3, 5, 2, 4, 3]])  # 5 followed 3
    found = gattn.circuit(
        lambda: model(ids)[0], model, metric=answer(5, 2), random=4, seed=1, **QUIET
    )
    assert edges_of(found) == {(0, place[0], 2, 1), (1, place[1], 5, 2)}
    assert found.faithfulness == pytest.approx(1, abs=1e-6)
    # Without the first edge, the second passes on 1/6 less; without both, 1/6 of 2 is left.
    losses = dict(zip(found.units()["layer"], found.units()["loss"], strict=True))
    assert losses[1] == pytest.approx(1, abs=1e-6)
    assert losses[0] == pytest.approx(5 / 6, abs=1e-6)
    assert found.minimality == losses[0]
    assert found.completeness == pytest.approx(7 / 6, abs=1e-6)
    assert set(found.edges) == {((0, 1), (1, 2)), ((1, 2), (2, 5))}
    assert {facts["kind"] for *_, facts in found.edges(data=True)} == {"attention"}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=SLOW) for n in (2, 3))])
def test_a_planted_circuit_is_found_among_random_heads(seed):
    generator = torch.Generator().manual_seed(seed)
    place = seed % 4, (2 * seed + 1) % 4
    model = Induction(8, 10, heads=4, place=place, noise=0.015, seed=seed)
    words = (1 + torch.randperm(6, generator=generator)).tolist()
    first = 1 + seed
    ids = torch.tensor([[BEGIN, *words, words[first - 1]]])
    found = gattn.circuit(
        lambda: model(ids)[0, -1],
        model,
        metric="logit_difference",
        target=words[first],
        other=7,
        random=4,
        **QUIET,
    )
    assert edges_of(found) == {(0, place[0], first + 1, first), (1, place[1], 7, first + 1)}
    assert found.faithfulness >= 0.9
    assert max(found.random) < 0.5


def test_the_embedded_model_completes_repeated_words_by_its_known_heads(river):
    heads = set(river.heads()[["layer", "head"]].itertuples(index=False, name=None))
    assert heads >= {(1, 1), (2, 0), (2, 1)}
    # Each of them at "lamp" 5: it reads "green" 4 before it, and "green" 12 reads it.
    assert edges_of(river) >= {(1, 1, 5, 4), (2, 0, 12, 5), (2, 1, 12, 5)}
    assert river.graph["all_edges"] == 16 * 13 * 14 // 2
    assert river.graph["edges"] <= 0.05 * river.graph["all_edges"]
    assert river.faithfulness >= 0.9
    assert river.minimality > 0
    assert len(river.random) == 20
    assert max(river.random) < 0.1


def test_measures_are_those_of_a_dense_model_with_masks(embedded, river):
    model, tokenizer = embedded
    batch = tokenizer(TEXT, return_tensors="pt") | {"use_cache": False}
    (target,) = tokenizer(" lamp", add_special_tokens=False)["input_ids"]
    every = {("decoder", *place, *ends) for place in all_heads(16) for ends in pairs(13)}
    circuit = set(rows_of(river))
    assert circuit <= every

    def value(rows):
        return float(kept_alone(model, batch, rows)[0, -1].double().softmax(-1)[target])

    empty, full = value([]), value(every)
    assert river.graph["empty"] == pytest.approx(empty, abs=1e-6)
    assert river.graph["full"] == pytest.approx(full, abs=1e-5)
    kept, rest = value(circuit), value(every - circuit)
    assert river.faithfulness == pytest.approx((kept - empty) / (full - empty), abs=1e-4)
    assert river.completeness == pytest.approx(1 - (rest - empty) / (full - empty), abs=1e-4)
    for row in river.table().itertuples():
        left = circuit - {("decoder", row.layer, row.head, row.query, row.key)}
        assert row.loss == pytest.approx((kept - value(left)) / (full - empty), abs=1e-4)
    with gattn.edited(model, river.only()), torch.no_grad():
        logits = model(**batch).logits[0, -1]
    assert float(logits.double().softmax(-1)[target]) == pytest.approx(kept, abs=1e-5)


def test_kl_needs_no_target_and_its_circuit_is_near_the_whole_models_answer(embedded):
    found = gattn.circuit("red green lamp red green", *embedded, keep=0.6, random=0, **QUIET)
    assert found.graph["full"] == 0
    kl = gattn.effect("red green lamp red green", [found.only()], *embedded, **QUIET)["edited"][0]
    assert 1 - kl / found.graph["empty"] == pytest.approx(found.faithfulness, abs=1e-4)
    assert 0.6 <= found.faithfulness < 1


def test_a_model_whose_answer_ignores_attention_gives_the_empty_circuit():
    model = Induction(6, 7)
    for layer in model.layers:
        layer.values.data.zero_()
    ids = torch.tensor([[BEGIN, 3, 5, 2]])
    found = gattn.circuit(lambda: model(ids)[0, -1].sum() + 3.0, model, **QUIET)
    assert len(found) == 0
    assert found.graph["edges"] == 0
    assert len(found.table()) == len(found.units()) == len(found.heads()) == 0
    assert np.isnan(found.minimality)
    assert "does not depend on attention" in found.notes[0]
    plain = model(ids)
    with gattn.edited(model, found.only()):
        assert torch.equal(model(ids), plain)
    found.draw()


def test_fewer_edges_than_needed_are_never_exceeded_and_it_says_how_far_it_got(embedded):
    found = gattn.circuit(
        TEXT, *embedded, target=" lamp", other=" river", max_edges=3, random=0, **QUIET
    )
    assert found.graph["edges"] == 3
    assert found.faithfulness < 0.9
    assert f"keeps {found.faithfulness:.3f}, not 0.9" in found.notes[0]


def test_a_search_that_is_out_of_time_gives_what_keeps_enough_so_far(embedded):
    found = gattn.circuit(TEXT, *embedded, target=" lamp", seconds=1e-3, random=0, **QUIET)
    assert found.faithfulness >= 0.9
    assert "not every unit was left out alone" in found.notes[0]


def test_random_sets_are_never_the_circuit_itself():
    profile, mask = np.array([0, 0, 0, 1, 1]), np.array([1, 0, 0, 1, 1], dtype=bool)
    drawn = _drawn(profile, mask, 40, np.random.default_rng(0))
    assert set(map(tuple, drawn[:, :3].astype(int).tolist())) == {(0, 1, 0), (0, 0, 1)}
    assert drawn[:, 3:].all()
    assert len(drawn) == 40
    assert len(_drawn(profile, profile == 1, 40, np.random.default_rng(0))) == 0


def test_a_circuit_that_no_other_set_is_like_says_that_there_is_no_random_one():
    model, x = Patches(), torch.ones(1, 1, 8, dtype=torch.float64)
    found = gattn.circuit(lambda: model(x).square().sum(), model, units="tokens", **QUIET)
    assert found.units()["key"].tolist() == [0]
    assert found.random == []
    assert any("there is no random one" in note for note in found.notes)


def test_less_than_asked_for_is_kept_within_rounding_only_with_a_note(embedded):
    model = copy.deepcopy(embedded[0]).bfloat16()
    text, keep = "a dog cat tree a dog cat tree a dog", 0.99
    found = gattn.circuit(text, model, embedded[1], target=" cat", keep=keep, random=0, **QUIET)
    said = f"keeps {found.faithfulness:.3f}, not {keep}: within rounding"
    assert any(said in note for note in found.notes) == (found.faithfulness < keep - 1e-3)
    assert any("load the model in float32" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep": 0}, "keep is a number above 0, at most 1, not 0"),
        ({"keep": 1.5}, "keep is a number"),
        ({"keep": "most"}, "keep is a number"),
        ({"units": "words"}, "units is one of edges, pairs, tokens, heads"),
        ({"max_edges": -1}, "max_edges must be a whole number"),
        ({"seconds": 0}, "seconds is a number above 0"),
        ({"random": -1}, "random, a number of sets, must be"),
        ({"other": " river"}, "does not take"),
    ],
)
def test_bad_requests_are_refused(embedded, given, said):
    with pytest.raises(SelectionError, match=said):
        gattn.circuit(TEXT, *embedded, **given, **QUIET)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"ablation": "The"}, EditError, "expected a text of as many tokens"),
        ({"ablation": TEXT + " lamp"}, EditError, "expected a text of as many tokens"),
        ({"ablation": []}, EditError, r"ablation=\[\] has no text"),
        ({"ablation": 0}, EditError, "ablation is 'zero', 'mean', a list of texts"),
        ({"metric": lambda logits: logits.sum() * torch.nan}, ModelError, "is nan"),
    ],
)
def test_what_gives_no_circuit_is_refused(embedded, given, error, said):
    with pytest.raises(error, match=said):
        gattn.circuit(TEXT, *embedded, **given, **QUIET)


def test_a_function_that_runs_the_model_twice_has_no_circuit(embedded):
    model, tokenizer = embedded
    batch = tokenizer("red green lamp", return_tensors="pt")
    twice = lambda: model(**batch).logits[0, -1, 5] + model(**batch).logits[0, -1, 6]  # noqa: E731
    with pytest.raises(CaptureError, match="a function that calls it once"):
        gattn.circuit(twice, model, **QUIET)


def test_other_messages_that_change_nothing_are_told_from_attention_that_does_not(embedded):
    found = gattn.circuit(TEXT, *embedded, ablation=TEXT, target=" lamp", **QUIET)
    assert str(found) == (
        "0 of 1,456 edges: other messages give the same answer, so the circuit is empty"
    )


def test_the_loss_of_all_tokens_has_a_circuit(embedded):
    model, tokenizer = embedded
    text = "red green lamp red green"
    found = gattn.circuit(text, model, tokenizer, metric="loss", keep=0.5, random=0, **QUIET)
    batch = tokenizer(text, return_tensors="pt") | {"use_cache": False}
    ids = batch["input_ids"][0]
    every = {("decoder", *place, *ends) for place in all_heads(16) for ends in pairs(len(ids))}

    def value(rows):
        return float(nn.functional.cross_entropy(kept_alone(model, batch, rows)[0, :-1], ids[1:]))

    empty, full, kept = (value(rows) for rows in ([], every, rows_of(found)))
    assert found.faithfulness == pytest.approx((kept - empty) / (full - empty), abs=1e-4)
    assert found.faithfulness >= 0.5


def test_a_corrupted_text_takes_the_place_of_what_is_left_out(embedded):
    model, tokenizer = embedded
    corrupted = "The river tall green house river tall green lamp river tall green"
    found = gattn.circuit(
        TEXT, model, tokenizer, target=" lamp", ablation=corrupted, random=0, **QUIET
    )
    assert edges_of(found) >= {(2, 0, 12, 5), (2, 1, 12, 5)}
    # What it reads of the first tokens is the same in both texts.
    assert not any(query < 5 for _, _, query, _ in edges_of(found))
    runs = [gattn.Only([], ablation=corrupted), found.only()]
    empty, kept = gattn.effect(
        TEXT, runs, model, tokenizer, metric="probability", target=" lamp", **QUIET
    )["edited"]
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-6)
    share = (kept - empty) / (found.graph["full"] - empty)
    assert found.faithfulness == pytest.approx(share, abs=1e-4)
    assert found.faithfulness >= 0.9


@pytest.mark.parametrize("ablation", ["mean", ["A dog sat on the mat.", "She gave him the book."]])
def test_mean_values_take_the_place_of_what_is_left_out(embedded, ablation, tmp_path):
    model, tokenizer = embedded
    found = gattn.circuit(
        TEXT, model, tokenizer, target=" lamp", keep=0.5, ablation=ablation, random=0, **QUIET
    )
    gattn.save(found, tmp_path / "circuit.graphml")
    only = gattn.load(tmp_path / "circuit.graphml").only()
    runs = [gattn.Ablate(ablation, what="values"), only]
    assert not any("later tokens" in note for note in found.notes)
    empty, kept = gattn.effect(
        TEXT, runs, model, tokenizer, metric="probability", target=" lamp", **QUIET
    )["edited"]
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-5)
    share = (kept - empty) / (found.graph["full"] - empty)
    assert found.faithfulness == pytest.approx(share, abs=1e-3)
    assert found.faithfulness >= 0.5
    assert len(found.units()) < 40
