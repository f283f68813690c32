"""Functions that run a model, in place of a text: the same numbers, and whatever they return."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from plain_models import KINDS, built
from torch.nn.functional import cross_entropy, kl_div

import gattn
from gattn import Cut, Scale, analysis
from gattn.errors import CaptureError, ContractError, EditError, ModelError, SelectionError

IDS = [5, 17, 42, 17, 8, 33]
OTHERS = [44, 2, 9, 30]
BATCH = torch.tensor([IDS])
CUTS = [
    Cut(layer=0, head=1, query=5, key=2),
    [Cut(layer=1, head=0), Scale(2.0, layer=0, head=3, key=0)],
    Cut(key=-2),
]
EVERY = [Cut(layer=1, head=h, query=5, key=k) for h in range(4) for k in range(6)]
NAMED = {"metric": "logit_difference", "target": 7, "other": 11}
effect = partial(gattn.effect, progress=False)
estimate = partial(gattn.estimate, progress=False)


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama", dtype=torch.float64)


@pytest.fixture(scope="module")
def openai():
    """Build a model that shows only its softmax, and computes in float64 throughout."""
    sizes = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return transformers_model("OpenAIGPT", "LMHeadModel", **sizes, initializer_range=0.3)


def transformers_model(family, kind, **sizes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager")
        return getattr(transformers, f"{family}{kind}")(config).double().eval()


def logits(model, *edits, ids=IDS):
    with torch.no_grad():
        if not edits:
            return model(torch.tensor([ids])).logits[0]
        with gattn.edited(model, *edits):
            return model(torch.tensor([ids])).logits[0]


FORMS = {
    "an output": lambda model: model(BATCH),
    "a batch of one": lambda model: model(BATCH).logits,
    "all tokens": lambda model: model(BATCH).logits[0],
    "classes": lambda model: model(BATCH).logits[0, -1],
    "one row": lambda model: model(BATCH).logits[:, -1],
    "logarithms": lambda model: model(BATCH).logits[0].log_softmax(-1),
}


# Effects


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"metric": "probability", "target": 9}, NAMED])
def test_a_function_has_the_effects_of_its_text(llama, form, options):
    of_text = effect(IDS, CUTS, llama, **options)
    of_function = effect(lambda: FORMS[form](llama), CUTS, model=llama, **options)
    np.testing.assert_allclose(of_function["effect"], of_text["effect"], atol=1e-12)
    assert of_text["effect"].abs().min() > 1e-6
    assert of_function.attrs == of_text.attrs
    assert list(of_function["key"]) == list(of_text["key"])


@pytest.mark.parametrize("name", ["t5", "vit of labels", "openai"])
def test_a_function_may_run_any_model(tiny, openai, name, randn):
    model = openai if name == "openai" else tiny(name, "sdpa", torch.float64)
    inputs = {"input_ids": BATCH}
    if name == "t5":
        inputs["decoder_input_ids"] = torch.tensor([OTHERS])
    if name.startswith("vit"):
        inputs = {"pixel_values": randn(1, 3, 16, 16)}
    stack = "cross" if name == "t5" else None
    cuts = [Cut(layer=0, head=1, query=3, stack=stack), Cut(layer=1, key=0, stack=stack)]
    of_inputs = effect(inputs, cuts, model)
    of_function = effect(lambda: model(**inputs), cuts, model)
    np.testing.assert_allclose(of_function["effect"], of_inputs["effect"], atol=1e-12)
    assert of_inputs["effect"].max() > 1e-7


def test_positions_count_real_tokens_of_an_output_and_rows_of_logits(llama):
    padded = {"input_ids": torch.tensor([[0, 0, *IDS]]), "attention_mask": torch.ones(1, 8).long()}
    padded["attention_mask"][0, :2] = 0
    padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp_min(0)
    expected = effect(IDS, CUTS[:1], llama, position=5)["effect"]
    for function, position in (
        (lambda: llama(**padded), 5),
        (lambda: llama(**padded).logits[0], 7),
    ):
        found = effect(function, CUTS[:1], llama, position=position)
        np.testing.assert_allclose(found["effect"], expected, atol=1e-12)
        assert found.attrs["tokens"] == [str(one) for one in IDS]


def test_a_number_is_its_own_metric(llama):
    def loss():
        return cross_entropy(llama(BATCH).logits[0, :-1], BATCH[0, 1:])

    edited = [
        float(cross_entropy(logits(llama, *edits)[:-1], BATCH[0, 1:]))
        for edits in ([CUTS[0]], CUTS[1], [CUTS[2]])
    ]
    plain = float(cross_entropy(logits(llama)[:-1], BATCH[0, 1:]))
    forms = [
        loss,
        lambda: loss().reshape(1, 1),
        lambda: loss().item(),
        lambda: loss().numpy(),
        lambda: np.float64(loss()),
    ]
    for form in forms:
        found = effect(form, CUTS, llama)
        np.testing.assert_allclose(found["plain"], plain, atol=1e-13)
        np.testing.assert_allclose(found["edited"], edited, atol=1e-13)
    assert effect(loss, CUTS, llama).attrs["metric"] == "loss"
    assert effect(forms[2], CUTS, llama).attrs["metric"] == "the number returned"
    count = effect(lambda: (llama(BATCH).logits[0].argmax(-1) == 7).sum().float(), CUTS, llama)
    assert count["plain"].dtype == np.float64


@pytest.mark.parametrize(
    "whole",
    [
        lambda logits: logits[-1].argmax(),
        lambda logits: int(logits[-1].argmax()),
        lambda logits: np.array(int(logits[-1].argmax())),
        lambda logits: logits[-1, 0] > 0,
        lambda logits: bool(logits[-1, 0] > 0),
    ],
)
def test_whole_numbers_are_no_metric(llama, whole):
    said = "a whole number or a truth value.*: return what they are taken of"
    with pytest.raises(ContractError, match=said):
        effect(IDS, CUTS[:1], llama, metric=whole)
    with pytest.raises(ContractError, match=said):
        gattn.circuit(lambda: llama(BATCH).logits[0], llama, metric=whole, progress=False)


@pytest.mark.parametrize(
    "kind", [lambda x: x.to(torch.complex64), lambda x: np.complex64(x), lambda x: complex(x)]
)
def test_complex_numbers_are_no_metric(llama, kind):
    with pytest.raises(ContractError, match="a complex number: return a real one"):
        effect(IDS, CUTS[:1], llama, metric=lambda logits: kind(logits[-1, 0]))


def test_a_function_that_returns_a_whole_number_is_refused(llama):
    with pytest.raises(ContractError, match=r"The metric is [0-9]+, a whole number"):
        effect(lambda: llama(BATCH).logits[0, -1].argmax(), CUTS[:1], llama)
    with pytest.raises(ContractError, match=r"The metric is [0-9]+, a whole number"):
        gattn.circuit(lambda: llama(BATCH).logits[0, -1].argmax(), llama, progress=False)


def test_a_run_without_a_name_is_in_the_middle_of_a_sentence(llama):
    with pytest.raises(SelectionError, match="but the run returns one number"):
        effect(lambda: llama(BATCH).logits[0, -1, 3], CUTS[:1], llama, metric="kl")
    with pytest.raises(SelectionError, match="but the run runs on inputs of its own"):
        effect(lambda: llama(BATCH).logits[0], CUTS[:1], llama, metric="loss")


@pytest.mark.parametrize("place", [(2, 1), [2, 1], (np.int64(2), np.int64(1))])
def test_a_place_is_no_edit_but_is_told_how_to_be_one(llama, place):
    with pytest.raises(EditError, match=r"not \(|not \[") as error:
        effect(IDS, [place], llama)
    assert str(error.value).endswith("write an edit of this head, such as gattn.Cut((2, 1)).")
    with pytest.raises(EditError, match=r"of this layer, such as gattn.Cut\(layer=2\)"):
        effect(IDS, [2], llama)


def test_a_metric_is_given_whatever_the_function_returns(llama):
    def metric(answer):
        assert set(answer) == {"last", "sum"}
        return answer["last"][3] * answer["sum"]

    def run():
        found = llama(BATCH).logits[0]
        return {"last": found[-1], "sum": found.sum()}

    found = effect(run, CUTS[:1], llama, metric=metric)
    edited, plain = logits(llama, CUTS[0]), logits(llama)
    assert found["plain"][0] == pytest.approx(float(plain[-1, 3] * plain.sum()), abs=1e-12)
    assert found["edited"][0] == pytest.approx(float(edited[-1, 3] * edited.sum()), abs=1e-12)
    assert found.attrs["metric"] == "metric"


def test_each_call_is_edited(llama):
    cut = Cut(layer=1, head=2, key=0)

    def gap():
        return llama(BATCH).logits[0, -1, 7] - llama(torch.tensor([OTHERS])).logits[0, -1, 7]

    def by_hand(*edits):
        return float(logits(llama, *edits)[-1, 7] - logits(llama, *edits, ids=OTHERS)[-1, 7])

    found = effect(gap, [cut], llama)
    assert found["plain"][0] == pytest.approx(by_hand(), abs=1e-12)
    assert found["edited"][0] == pytest.approx(by_hand(cut), abs=1e-12)
    assert found.attrs["tokens"] == []


def test_a_batch_runs_with_each_edit_in_all_of_its_sequences(llama):
    batch = torch.tensor([IDS, IDS[::-1]])
    found = effect(lambda: llama(batch).logits[1], CUTS[:1], llama)
    expected = effect(IDS[::-1], CUTS[:1], llama)
    np.testing.assert_allclose(found["effect"], expected["effect"], atol=1e-12)
    mean = effect(lambda: llama(batch).logits[:, -1, 7].mean(), CUTS[:1], llama)
    rows = [logits(llama, CUTS[0], ids=ids)[-1, 7] for ids in (IDS, IDS[::-1])]
    assert mean["edited"][0] == pytest.approx(float(sum(rows) / 2), abs=1e-12)


def test_the_divergence_is_torchs(llama):
    found = effect(lambda: llama(BATCH).logits[0, 3], CUTS[:1], llama)
    one, other = (x[3].log_softmax(-1) for x in (logits(llama), logits(llama, CUTS[0])))
    expected = float(kl_div(other, one, reduction="sum", log_target=True))
    assert found["effect"][0] == pytest.approx(expected, abs=1e-13)


def test_answers_that_are_written_into_again_are_kept(llama):
    answer = torch.zeros(60, dtype=torch.float64)
    found = effect(lambda: answer.copy_(llama(BATCH).logits[0, -1]), CUTS, llama)
    np.testing.assert_allclose(found["effect"], effect(IDS, CUTS, llama)["effect"], atol=1e-12)


def test_other_edits_may_be_open(llama):
    around = Cut(layer=0, head=0)
    with gattn.edited(llama, around):
        found = effect(lambda: llama(BATCH), CUTS[:1], llama)
    one, other = (
        x[-1].log_softmax(-1) for x in (logits(llama, around), logits(llama, around, CUTS[0]))
    )
    expected = float(kl_div(other, one, reduction="sum", log_target=True))
    assert found["effect"][0] == pytest.approx(expected, abs=1e-13)
    assert found.attrs["edits"] == [repr(around)] or len(found.attrs["edits"]) == 1


def test_nothing_stays_on_the_model_or_in_autograd(llama):
    seen = []

    def run():
        found = llama(BATCH).logits[0]
        seen.append(found.requires_grad)
        return found

    effect(run, CUTS[:1], llama)
    assert seen == [False] * 3
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in llama.modules())


# Estimates


def slopes(model, number, table, renormalize, step=1e-6):
    """Differentiate along each cut, by scaling the row's attention on the way there."""
    found = []
    for edge in table.to_dict("records"):
        place = {name: edge[name] for name in ("layer", "head", "query")} | {"stack": edge["stack"]}
        ends = []
        for share in (-step, step):
            rest = 1.0
            if renormalize:
                rest += share * edge["attention"] / (1 - edge["attention"])
            one = Scale((1 - share) / rest, key=edge["key"], **place)
            with torch.no_grad(), gattn.edited(model, Scale(rest, **place), one):
                ends.append(float(number()))
        found.append((ends[1] - ends[0]) / (2 * step))
    return np.array(found)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "openai", "deberta"])
def test_estimates_of_a_number_are_its_slopes(tiny, openai, name, renormalize):
    """Models with their vectors seen, with their softmax only, and with heads in the batch."""
    if name == "deberta":
        sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "intermediate_size": 48, "initializer_range": 0.3}
        model = transformers_model("DebertaV2", "ForMaskedLM", **sizes)
    else:
        model = openai if name == "openai" else tiny(name, dtype=torch.float64)

    def loss():
        return cross_entropy(model(BATCH).logits[0, :-1], BATCH[0, 1:])

    found = estimate(loss, model=model, sample=0, renormalize=renormalize)
    some = found[found["attention"] < 0.999].sample(25, random_state=0)
    expected = slopes(model, loss, some, renormalize)
    np.testing.assert_allclose(some["estimate"], expected, rtol=1e-5, atol=1e-8)
    assert np.abs(expected).max() > 1e-3


def test_a_function_has_the_estimates_of_its_text(llama):
    of_text = estimate(IDS, llama, target=7, other=11, sample=6)
    of_function = estimate(lambda: llama(BATCH), llama, target=7, other=11, sample=6)
    np.testing.assert_array_equal(of_function["estimate"], of_text["estimate"])
    np.testing.assert_allclose(of_function["effect"], of_text["effect"], atol=1e-12)
    assert list(of_function["query_token"]) == list(of_text["query_token"])
    words = [f"word {n}" for n in range(BATCH.shape[1])]
    named = estimate(lambda: llama(BATCH), llama, target=7, other=11, sample=0, tokens=words)
    for side in ("query", "key"):
        assert list(named[f"{side}_token"]) == [words[n] for n in named[side]]
    assert named.attrs["tokens"] == words


def test_overwhelming_edges_of_a_softmax_alone_are_as_precise():
    sizes = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = transformers_model("OpenAIGPT", "LMHeadModel", **sizes, initializer_range=0.3)
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :64] *= 30
    found = estimate(IDS, model, target=7, other=11, sample=0)
    strongest = found[(found["attention"] > 1 - 1e-4) & (found["attention"] < 1)]
    assert len(strongest) > 5
    step = 1e-5
    for edge in strongest.to_dict("records"):
        with (
            torch.no_grad(),
            gattn.edited(model, Cut(edge["layer"], edge["head"], edge["query"], edge["key"])),
        ):
            cut = gattn.capture(IDS, model)[edge["layer"], edge["head"]].to_dense()[edge["query"]]
        ends = []
        plain = gattn.capture(IDS, model)[edge["layer"], edge["head"]].to_dense()
        for share in (-step, step):
            moved = plain.copy()
            moved[edge["query"]] = (1 - share) * plain[edge["query"]] + share * cut
            graph = gattn.AttentionGraph.from_dense(moved)
            with gattn.edited(model, gattn.Use(graph, edge["layer"], edge["head"])):
                row = logits(model)[-1]
            ends.append(float(row[7] - row[11]))
        slope = (ends[1] - ends[0]) / (2 * step)
        assert edge["estimate"] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_gradient_rollout_reads_the_gradient_at_attention(openai):
    """Of a model that shows only its softmax, against autograd on its own attentions."""
    model = openai
    out = model(BATCH, output_attentions=True)
    number = out.logits[0, -1, 7] - out.logits[0, -1, 11]
    gradients = torch.autograd.grad(number, out.attentions, retain_graph=True)
    state = torch.eye(6, dtype=torch.float64)
    found = analysis.gradient_rollout(lambda: model(BATCH), model, target=7, other=11)
    for layer, (gradient, attention) in enumerate(zip(gradients, out.attentions, strict=True)):
        state = state + (gradient * attention)[0].clamp_min(0).mean(0) @ state
        np.testing.assert_allclose(found[layer], state.detach(), atol=1e-12)


def test_frozen_models_have_estimates(tiny):
    model = tiny("llama", dtype=torch.float64)
    expected = estimate(lambda: model(BATCH), model, target=7, other=11, sample=0)
    model.requires_grad_(False)
    found = estimate(lambda: model(BATCH), model, target=7, other=11, sample=0)
    np.testing.assert_array_equal(found["estimate"], expected["estimate"])
    assert found["estimate"].abs().max() > 0.1


# Models of any library


@pytest.mark.parametrize("kind", KINDS)
def test_effects_in_any_model_are_those_of_editing_it(kind):
    model, run = built(kind)
    trace = gattn.capture(run, model)
    for name, stack in trace.stacks.items():
        edges = [stack[0, head].graph.edge_index[:, 2].tolist() for head in (0, 1)]
        cuts = [Cut(0, h, i, j, stack=name) for h, (j, i) in enumerate(edges)]
        cuts += [Cut(layer=0, head=1, stack=name)]
        found = effect(run, cuts, model, metric="logit_difference", target=1, other=4, position=0)
        for cut, edited in zip(cuts, found["edited"], strict=True):
            with torch.no_grad(), gattn.edited(model, cut):
                row = run()[0]
            assert edited == pytest.approx(float(row[1] - row[4]), abs=1e-13)
        assert found["effect"].abs().max() > 1e-4
    if len(trace.stacks) > 1:
        assert found.attrs["tokens"] == {name: texts(stack) for name, stack in trace.stacks.items()}
    else:
        known = {"vit": ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]}
        assert found.attrs["tokens"] == known.get(kind, [str(n) for n in range(6)])


def texts(stack):
    head = stack[0, 0]
    if not head.graph.is_bipartite:
        return head.labels()
    return {"query": head.query_labels(), "key": head.labels()}


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_estimates_in_any_model_are_its_slopes(kind, renormalize):
    model, run = built(kind)

    def number():
        return run().square().log().mean()

    found = estimate(number, model=model, sample=4, renormalize=renormalize)
    for _, edges in found.groupby("stack"):
        some = edges[edges["attention"] < 0.999].sample(6, random_state=0)
        expected = slopes(model, number, some, renormalize)
        np.testing.assert_allclose(some["estimate"], expected, rtol=1e-5, atol=1e-8)
        assert np.abs(expected).max() > 1e-4
    exact = found[found["effect"].notna()]
    assert len(exact) >= 4
    assert found["stack"].nunique() == (3 if kind == "translator" else 1)


@pytest.mark.parametrize("kind", ["encoder", "gpt", "vit", "gat"])
def test_value_zeroing_in_any_model_is_that_of_its_layers(kind):
    """Each layer is run by itself, on its own input, with one token's value zeroed."""
    model, run = built(kind)
    layers = {"encoder": "whole.layers", "gat": "convs"}.get(kind, "blocks")
    layers, given = model.get_submodule(layers), []
    hooks = [x.register_forward_pre_hook(lambda m, args: given.append(args)) for x in layers]
    with torch.no_grad():
        run()
        for hook in hooks:
            hook.remove()
        found = analysis.value_zeroing(run, model, progress=False)
        wanted = torch.zeros(2, 6, 6, dtype=torch.float64)
        for n, (layer, args) in enumerate(zip(layers, given, strict=True)):
            for key in range(6):
                with gattn.edited(layer, Cut(key=key, renormalize=False)):
                    changed = layer(*args).reshape(6, -1)
                plain = layer(*args).reshape(6, -1)
                wanted[n, :, key] = 1 - torch.cosine_similarity(plain, changed, dim=-1)
    wanted = wanted / wanted.sum(-1, keepdim=True)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_vectors_in_any_model_are_its_own():
    """The lengths ||A_ij W_O v_j|| of a layer, by its own formula."""
    model, run = built("gpt")
    found = analysis.contributions(run, model, of="head", layers=0, progress=False)
    block = model.blocks[0]
    with torch.no_grad():
        x = model.embed(torch.tensor([[3, 7, 1, 7, 12, 5]]))
        q, k, v = block.qkv(block.norm(x))[0].unflatten(-1, (3, 4, -1)).permute(1, 2, 0, 3) * 2
        scores = (q @ k.mT / 2).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
        weight = block.out.weight.unflatten(1, (4, 4))
        projected = torch.einsum("hjd,ohd->hjo", v, weight)
        wanted = scores.softmax(-1) * projected.norm(dim=-1)[:, None]
    np.testing.assert_allclose(found[0], wanted, atol=1e-12)
    assert analysis.routes(run, model, progress=False).number_of_nodes() > 1


@pytest.mark.parametrize("kind", ["gat", "own"])
def test_gradient_rollout_over_graphs_is_of_the_slopes_of_edges(kind):
    """An edge's share in the estimate of zeroing it is the gradient times its attention."""
    model, run = built(kind)

    def number():
        return run().square().log().mean()

    found = estimate(number, model, sample=0, renormalize=False)
    state = torch.eye(6, dtype=torch.float64)
    rolled = analysis.gradient_rollout(number, model)
    for layer in range(2):
        matrix = torch.zeros(2, 6, 6, dtype=torch.float64)
        for edge in found[found["layer"] == layer].to_dict("records"):
            matrix[edge["head"], edge["query"], edge["key"]] = max(-edge["estimate"], 0)
        state = state + matrix.mean(0) @ state
        np.testing.assert_allclose(rolled[layer], state, atol=1e-12)
    assert (state > 0).sum() > 12


def test_other_normalizers_have_estimates_of_zeroing_alone():
    model, run = built("own")
    model.layers[1].normalizer = gattn.Sparsemax()
    with pytest.raises(CaptureError, match=r"normalizes by Sparsemax.*renormalize=False"):
        estimate(lambda: run().sum(), model, sample=0)
    found = estimate(lambda: run().sum(), model, sample=0, renormalize=False)
    some = found[found["attention"] > 0].sample(8, random_state=0)
    expected = slopes(model, lambda: run().sum(), some, False)
    np.testing.assert_allclose(some["estimate"], expected, rtol=1e-5, atol=1e-8)


def test_a_text_in_place_of_a_function_says_what_to_pass():
    model, run = built("gpt")
    for ask in (lambda: effect("a text", CUTS, model), lambda: gattn.capture([3, 4], model)):
        with pytest.raises(ModelError, match=r"pass a function that calls it.*in place of the tex"):
            ask()
    with pytest.raises(ModelError, match="tokenizer must be a transformers tokenizer"):
        effect(run, CUTS, model, "gpt2")
    with pytest.raises(ModelError, match="target='cat' needs a tokenizer"):
        effect(run, CUTS[:1], model, metric="probability", target="cat")


# Captures and analyses


def test_a_function_is_captured_as_its_text_is(llama):
    of_text = gattn.capture(IDS, llama, scores=True)
    of_function = gattn.capture(lambda: llama(BATCH), llama, scores=True)
    assert of_function.tokens == of_text.tokens
    for place, head in of_text.only_stack.items():
        np.testing.assert_array_equal(of_function[place].attention, head.attention)
        np.testing.assert_array_equal(of_function[place].score, head.score)
    assert torch.equal(of_function.logits, of_text.logits)


def test_tokens_of_a_capture_have_the_names_given():
    model, run = built("gpt")
    trace = gattn.capture(run, model, tokens=list("abcdef"))
    assert trace.tokens == ["a", "b", "c", "d", "e", "f"]
    with pytest.raises(CaptureError, match="5 texts"):
        gattn.capture(run, model, tokens=list("abcde"))


def test_generation_is_captured_as_one_sequence(llama):
    options = {"max_new_tokens": 4, "do_sample": False, "min_new_tokens": 4}
    found = gattn.capture(lambda: llama.generate(BATCH, **options), llama)
    assert len(found.tokens) == 9
    assert found.generated == 3


@pytest.mark.parametrize("name", ["value_zeroing", "alti", "contributions"])
def test_vectors_are_those_of_the_text(llama, name):
    of_text, of_function = (
        getattr(analysis, name)(of, llama, progress=False) for of in (IDS, lambda: llama(BATCH))
    )
    np.testing.assert_allclose(of_function, of_text, atol=1e-12)
    assert of_text.max() > 0.1
    assert of_function.attrs == of_text.attrs


def test_routes_and_curves_are_those_of_the_text(llama):
    def run():
        return llama(BATCH)

    one, other = (analysis.routes(of, llama, progress=False) for of in (IDS, run))
    assert dict(one.edges) == dict(other.edges)
    trace = gattn.capture(run, llama)
    options = {"random": 1, "progress": False}
    one, other = (
        analysis.deletion_curve(trace, of, llama, steps=3, **options) for of in (IDS, run)
    )
    np.testing.assert_allclose(one, other, atol=1e-12)
    table = analysis.rank_agreement(trace, run, llama, effects=effect(run, EVERY, llama))
    assert table["number"].tolist() == [len(EVERY)]
    number = analysis.deletion_curve(
        trace, lambda: run().logits[0, -1, 7], llama, steps=2, **options
    )
    assert number["ranking"].iloc[0] == pytest.approx(float(logits(llama)[-1, 7]), abs=1e-12)


# Refusals


def test_a_function_that_never_calls_the_model_is_refused(llama, tiny):
    other = tiny("llama")
    for ask in (
        lambda run: effect(run, CUTS, llama),
        lambda run: estimate(run, llama, target=7, other=11),
        lambda run: gattn.capture(run, llama),
        lambda run: analysis.value_zeroing(run, llama),
    ):
        with pytest.raises(CaptureError, match=r"did not call the LlamaForCausalLM that model="):
            ask(lambda: other(BATCH))


def test_where_one_call_is_read_several_are_refused(llama):
    def run():
        return llama(BATCH).logits + llama(BATCH).logits

    for ask in (
        lambda: estimate(run, llama, target=7, other=11),
        lambda: analysis.value_zeroing(run, llama),
        lambda: analysis.alti(run, llama),
        lambda: analysis.gradient_rollout(run, llama, target=7, other=11),
    ):
        with pytest.raises(CaptureError, match=r"several calls|2 times, but this reads one call"):
            ask()
    with pytest.raises(CaptureError, match=r"run\(\) ran 2 sequences.*run\.traces"):
        gattn.capture(run, llama)


def test_several_sequences_are_refused_where_one_is_read(llama):
    batch = torch.tensor([IDS, IDS[::-1]])
    with pytest.raises(CaptureError, match="2 sequences or windows"):
        estimate(lambda: llama(batch).logits[0], llama, target=7, other=11)
    with pytest.raises(CaptureError, match="2 sequences"):
        gattn.capture(lambda: llama(batch), llama)
    with pytest.raises(CaptureError, match="batch of 2"):
        analysis.value_zeroing(lambda: llama(batch), llama)
    for run in (
        lambda: llama(batch).logits[:, -1],
        lambda: llama(batch),
        lambda: llama(batch).logits,
    ):
        with pytest.raises(ContractError, match="expected the logits of one of them"):
            effect(run, CUTS, llama)


@pytest.mark.parametrize("metric", [None, "kl", "probability", NAMED])
def test_probabilities_are_no_logits(llama, metric):
    options = metric if isinstance(metric, dict) else {"metric": metric}
    options |= {"target": 7} if metric == "probability" else {}
    with pytest.raises(ContractError, match=r"sum to 1\.0000, which looks like probabilities"):
        effect(lambda: llama(BATCH).logits[0].softmax(-1), CUTS, llama, **options)


@dataclass
class Output:
    prediction: object


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda x: None, r"The run returned NoneType: expected a number, logits"),
        (lambda x: (x, None), r"tuple of Tensor, NoneType.*as in lambda: model\(x\)\[0\]; or pass"),
        (lambda x: (x.sum(), x), r"as in lambda: model\(x\)\[1\]; or pass metric="),
        (lambda x: {"y": x, "logits": x}, r"as in lambda: model\(x\)\['logits'\]; or pass"),
        (lambda x: {"loss": None}, r"or an output with logits; or pass"),
        (Output, "returned Output"),
        (lambda x: SimpleNamespace(logits=None), "returned SimpleNamespace"),
        (lambda x: x[None], r"Tensor \(1, 1, 6, 60\)"),
        (lambda x: x.argmax(-1)[0], "expected logits, which are floating-point"),
        (lambda x: bool(x.sum() > 0), "returned bool"),
        (lambda x: x.sum() > 0, "returned Tensor .* of torch.bool"),
        (lambda x: "yes", "returned str"),
    ],
)
def test_answers_that_are_no_logits_are_refused(llama, made, says):
    with pytest.raises(ContractError, match=says):
        effect(lambda: made(llama(BATCH).logits), CUTS, llama)


@pytest.mark.parametrize(
    ("run", "options", "error", "says"),
    [
        (lambda m: m.sum(), {"metric": "kl"}, SelectionError, "returns one number, which is the"),
        (lambda m: m.sum(), NAMED, SelectionError, "leave out metric="),
        (lambda m: m, {"metric": "entropy"}, SelectionError, "one of.*'entropy'"),
        (lambda m: m, {"metric": "kl", "target": 3}, SelectionError, "does not take target"),
        (lambda m: m, {"position": 6}, SelectionError, "No position 6"),
        (lambda m: m, {"position": "cat"}, SelectionError, "No position 'cat'; the 6 tokens"),
        (lambda m: m, {"metric": "probability", "target": "cat"}, ModelError, "tokenizer="),
        (lambda m: m, {"metric": "probability", "target": 60}, SelectionError, "0 to 59"),
        (lambda m: m, {"metric": lambda x: x}, ContractError, "one number"),
        (lambda m: m * torch.nan, {}, ModelError, r"nan.*logits \(1, 60\)"),
        (lambda m: m.sum() * torch.nan, {}, ModelError, "nan.*look for NaN"),
        (lambda m: float("inf"), {}, ModelError, "inf"),
    ],
)
def test_what_cannot_be_measured_is_refused(llama, run, options, error, says):
    with pytest.raises(error, match=says):
        effect(lambda: run(llama(BATCH).logits[0]), CUTS, llama, **options)


def test_a_function_that_gives_something_else_each_time_is_refused(llama):
    from transformers import DynamicCache

    cache, numbers = DynamicCache(), iter(range(99))
    runs = [
        lambda: llama(BATCH).logits[0] + torch.randn(6, 60),
        lambda: llama(BATCH).logits.sum() * next(numbers),
        lambda: torch.dropout(llama(BATCH).logits, 0.1, train=True),
        lambda: llama(BATCH, past_key_values=cache).logits,
    ]
    for run in runs:
        with pytest.raises(ModelError, match="something else when it runs again"):
            effect(run, CUTS[:1], llama)
    with pytest.raises(ModelError, match=r"\(12, then 13\)"):
        effect(lambda: [llama(BATCH), float(next(numbers) + 10)][1], CUTS[:1], llama)
    tiny_noise = effect(
        lambda: llama(BATCH).logits[0] * (1 + 1e-9 * torch.randn(())), CUTS[:1], llama
    )
    np.testing.assert_allclose(
        tiny_noise["effect"], effect(IDS, CUTS[:1], llama)["effect"], rtol=1e-3
    )


def test_estimates_without_a_gradient_are_refused(llama):
    with torch.no_grad():
        plain = llama(BATCH).logits[0]
    for run in (
        lambda: llama(BATCH).logits.sum().item(),
        lambda: torch.no_grad()(llama)(BATCH).logits.sum(),
        lambda: llama(BATCH).logits.detach().sum(),
    ):
        with pytest.raises((ContractError, CaptureError), match=r"no_grad"):
            estimate(run, llama)
    weight = torch.ones(60, dtype=torch.float64, requires_grad=True)
    with pytest.raises(CaptureError, match="does not depend on any attention"):
        estimate(lambda: (llama(BATCH).logits[0].detach() @ weight).sum() + plain.sum(), llama)
    with pytest.raises(SelectionError, match="pass target="):
        estimate(lambda: llama(BATCH), llama)


def test_edits_that_meet_nothing_are_refused(llama):
    with pytest.raises(EditError, match=r"layer=7.*nothing to edit"):
        effect(lambda: llama(BATCH), [Cut(layer=7)], llama)
    with pytest.raises(EditError, match=r"query=2, key=4.*nothing to edit"):
        effect(lambda: llama(BATCH), [CUTS[0], Cut(query=2, key=4)], llama)


def test_what_is_no_function_or_no_model_is_refused(llama):
    with pytest.raises(ModelError, match=r"needs model=, the module that it calls; none was given"):
        gattn.capture(lambda: llama(BATCH))
    with pytest.raises(ModelError, match="not 'gpt2'"):
        effect(lambda: llama(BATCH), CUTS, "gpt2")
    with pytest.raises(CaptureError, match="not the module itself"):
        gattn.capture(llama, llama)
    with pytest.raises(CaptureError, match=r"without arguments.*missing a required argument: 'x'"):
        effect(lambda x: llama(x), CUTS, llama)
    with pytest.raises(CaptureError, match="Expected a text, token ids"):
        next(gattn.capture_many([lambda: llama(BATCH)], llama))
    assert len(effect(partial(llama, BATCH), CUTS[:1], llama)) == 1
    llama.train()
    try:
        with pytest.raises(ModelError, match=r"eval\(\)"):
            effect(lambda: llama(BATCH), CUTS, llama)
    finally:
        llama.eval()


def test_an_error_of_the_function_is_its_own(llama):
    with pytest.raises(ZeroDivisionError):
        effect(lambda: llama(BATCH).logits * (1 / 0), CUTS, llama)
    assert effect(lambda: llama(BATCH), CUTS[:1], llama)["effect"][0] > 0
