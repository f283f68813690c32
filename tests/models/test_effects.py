"""Effects of edits, against models whose attention is dense algebra of our own."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from effects_by_hand import (
    IDS,
    TOKENS,
    cutting,
    dense_logits,
    difference,
    double,
    inputs_of,
)
from torch.nn.functional import kl_div

import gattn
from gattn import Cut, Scale, Swap, TokenGraph
from gattn.errors import CaptureError, EditError, ModelError, SelectionError
from gattn.models.effects.runner import Runner
from gattn.models.run.functions import prepared


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama")


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "t5"])
def test_the_oracle_is_the_model(tiny, name):
    model = double(tiny, name)
    batch = {key: torch.tensor(values)[None] for key, values in inputs_of(model).items()}
    with torch.no_grad():
        expected = model(**batch).logits[0]
    torch.testing.assert_close(dense_logits(model, inputs_of(model)), expected)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "t5"])
def test_effects_are_those_of_dense_attention_without_the_edge(tiny, name, renormalize):
    model = double(tiny, name)
    inputs = inputs_of(model)
    stack = "cross" if name == "t5" else "decoder"
    places = [(stack, 0, 1, 3, 2), (stack, 1, 2, 3, 3), (stack, 1, 0, 2, 1), (stack, 0, 3, 0, 0)]
    cuts = [Cut(*place[1:], renormalize=renormalize, stack=stack) for place in places]
    found = gattn.effect(
        inputs, cuts, model, metric="logit_difference", **TOKENS, progress=False, position=3
    )
    plain = difference(dense_logits(model, inputs), 3)
    edited = [
        difference(dense_logits(model, inputs, cutting((*place, renormalize))), 3)
        for place in places
    ]
    np.testing.assert_allclose(found["plain"], plain, atol=1e-9)
    np.testing.assert_allclose(found["edited"], edited, atol=1e-9)
    np.testing.assert_allclose(found["effect"], np.array(edited) - plain, atol=1e-9)
    assert found["effect"].abs().max() > 1e-3


@pytest.mark.parametrize("position", [-1, 4])
def test_the_divergence_is_torchs(tiny, position):
    model = double(tiny, "llama")
    places = [("decoder", 0, 1, 4, 2), ("decoder", 1, 3, 4, 0), ("decoder", 1, 0, 5, 5)]
    found = gattn.effect(IDS, [Cut(*place[1:]) for place in places], model, position=position)
    plain = dense_logits(model, {"input_ids": IDS})[position].log_softmax(-1)
    for place, divergence in zip(places, found["effect"], strict=True):
        change = cutting((*place, True))
        edited = dense_logits(model, {"input_ids": IDS}, change)[position].log_softmax(-1)
        expected = float(kl_div(edited, plain, reduction="sum", log_target=True))
        assert divergence == pytest.approx(expected, abs=1e-12)
    assert (found["plain"] == 0).all()
    assert found["effect"].max() > 1e-5
    assert (found["effect"][2] > 1e-12) == (position == -1)


def test_an_edge_cut_everywhere_is_one_that_the_mask_forbids(tiny):
    model = double(tiny, "llama")
    mask = torch.full((1, 1, len(IDS), len(IDS)), -torch.inf, dtype=torch.float64).triu(1)
    mask[0, 0, 4, 1] = torch.finfo(torch.float64).min
    with torch.no_grad():
        logits = model(torch.tensor([IDS]), attention_mask=mask).logits[0, -1]
    cut = gattn.effect(IDS, [Cut(query=4, key=1)], model, metric="probability", target=3)
    assert cut["edited"][0] == pytest.approx(float(logits.softmax(-1)[3]), abs=1e-12)
    assert abs(cut["effect"][0]) > 1e-6


def test_edits_that_are_listed_together_apply_together(tiny):
    model = double(tiny, "gpt2")
    places = [("decoder", 0, 1, 3, 2), ("decoder", 1, 2, 5, 0)]
    cuts = [Cut(*place[1:]) for place in places]
    found = gattn.effect(
        IDS, [cuts, cuts[0], [cuts[1]]], model, metric="logit_difference", **TOKENS
    )
    logits = dense_logits(model, {"input_ids": IDS}, cutting(*((*place, True) for place in places)))
    assert found["edited"][0] == pytest.approx(difference(logits), abs=1e-9)
    assert len({round(x, 6) for x in found["edited"]}) == 3


EDITS = [
    Cut(layer=1, head=2, query=5, key=3),
    [Cut(layer=0, head=0), Scale(2.0, layer=1, head=1, key=0)],
    Cut(query=4, renormalize=False),
    Swap(layer=0, weight=gattn.Cosine()),
    gattn.Restrict(TokenGraph.window(6, 2), layer=1),
    Cut(layer=0, head=3, query=slice(2, 5), key=[0, 1]),
    Cut(layer=1, head=2, query=5, key=3),
]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_batches_agree_with_one_by_one(tiny, name):
    model = tiny(name)
    one_by_one = gattn.effect(IDS, EDITS, model, batch_size=1)
    for batch_size in (2, 7, None):
        batched = gattn.effect(IDS, EDITS, model, batch_size=batch_size)
        np.testing.assert_allclose(batched["effect"], one_by_one["effect"], atol=1e-5)
    assert (one_by_one["effect"] > 5e-3).sum() > 3
    assert one_by_one["effect"][0] == one_by_one["effect"][6]
    assert one_by_one["edit"].is_unique is False


def test_a_table_says_which_edit_and_where(llama):
    found = gattn.effect(IDS, EDITS, llama)
    places = ["stack", "layer", "head", "query", "key"]
    assert list(found) == ["edit", "kind", *places, "plain", "edited", "effect", "record"]
    assert found["edit"][0] == "Cut(layer=1, head=2, query=5, key=3)"
    assert found["edit"][1] == "Cut(layer=0, head=0), Scale(factor=2.0, layer=1, head=1, key=0)"
    assert found["edit"][2] == "Cut(query=4, renormalize=False)"
    assert found.loc[0, ["layer", "head", "query", "key"]].tolist() == [1, 2, 5, 3]
    assert found["layer"].isna().tolist() == [False, True, True, False, False, False, False]
    assert found["query"].isna().tolist() == [False, True, False, True, True, True, False]
    assert found["layer"].dtype == "Int64"


def test_memory_that_runs_out_makes_batches_smaller(llama):
    expected = gattn.effect(IDS, EDITS, llama, batch_size=1)
    sizes = []

    def limited(module, args, options):
        sizes.append(len(options["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with llama.register_forward_pre_hook(limited, with_kwargs=True):
        found = gattn.effect(IDS, EDITS, llama, progress=False)
    np.testing.assert_allclose(found["effect"], expected["effect"], atol=1e-5)
    assert sizes == [1, 7, 3, 1, 1, 1, 1, 1, 1, 1]

    def full(module, args, options):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with (
        llama.register_forward_pre_hook(full, with_kwargs=True),
        pytest.raises(torch.OutOfMemoryError),
    ):
        gattn.effect(IDS, EDITS, llama)


def test_a_longer_text_runs_in_smaller_batches(llama):
    sizes = [Runner(prepared([5] * n, llama), None).batch_size for n in (4, 40, 64)]
    assert sizes[0] >= sizes[1] >= sizes[2] >= 1
    llama.config.vocab_size, before = 1 << 17, llama.config.vocab_size
    try:
        sizes = [Runner(prepared([5] * n, llama), None).batch_size for n in (2, 40, 64)]
        assert all(one > other for one, other in pairwise(sizes))
        assert Runner(prepared([5] * 64, llama), [-1]).batch_size > sizes[-1]
    finally:
        llama.config.vocab_size = before


def test_images_have_effects(tiny, randn):
    model = tiny("vit of labels", dtype=torch.float64)
    image = {"pixel_values": randn(1, 3, 16, 16)}
    cuts = [Cut(layer=0, head=1, key=3), Cut(layer=1, query=0)]
    found = gattn.effect(image, cuts, model)
    for cut, effect in zip(cuts, found["effect"], strict=True):
        with torch.no_grad(), gattn.edited(model, cut):
            edited = model(**image).logits[0].log_softmax(-1)
        with torch.no_grad():
            plain = model(**image).logits[0].log_softmax(-1)
        expected = float(kl_div(edited, plain, reduction="sum", log_target=True))
        assert effect == pytest.approx(expected, abs=1e-12)
    table = gattn.estimate(image, model, target=1, other=0, sample=20)
    assert len(table) == 2 * 4 * 17 * 17
    assert table.attrs["correlation"] > 0.9


@pytest.mark.parametrize("patches", [1, 8])
def test_tensors_without_a_batch_are_not_repeated(tiny, patches):
    """Packed patches of an image, and positions (3, batch, tokens): each edit runs by itself."""
    model = tiny("llama")
    forward, seen = model.forward, []

    class Packed(type(model)):
        def forward(self, input_ids, pixel_values=None, position_ids=None, **options):
            seen.append([len(input_ids), tuple(pixel_values.shape), tuple(position_ids.shape)])
            shift = 1 + pixel_values.sum()
            return forward(input_ids, position_ids=position_ids[0] * shift, **options)

    model.__class__ = Packed
    positions = torch.arange(len(IDS)).expand(3 if patches == 1 else 1, 1, -1)
    inputs = {"input_ids": torch.tensor([IDS]), "position_ids": positions}
    inputs["pixel_values"] = torch.ones(patches, 4)
    cuts = [Cut(layer=0, head=h) for h in range(3)]
    found = gattn.effect(inputs, cuts, model, batch_size=3)
    assert seen == [[1, (patches, 4), tuple(positions.shape)]] * 4
    for cut, effect in zip(cuts, found["effect"], strict=True):
        assert effect == gattn.effect(inputs, [cut], model)["effect"][0] > 0


@pytest.mark.parametrize(
    ("edits", "error", "says"),
    [
        ([], EditError, "at least one"),
        ([[]], EditError, "at least one"),
        (Cut(layer=0), EditError, r"pass \[Cut\(layer=0\)\]"),
        ([3], EditError, "An edit is one of"),
        ("2.1", EditError, "then a list of edits, then the model; the edits are str"),
        ([Cut(layer=0), Cut(layer=0, query=2, key=4)], EditError, "query=2, key=4.*nothing to"),
        ([Cut(layer=0), Cut(layer=7)], EditError, "layer=7.*nothing to edit"),
        ([Cut(layer=0, head=4)], SelectionError, "head 4"),
    ],
)
@pytest.mark.parametrize("batch_size", [1, None])
def test_edits_that_edit_nothing_are_refused(llama, edits, error, says, batch_size):
    with pytest.raises(error, match=says):
        gattn.effect(IDS, edits, llama, batch_size=batch_size)


def test_models_without_an_answer_are_refused(tiny, llama):
    with pytest.raises(ModelError, match=r"no logits.*AutoModelForMaskedLM"):
        gattn.effect(IDS, [Cut(layer=0)], tiny("bert"))
    with pytest.raises(CaptureError, match="decoder_input_ids"):
        gattn.effect(IDS, [Cut(layer=0)], tiny("t5"))
    with pytest.raises(CaptureError, match="one sequence"):
        gattn.effect(torch.tensor([IDS, IDS]), [Cut(layer=0)], llama)
    model = tiny("llama").train()
    with pytest.raises(ModelError, match=r"eval\(\)"):
        gattn.effect(IDS, [Cut(layer=0)], model)


def test_models_that_show_only_their_softmax_have_effects(tiny):
    model = tiny("bloom", "eager")
    cut = Cut(layer=1, head=2, query=5, key=0)
    with torch.no_grad(), gattn.edited(model, cut):
        edited = model(torch.tensor([IDS])).logits[0, -1].softmax(-1)[4]
    found = gattn.effect(IDS, [cut, Cut(layer=0)], model, metric="probability", target=4)
    assert found["edited"][0] == pytest.approx(float(edited), abs=1e-6)
    assert abs(found["effect"][0]) > 1e-6


def test_effects_say_first_what_they_will_take(llama, monkeypatch, capsys):
    clock = iter(float(second) for second in range(100))
    monkeypatch.setattr("gattn.models.effects.effect.time.perf_counter", lambda: next(clock))
    gattn.effect(IDS, EDITS, llama)
    # The first four edits took a second.
    assert "effects: 7 x edit, about 2 s; for less time, try fewer edits" in capsys.readouterr().err
    gattn.effect(IDS, EDITS, llama, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("factor", [-1, -2.5, 0])
def test_scores_times_a_number_that_is_not_positive_show_no_future(tiny, factor):
    model = double(tiny, "gpt2")
    swap = Swap(1, weight=factor * gattn.ModelScore())

    def change(call, attention):
        is_edge = call.scores > -torch.inf
        scores = (factor * call.scores.masked_fill(~is_edge, 0)).masked_fill(~is_edge, -torch.inf)
        return scores.softmax(-1) if call.place == ("decoder", 1) else attention

    with torch.no_grad(), gattn.edited(model, swap):
        found = model(torch.tensor([IDS])).logits[0]
    expected = dense_logits(model, {"input_ids": IDS}, change)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    table = gattn.effect(IDS, [swap], model, metric="logit_difference", **TOKENS, progress=False)
    assert table["edited"][0] == pytest.approx(difference(expected), abs=1e-9)


def test_an_edit_that_makes_the_metric_nan_is_an_error_that_names_it(llama):
    spoilt = Swap(1, 2, weight=lambda q, k, pairs: (q * k).sum(-1) * float("nan"))
    with pytest.raises(EditError, match=r"With Swap\(.*1.*2.*\) the KL divergence.* is NaN"):
        gattn.effect(IDS, [Cut(0, 0), spoilt], llama, progress=False)
