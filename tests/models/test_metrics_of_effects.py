"""What effects are measured in: metrics, targets, labels and positions."""

import numpy as np
import pytest
import torch
from effects_by_hand import IDS, cutting, dense_logits, double, headed, inputs_of
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

import gattn
from gattn import Cut
from gattn.errors import ContractError, EditError, ModelError, SelectionError
from gattn.models.effects.metrics import Measure


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama")


def test_a_function_of_all_logits_is_a_metric(tiny):
    model = double(tiny, "gpt2")

    def loss(logits):
        assert logits.shape == (len(IDS), 60)
        return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(IDS[1:]))

    found = gattn.effect(IDS, [Cut(0, 1, 3, 2)], model, metric=loss)
    plain = float(loss(dense_logits(model, {"input_ids": IDS})))
    change = cutting(("decoder", 0, 1, 3, 2, True))
    edited = float(loss(dense_logits(model, {"input_ids": IDS}, change)))
    assert found["plain"][0] == pytest.approx(plain, abs=1e-12)
    assert found["effect"][0] == pytest.approx(edited - plain, abs=1e-12)
    by_number = gattn.effect(IDS, [Cut(0, 1, 3, 2)], model, metric=lambda x: float(x[2, 3]))
    assert by_number["effect"][0] == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
@pytest.mark.parametrize("position", [None, 1, [0, -2]])
def test_the_loss_is_torchs(tiny, name, position):
    model = double(tiny, name)
    inputs = inputs_of(model)
    ids = torch.tensor(inputs.get("decoder_input_ids", IDS))
    rows = range(len(ids) - 1) if position is None else np.arange(len(ids))[np.ravel(position)]

    def loss(logits):
        return float(cross_entropy(logits[list(rows)], ids[[row + 1 for row in rows]]))

    place = ("decoder", 0, 1, 1, 0)
    found = gattn.effect(
        inputs, [Cut(*place[1:], stack="decoder")], model, metric="loss", position=position
    )
    plain = loss(dense_logits(model, inputs))
    edited = loss(dense_logits(model, inputs, cutting((*place, True))))
    assert found["plain"][0] == pytest.approx(plain, abs=1e-12)
    assert found["effect"][0] == pytest.approx(edited - plain, abs=1e-12)
    assert abs(edited - plain) > 1e-6
    assert found.attrs["metric"] == "next-token loss in nats"


def test_the_loss_is_of_a_model_that_predicts_next_tokens(tiny, llama):
    with pytest.raises(SelectionError, match="a BertForMaskedLM on these"):
        gattn.effect(IDS, [Cut(0)], headed(tiny, "BertForMaskedLM"), metric="loss")
    with pytest.raises(SelectionError, match="let it return the loss"):
        gattn.effect(
            lambda: llama(torch.tensor([IDS])), [Cut(0)], llama, metric="loss", progress=False
        )


def test_several_targets_and_positions_are_summed_and_averaged(tiny):
    model = double(tiny, "llama")
    cut = ("decoder", 0, 1, 3, 2)
    logits = [
        dense_logits(model, {"input_ids": IDS}),
        dense_logits(model, {"input_ids": IDS}, cutting((*cut, True))),
    ]
    probability, apart = (
        gattn.effect(IDS, [Cut(*cut[1:])], model, position=[3, -1], **given)
        for given in (
            {"metric": "probability", "target": [7, 9]},
            {"metric": "logit_difference", "target": np.array([7, 9]), "other": (2, 3, 4)},
        )
    )
    for column, rows in zip(("plain", "edited"), logits, strict=True):
        rows = rows[[3, 5]]
        shares = rows.softmax(-1)
        both = float((shares[:, 7] + shares[:, 9]).mean())
        assert probability[column][0] == pytest.approx(both, abs=1e-12)
        difference = (rows[:, 7] + rows[:, 9]) / 2 - rows[:, 2:5].sum(-1) / 3
        assert apart[column][0] == pytest.approx(float(difference.mean()), abs=1e-12)
    kl = gattn.effect(IDS, [Cut(*cut[1:])], model, position=[3, -1])["effect"][0]
    one, other = (x[[3, 5]].log_softmax(-1) for x in logits)
    expected = kl_div(other, one, reduction="batchmean", log_target=True)
    assert kl == pytest.approx(float(expected), abs=1e-12)


def test_positions_may_be_texts(tiny):
    text = "the dog chased the cat"
    options = {"metric": "probability", "target": " dog", "progress": False}
    cut = [Cut(layer=1)]
    asked = [gattn.effect(text, cut, position=n, **options) for n in ("chased", -3)]
    assert asked[0]["plain"][0] == asked[1]["plain"][0]
    assert asked[0]["effect"][0] == asked[1]["effect"][0]
    with pytest.raises(SelectionError, match="No position 'zebra'"):
        gattn.effect(text, cut, position="zebra", **options)
    image = {"pixel_values": torch.zeros(1, 3, 8, 8)}
    model = tiny("llama")
    with pytest.raises(SelectionError, match="give position= as a number"):
        gattn.effect(image, cut, model, position="dog", metric="kl")


@pytest.mark.parametrize("returned", [torch.ones(2), "much", None])
def test_a_metric_returns_one_number(llama, returned):
    with pytest.raises(ContractError, match="one number"):
        gattn.effect(IDS, [Cut(0, 1)], llama, metric=lambda logits: returned)


def test_masked_language_models_have_effects(tiny):
    model = headed(tiny, "BertForMaskedLM")
    with torch.no_grad():
        plain = model(torch.tensor([IDS])).logits[0, 2].softmax(-1)[9]
        with gattn.edited(model, Cut(layer=0, head=1, query=2)):
            edited = model(torch.tensor([IDS])).logits[0, 2].softmax(-1)[9]
    found = gattn.effect(
        IDS, [Cut(layer=0, head=1, query=2)], model, metric="probability", target=9, position=2
    )
    assert found["plain"][0] == pytest.approx(float(plain), abs=1e-6)
    assert found["edited"][0] == pytest.approx(float(edited), abs=1e-6)
    assert abs(found["effect"][0]) > 1e-5


def test_classifiers_are_measured_on_their_labels(tiny):
    labels = {"bad": 0, "so so": 1, "good": 2}
    names = {number: name for name, number in labels.items()}
    model = headed(tiny, "BertForSequenceClassification", id2label=names, label2id=labels)
    with torch.no_grad(), gattn.edited(model, Cut(layer=0)):
        edited = model(torch.tensor([IDS])).logits[0]
    with torch.no_grad():
        plain = model(torch.tensor([IDS])).logits[0]
    cut = [Cut(layer=0)]
    found = gattn.effect(
        IDS, cut, model, metric="logit_difference", target="good", other="bad", position=50
    )
    assert found["plain"][0] == pytest.approx(float(plain[2] - plain[0]), abs=1e-6)
    assert found["edited"][0] == pytest.approx(float(edited[2] - edited[0]), abs=1e-6)
    expected = kl_div(edited.log_softmax(-1), plain.softmax(-1), reduction="sum")
    assert gattn.effect(IDS, cut, model)["effect"][0] == pytest.approx(float(expected), abs=1e-6)
    assert Measure("probability", 2, None, model, None).facts["metric"] == "probability of class 2"
    assert str(Measure("probability", 7, None, tiny("gpt2"), None)) == "probability of token 7"
    with pytest.raises(SelectionError, match="0 to 2"):
        gattn.effect(IDS, cut, model, metric="probability", target=3)


def test_tokens_are_named_by_text():
    text = "The dog chased the cat, and the cat chased the"
    model, tokenizer = gattn.load_model()
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in (" dog", " cat")]
    by_text = gattn.effect(
        text, [Cut(key="dog")], metric="logit_difference", target=" dog", other=" cat"
    )
    by_id = gattn.effect(
        text,
        [Cut(key="dog")],
        model,
        tokenizer,
        metric="logit_difference",
        target=ids[0][0],
        other=ids[1][0],
    )
    np.testing.assert_allclose(by_text["effect"], by_id["effect"])
    assert abs(by_text["effect"][0]) > 0.1
    shown = gattn.effect(
        text, [Cut(key="␣dog")], metric="logit_difference", target="␣dog", other="␣cat"
    )
    np.testing.assert_array_equal(shown["effect"], by_text["effect"])
    with pytest.raises(SelectionError, match=r"one token.*splits it into \d.*'Ġ"):
        gattn.effect(text, [Cut(layer=0)], metric="probability", target=" dog chased")


def test_a_text_that_the_vocabulary_lacks_is_no_target(tiny, tokenizer):
    model = tiny("llama")

    def effect(target):
        return gattn.effect(
            "the dog", [Cut(layer=0)], model, tokenizer, metric="probability", target=target
        )

    unknown = "☃"
    assert tokenizer(unknown, add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]
    with pytest.raises(
        SelectionError, match=r"'☃' is not in the vocabulary.* turns it into '\[UNK\]'"
    ):
        effect(unknown)
    by_text, by_id = effect("[UNK]"), effect(tokenizer.unk_token_id)
    np.testing.assert_array_equal(by_text["effect"], by_id["effect"])


def test_a_text_is_a_label_only_where_logits_are_of_labels(tiny, tokenizer):
    model = tiny("llama")
    model.config.label2id = {"dog": 0, "cat": 1}
    dog = tokenizer.convert_tokens_to_ids("dog")
    by_text, by_id = (
        gattn.effect(
            [5, 7, 12, 7, 8, 3], [Cut(0)], model, tokenizer, metric="probability", target=target
        )
        for target in ("dog", dog)
    )
    assert by_text["effect"][0] == by_id["effect"][0] != 0


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"metric": "entropy"}, SelectionError, "one of.*kl.*'entropy'"),
        ({"metric": "loss", "target": 3}, SelectionError, "does not take target"),
        ({"metric": "loss", "position": -1}, SelectionError, "last of 6 has none"),
        ({"metric": "loss", "position": [0, 5]}, SelectionError, "last of 6 has none"),
        ({"metric": "probability", "target": []}, SelectionError, "pass target="),
        ({"metric": "probability", "target": [3, 3]}, SelectionError, "names a token twice"),
        ({"position": []}, SelectionError, "list of these, not \\[\\]"),
        ({"position": [0, 6]}, SelectionError, "No position 6"),
        ({"metric": "kl", "target": 3}, SelectionError, "does not take target.*probability"),
        ({"other": 3}, SelectionError, "does not take other.*logit_difference"),
        ({"metric": "probability"}, SelectionError, "pass target="),
        ({"metric": "logit_difference", "target": 3}, SelectionError, "pass other="),
        ({"metric": "probability", "target": 60}, SelectionError, "0 to 59"),
        ({"metric": "probability", "target": -1}, SelectionError, "0 to 59"),
        ({"metric": "probability", "target": "cat"}, ModelError, "tokenizer="),
        ({"position": 6}, SelectionError, r"No position 6.*0 \.\. 5"),
        ({"position": -7}, SelectionError, "No position -7"),
        ({"position": "last"}, SelectionError, "No position 'last'"),
        ({"position": 1.5}, SelectionError, "whole number or a token's text"),
        ({"position": True}, SelectionError, "whole number or a token's text.*not True"),
        ({"metric": "logit_difference", "target": 3, "other": 3}, SelectionError, "both are 3"),
        (
            {"metric": "logit_difference", "target": [3, 5], "other": [7, 5]},
            SelectionError,
            "both name the token 5",
        ),
        ({"batch_size": 0}, EditError, "whole number ≥ 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(llama, options, error, says):
    with pytest.raises(error, match=says):
        gattn.effect(IDS, [Cut(layer=0)], llama, **options)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_without_edits_is_refused(llama, number):
    def broken(logits):
        return number

    with pytest.raises(ModelError, match=f"Without edits, broken is {number}"):
        gattn.effect(IDS, [Cut(0, 0)], llama, metric=broken, progress=False)


def test_numbers_of_numpy_name_tokens_and_sizes(llama):
    plain = gattn.effect(IDS, [Cut(0, 0)], llama, metric="probability", target=7, progress=False)
    found = gattn.effect(
        IDS, [Cut(0, 0)], llama, metric="probability", target=np.int64(7),
        batch_size=np.int64(2), position=np.int64(-1), progress=False,
    )  # fmt: skip
    assert found["effect"].tolist() == plain["effect"].tolist()


@pytest.mark.parametrize(
    ("named", "metric"),
    [({"target": 3}, "probability"), ({"target": 3, "other": [4, 5]}, "logit_difference")],
)
def test_named_tokens_say_which_metric_is_meant(llama, named, metric):
    edits = [Cut(0, 1, 3, 2)]
    found, wanted = (
        gattn.effect(IDS, edits, llama, **given, **named) for given in ({}, {"metric": metric})
    )
    assert found.attrs == wanted.attrs
    np.testing.assert_array_equal(found["effect"], wanted["effect"])


def test_an_estimate_that_says_not_what_to_measure_names_no_metric():
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 3, 8)
    with pytest.raises(SelectionError, match="Say what to measure: pass target=") as told:
        gattn.estimate(lambda: model(x, x, x)[0][0, -1], model)
    assert "metric='logit_difference'" not in str(told.value)
