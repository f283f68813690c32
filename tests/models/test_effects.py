"""Effects and estimates of edits, against models whose attention is dense algebra of our own."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from dense_models import Dense
from scipy import stats
from torch.nn.functional import cross_entropy, kl_div

import gattn
from gattn import Cut, Scale, Swap, TokenGraph, TopK
from gattn.errors import CaptureError, ContractError, EditError, ModelError, SelectionError
from gattn.models.effects.runner import Runner
from gattn.models.run.functions import prepared

IDS = [5, 17, 42, 17, 8, 33]
OTHERS = [44, 2, 9, 30]
PLACE = ["stack", "layer", "head", "query", "key"]
TOKENS = {"target": 7, "other": 11}


DENSE = Dense()


def inputs_of(model):
    decoder = {"decoder_input_ids": OTHERS} if model.config.is_encoder_decoder else {}
    return {"input_ids": IDS} | decoder


def dense_logits(model, inputs, change=None):
    """Run a model on dense attention, without gattn."""
    batch = {name: torch.tensor(values)[None] for name, values in inputs.items()}
    return DENSE.run(model, batch | {"use_cache": False}, after=change)[0]


def cutting(*cuts, share=1.0):
    """Cut edges (stack, layer, head, query, key, renormalize), or move a share of the way there."""

    def change(call, attention):
        attention = attention.clone()
        for *place, head, query, key, renormalize in cuts:
            if tuple(place) != call.place:
                continue
            row = (0, head, query)
            cut = attention[row].clone()
            if renormalize:
                fewer = call.scores.clone()
                fewer[(*row, key)] = -torch.inf
                cut = call.share(fewer)[row]
            cut[key] = 0
            attention[row] = (1 - share) * attention[row] + share * cut
        return attention

    return change


def cutting_together(cuts):
    """Cut edges (stack, layer, head, query, key, renormalize) before or after normalizing."""

    def change(call, attention):
        own = [cut for cut in cuts if tuple(cut[:2]) == call.place]
        scores, attention = call.scores.clone(), attention.clone()
        for *_, head, query, key, renormalize in own:
            (scores if renormalize else attention)[0, head, query, key] = (
                -torch.inf if renormalize else 0.0
            )
        return call.share(scores) if own and own[0][-1] else attention

    return change


def difference(logits, position=-1):
    return float(logits[position, TOKENS["target"]] - logits[position, TOKENS["other"]])


def double(tiny, name):
    """Build a model that computes in float64 throughout: its norms in float32 are replaced."""
    model = tiny(name, "eager" if name == "gpt-oss" else "sdpa", torch.float64)
    if name == "gpt-oss":
        model.set_experts_implementation("eager")
    return with_own_norms(model)


def with_own_norms(model):
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")):
            module.forward = normed(module)
    return model


def normed(module):
    return lambda x: module.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def headed(tiny, kind, name="bert", **options):
    """Build a model of another kind, with random weights, the same ones each time."""
    config = tiny(name).config
    for option, value in options.items():
        setattr(config, option, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind)(config).eval()


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama")


# The oracle


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "t5"])
def test_the_oracle_is_the_model(tiny, name):
    model = double(tiny, name)
    batch = {key: torch.tensor(values)[None] for key, values in inputs_of(model).items()}
    with torch.no_grad():
        expected = model(**batch).logits[0]
    torch.testing.assert_close(dense_logits(model, inputs_of(model)), expected)


# Effects


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
    assert list(found) == ["edit", "kind", *places, "plain", "edited", "effect"]
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


# Metrics


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
        gattn.effect(IDS, [Cut(0)], model, tokenizer, metric="probability", target=target)
        for target in ("dog", dog)
    )
    assert by_text["effect"][0] == by_id["effect"][0] != 0


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
        ({"target": 3}, SelectionError, "does not take target.*probability"),
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


@pytest.mark.parametrize(
    ("edits", "error", "says"),
    [
        ([], EditError, "at least one"),
        ([[]], EditError, "at least one"),
        (Cut(layer=0), EditError, r"pass \[Cut\(layer=0\)\]"),
        ([3], EditError, "An edit is one of"),
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


# Estimates


def estimates(model, **options):
    given = {"sample": 0, "progress": False} | TOKENS | options
    return gattn.estimate(inputs_of(model), model, **given)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "t5"])
def test_estimates_are_the_slope_towards_the_cut(tiny, name, renormalize):
    model, step = double(tiny, name), 1e-5
    inputs = inputs_of(model)
    found = estimates(model, renormalize=renormalize)
    rng = np.random.default_rng(0)
    for _, group in found.groupby("stack"):
        for place in group.iloc[rng.permutation(len(group))[:12]].to_dict("records"):
            cut = (*(place[name] for name in PLACE), renormalize)
            ends = [
                difference(dense_logits(model, inputs, cutting(cut, share=share)))
                for share in (-step, step)
            ]
            slope = (ends[1] - ends[0]) / (2 * step)
            assert place["estimate"] == pytest.approx(slope, rel=1e-5, abs=1e-8), cut
    assert found["estimate"].abs().max() > 0.1
    assert len(found["stack"].unique()) == (3 if name == "t5" else 1)


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_the_only_edge_and_overwhelming_ones_are_as_precise(tiny, name):
    model, step = double(tiny, name), 1e-5
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 12
    found = estimates(model)
    single = estimates(model.float())
    strongest = found[found["attention"] > 1 - 1e-6]
    assert len(strongest) > 10
    assert (strongest["key"] != strongest["query"]).any()
    model.double()
    for edge in strongest.index:
        cut = (*found.loc[edge, PLACE], True)
        ends = [
            difference(dense_logits(model, {"input_ids": IDS}, cutting(cut, share=share)))
            for share in (-step, step)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        assert found["estimate"][edge] == pytest.approx(slope, rel=1e-4, abs=1e-7), cut
        assert single["estimate"][edge] == pytest.approx(slope, rel=5e-2, abs=1e-3), cut


def test_zeroed_values_add_up_to_the_output(tiny):
    model, rows = double(tiny, "llama"), []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, given: rows.append(given[0])
        )
        for layer in model.model.layers
    ]
    logits = model(torch.tensor([IDS])).logits[0, -1]
    gradients = torch.autograd.grad(logits[7] - logits[11], rows)
    for hook in hooks:
        hook.remove()
    found = estimates(model, renormalize=False)
    sums = found.groupby(["layer", "head", "query"])["estimate"].sum()
    for layer, (output, gradient) in enumerate(zip(rows, gradients, strict=True)):
        product = (output * gradient)[0].unflatten(-1, (4, -1)).sum(-1).detach()
        expected = -product.T.flatten().numpy()
        np.testing.assert_allclose(sums[layer], expected, atol=1e-10)
        assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize("renormalize", [True, False])
def test_divergences_are_estimated_to_second_order(tiny, renormalize):
    labels = {"0": 0, "1": 1, "2": 2}
    model = headed(tiny, "LlamaForSequenceClassification", "llama", num_labels=3, label2id=labels)
    model = with_own_norms(model.double())
    found = gattn.estimate(
        IDS, model, metric="kl", renormalize=renormalize, sample=0, progress=False
    )

    def divergence(cut, share):
        inputs = {"input_ids": IDS}
        rows = [dense_logits(model, inputs, change) for change in (None, cutting(cut, share=share))]
        one, other = (row.log_softmax(-1) for row in rows)
        return float(kl_div(other, one, reduction="sum", log_target=True))

    for place in found.nlargest(8, "estimate").to_dict("records"):
        cut = (*(place[name] for name in PLACE), renormalize)
        step = 1e-3
        near = (divergence(cut, step) + divergence(cut, -step)) / 2
        assert place["estimate"] == pytest.approx(near / step**2, rel=1e-4), cut
    assert (found["estimate"] >= 0).all()
    assert found["estimate"].max() > 1e-4


@pytest.mark.parametrize("position", [-1, [3, -2]])
def test_divergences_of_many_tokens_take_the_likeliest_one_by_one(tiny, position):
    model, step = double(tiny, "llama"), 1e-4
    rows = np.ravel(position).tolist()
    found = gattn.estimate(IDS, model, metric="kl", position=position, sample=0, progress=False)
    plain = dense_logits(model, {"input_ids": IDS})[rows].softmax(-1)
    for place in found.nlargest(6, "estimate").to_dict("records"):
        cut = (*(place[name] for name in PLACE), True)
        ends = [
            dense_logits(model, {"input_ids": IDS}, cutting(cut, share=share))[rows].softmax(-1)
            for share in (-step, step)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        total = 0.0
        for share, change in zip(plain, slope, strict=True):
            order = share.argsort(descending=True)
            parts, changes = (
                torch.cat([x[order[:9]], x[order[9:]].sum()[None]]) for x in (share, change)
            )
            total += float((changes**2 / parts).sum()) / 2 / len(rows)
        assert place["estimate"] == pytest.approx(total, rel=1e-4), cut
    exact = {"metric": "kl", "position": position, "sample": 10_000, "progress": False}
    assert gattn.estimate(IDS, model, **exact).attrs["rank_correlation"] > 0.97


@pytest.mark.parametrize("renormalize", [True, False])
def test_steps_average_gradients_on_the_way_to_no_edges(tiny, renormalize):
    model, kept = double(tiny, "llama"), {}
    found = estimates(model, steps=3, renormalize=renormalize)

    def keep(call, attention):
        kept[call.place] = attention, call.scores, call.value
        return attention

    dense_logits(model, {"input_ids": IDS}, keep)

    def measured(share, place, delta):
        def hook(number):
            def scale(module, given):
                x = share * given[0].clone()
                if number == place["layer"]:
                    x[0, place["query"]].view(4, -1)[place["head"]] += delta
                return (x,)

            return scale

        hooks = [
            layer.self_attn.o_proj.register_forward_pre_hook(hook(number))
            for number, layer in enumerate(model.model.layers)
        ]
        with torch.no_grad():
            number = difference(model(torch.tensor([IDS])).logits[0])
        for one in hooks:
            one.remove()
        return number

    rng, step = np.random.default_rng(0), 1e-5
    for place in found.iloc[rng.permutation(len(found))[:8]].to_dict("records"):
        attention, scores, value = kept["decoder", place["layer"]]
        row = attention[0, place["head"], place["query"]]
        cut = row.clone()
        if renormalize:
            fewer = scores[0, place["head"], place["query"]].clone()
            fewer[place["key"]] = -torch.inf
            cut = fewer.softmax(-1).nan_to_num(0.0)
        cut[place["key"]] = 0
        delta = (cut - row) @ value[0, place["head"]]
        slopes = [
            (measured(share, place, step * delta) - measured(share, place, -step * delta))
            / (2 * step)
            for share in (1, 2 / 3, 1 / 3)
        ]
        assert place["estimate"] == pytest.approx(np.mean(slopes), rel=1e-5, abs=1e-8)
    once = estimates(model, renormalize=renormalize)["estimate"]
    assert (found["estimate"] - once).abs().max() > 0.01


@pytest.mark.parametrize("renormalize", [True, False])
def test_the_largest_estimates_are_cut_together(tiny, renormalize):
    model = double(tiny, "llama")
    found = estimates(model, sample=5, renormalize=renormalize)
    order = np.argsort(-found["estimate"].abs().to_numpy(), kind="stable")
    plain = difference(dense_logits(model, {"input_ids": IDS}))
    for share, told in zip((0.01, 0.05, 0.2), found.attrs["sets"], strict=True):
        some = found.iloc[order[: max(round(share * len(found)), 1)]]
        cuts = [(*row, renormalize) for row in some[PLACE].itertuples(index=False)]
        effect = difference(dense_logits(model, {"input_ids": IDS}, cutting_together(cuts))) - plain
        assert told["share"] == share
        assert told["edges"] == len(cuts)
        assert told["effect"] == pytest.approx(effect, abs=1e-9)
        assert told["estimate"] == pytest.approx(some["estimate"].sum(), abs=1e-12)
        is_far = abs(told["estimate"] - effect) > 0.2 * abs(effect)
        assert is_far == (f"{share:.0%} (estimated" in "".join(found.attrs["notes"]))
    assert abs(effect) > 1e-3


def test_a_sample_is_of_the_cut_that_was_asked_for(tiny):
    model = double(tiny, "llama")
    found = estimates(model, sample=10, renormalize=False)
    assert found["effect"].notna().sum() == 10
    for place in found[found["sampled"]].to_dict("records"):
        cut = (*(place[name] for name in PLACE), False)
        edited = difference(dense_logits(model, {"input_ids": IDS}, cutting(cut)))
        plain = difference(dense_logits(model, {"input_ids": IDS}))
        assert place["effect"] == pytest.approx(edited - plain, abs=1e-9)


def test_a_sample_has_its_exact_effects(tiny):
    model = double(tiny, "llama")
    found = estimates(model, sample=30, seed=3)
    sampled = found[found["sampled"]]
    assert len(sampled) == 30
    for place in found[found["effect"].notna()].to_dict("records"):
        cut = (*(place[name] for name in PLACE), True)
        edited = difference(dense_logits(model, {"input_ids": IDS}, cutting(cut)))
        plain = difference(dense_logits(model, {"input_ids": IDS}))
        assert place["effect"] == pytest.approx(edited - plain, abs=1e-9)
    pairs = sampled["estimate"], sampled["effect"]
    assert found.attrs["correlation"] == pytest.approx(stats.pearsonr(*pairs).statistic)
    assert found.attrs["rank_correlation"] == pytest.approx(stats.spearmanr(*pairs).statistic)
    sizes = stats.spearmanr(*map(np.abs, pairs)).statistic
    assert found.attrs["size_correlation"] == pytest.approx(sizes)
    assert sizes != pytest.approx(found.attrs["rank_correlation"])
    only = (found["query"] == 0) & (found["key"] == 0)
    assert (found["effect"].notna() == found["sampled"] | only).all()
    assert found["effect"].notna().sum() > 30
    pd_testing_equal(estimates(model, sample=30, seed=3), found)
    other = estimates(model, sample=30, seed=4)
    assert (other["sampled"] != found["sampled"]).any()


def pd_testing_equal(one, other):
    assert one.equals(other)
    assert one.attrs == other.attrs


def test_estimates_of_faint_edges_come_near_their_effects(tiny):
    found = estimates(double(tiny, "llama"), sample=10_000)
    faint = found[(found["attention"] < 1e-2) & (found["estimate"].abs() > 1e-5)]
    assert found["sampled"].all()
    assert len(faint) > 10
    assert stats.pearsonr(faint["estimate"], faint["effect"]).statistic > 0.999


def test_large_estimates_are_drawn(tiny):
    model = double(tiny, "llama")
    ranks = []
    for seed in range(12):
        found = estimates(model, sample=4, seed=seed)
        sizes = found["estimate"].abs().rank(pct=True)
        ranks += sizes[found["sampled"]].tolist()
    # Half of the draws are even, with a mean rank of one half.
    assert 0.6 < np.mean(ranks) < 0.9
    assert min(ranks) < 0.25


def test_a_table_names_its_edges(tokenizer, tiny):
    model = tiny("llama")
    text = "the dog chased the cat"
    found = gattn.estimate(text, model, tokenizer, **TOKENS, sample=0, keep=TopK(2), layers=[1])
    trace = gattn.capture(text, model, tokenizer, keep=TopK(2), layers=[1])
    assert list(found) == [
        *("stack", "layer", "head", "query", "key", "query_token", "key_token"),
        *("attention", "estimate", "effect", "sampled"),
    ]
    for (layer, head), graph in trace.stacks["decoder"].items():
        rows = found[(found["layer"] == layer) & (found["head"] == head)]
        np.testing.assert_array_equal(rows["query"], graph.query)
        np.testing.assert_array_equal(rows["key"], graph.key)
        np.testing.assert_array_equal(rows["attention"], graph.attention)
        assert rows["key_token"].tolist() == [graph.tokens[key] for key in graph.key]
        assert rows["query_token"].tolist() == [graph.tokens[query] for query in graph.query]
    assert len(found) == sum(graph.graph.num_edges for graph in trace.heads())
    assert found["effect"].isna().all()
    assert np.isnan(found.attrs["correlation"])


def test_chosen_heads_have_the_same_estimates(tiny):
    model = double(tiny, "gpt-oss")
    whole = estimates(model).set_index(PLACE)["estimate"]
    for heads in ([2], [3, 0]):
        for renormalize in (True, False):
            expected = (
                whole
                if renormalize
                else estimates(model, renormalize=False).set_index(PLACE)["estimate"]
            )
            some = estimates(model, layers=[1], heads=heads, renormalize=renormalize)
            assert set(some["head"]) == set(heads)
            some = some.set_index(PLACE)["estimate"]
            np.testing.assert_allclose(some, expected[some.index], atol=1e-12)


def test_estimates_are_of_heads_at_some_places(tiny):
    model = tiny("llama")
    whole = estimates(model).set_index(PLACE)["estimate"]
    some = estimates(model, heads=[(1, 2), "0.3"])
    assert set(zip(some["layer"], some["head"], strict=True)) == {(1, 2), (0, 3)}
    some = some.set_index(PLACE)["estimate"]
    np.testing.assert_allclose(some, whole[some.index], atol=1e-6)


def test_only_what_is_kept_is_estimated(tiny):
    model = double(tiny, "llama")
    whole = estimates(model).set_index(PLACE)["estimate"]
    kept = estimates(model, keep=TopK(2), sample=5)
    assert len(kept) == 2 * 4 * (1 + 5 * 2)
    np.testing.assert_allclose(kept["estimate"], whole[list(kept.set_index(PLACE).index)])


def test_any_model_that_gives_gradients_will_do(tiny):
    model = tiny("llama").double()
    expected = estimates(model)["estimate"]
    assert all(parameter.grad is None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    np.testing.assert_allclose(estimates(model)["estimate"], expected, atol=1e-12)
    with torch.no_grad():
        np.testing.assert_allclose(estimates(model)["estimate"], expected, atol=1e-12)
    with torch.inference_mode():
        np.testing.assert_allclose(estimates(model)["estimate"], expected, atol=1e-12)
    # Llama's own eager attention takes the softmax in float32, in float64 models too.
    size = float(expected.abs().max())
    eager = estimates(tiny("llama", "eager").double())["estimate"]
    np.testing.assert_allclose(eager, expected, atol=100 * size * np.finfo("float32").eps)
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_near(tiny, dtype):
    expected = estimates(double(tiny, "llama"))["estimate"]
    found = estimates(tiny("llama", dtype=dtype), sample=5)["estimate"]
    assert stats.pearsonr(found, expected).statistic > 0.99
    np.testing.assert_allclose(found, expected, atol=0.05 * expected.abs().max())


def test_a_function_of_the_logits_is_estimated(tiny):
    model = double(tiny, "llama")
    expected = estimates(model)

    def metric(logits):
        return logits[-1, 7] - logits[-1, 11]

    options = {"metric": metric, "target": None, "other": None}
    found = estimates(model, **options)
    np.testing.assert_allclose(found["estimate"], expected["estimate"])
    with pytest.raises(ContractError, match="without a gradient"):
        estimates(model, **options | {"metric": lambda logits: logits[-1, 7].item()})


def test_what_cannot_be_estimated_is_refused(llama):
    with pytest.raises(SelectionError, match=r"second order.*leave out steps"):
        estimates(llama, metric="kl", target=None, other=None, steps=2)
    with pytest.raises(SelectionError, match="steps must be a whole number"):
        estimates(llama, steps=0)
    with pytest.raises(SelectionError, match="pass other="):
        estimates(llama, other=None)
    with pytest.raises(SelectionError, match="sample"):
        estimates(llama, sample=-1)
    with pytest.raises(SelectionError, match="head 4"):
        estimates(llama, heads=[4])
    with pytest.raises(SelectionError, match="layer 2"):
        estimates(llama, layers=[2])
    with gattn.edited(llama, Cut(layer=0)), pytest.raises(EditError, match="is edited"):
        estimates(llama)


def test_layers_in_front_of_an_edited_one_are_estimated(tiny):
    model = double(tiny, "llama")
    cut = ("decoder", 0, 1, 5, 5, True)
    with gattn.edited(model, Cut(*cut[1:5])):
        found = estimates(model, layers=[1], sample=4)
    plain = difference(dense_logits(model, {"input_ids": IDS}, cutting(cut)))
    for place in found[found["sampled"]].to_dict("records"):
        both = cutting(cut, (*(place[name] for name in PLACE), True))
        edited = difference(dense_logits(model, {"input_ids": IDS}, both))
        assert place["effect"] == pytest.approx(edited - plain, abs=1e-9)


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


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_without_edits_is_refused(llama, number):
    def broken(logits):
        return number

    with pytest.raises(ModelError, match=f"Without edits the broken is {number}"):
        gattn.effect(IDS, [Cut(0, 0)], llama, metric=broken, progress=False)


def test_an_edit_that_makes_the_metric_nan_is_an_error_that_names_it(llama):
    spoilt = Swap(1, 2, weight=lambda q, k, pairs: (q * k).sum(-1) * float("nan"))
    with pytest.raises(EditError, match=r"With Swap\(.*1.*2.*\) the KL divergence.* is NaN"):
        gattn.effect(IDS, [Cut(0, 0), spoilt], llama, progress=False)


def test_numbers_of_numpy_name_tokens_and_sizes(llama):
    plain = gattn.effect(IDS, [Cut(0, 0)], llama, metric="probability", target=7, progress=False)
    found = gattn.effect(
        IDS, [Cut(0, 0)], llama, metric="probability", target=np.int64(7),
        batch_size=np.int64(2), position=np.int64(-1), progress=False,
    )  # fmt: skip
    assert found["effect"].tolist() == plain["effect"].tolist()
