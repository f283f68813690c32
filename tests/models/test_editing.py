"""Contexts that edit a live model: what they edit, in which order, and what they refuse."""

import numpy as np
import pytest
import torch

from gattn import (
    ALiBi,
    Cut,
    ModelScore,
    PositionWeight,
    Restrict,
    Scale,
    SquaredDistance,
    Swap,
    TokenGraph,
    TopK,
    Use,
    WeightFunction,
    capture,
    capturing,
    edited,
    load_model,
)
from gattn.errors import EditError, SelectionError
from gattn.models.run.edit_context import Editing
from gattn.models.run.opening import opened

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
OTHERS = [44, 2, 9, 9, 30]
FEW = [7, 11, 23, 40]


def run(model, ids=IDS, **inputs):
    if model.config.is_encoder_decoder:
        inputs.setdefault("decoder_input_ids", torch.tensor([OTHERS]))
    with torch.no_grad():
        return model(torch.tensor([ids]), **inputs)[0]


def padded(rows, side="left", padding=0):
    width = max(map(len, rows))
    pads = [[padding] * (width - len(row)) for row in rows]
    ids = [pad + row if side == "left" else row + pad for pad, row in zip(pads, rows, strict=True)]
    mask = [
        [0] * len(pad) + [1] * len(row) if side == "left" else [1] * len(row) + [0] * len(pad)
        for pad, row in zip(pads, rows, strict=True)
    ]
    return torch.tensor(ids), torch.tensor(mask)


# Contexts


def test_contexts_nest_and_the_outer_edits_come_first(tiny, densely):
    model = tiny("gpt2", "sdpa", torch.float64)
    one, other = Cut(layer=0, head=1, key=2), Scale(2.0, layer=0, head=1, query=7)
    with edited(model, one, other):
        together = run(model)
    with edited(model, one), edited(model, other):
        assert torch.equal(run(model), together)
    specs = {"layer": 0, "head": 1, "key": 2}, {"layer": 0, "head": 1, "query": 7, "factor": 2.0}
    expected = densely(model, {"input_ids": torch.tensor([IDS])}, *specs)
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-9)
    # A graph given outside is scaled; the other way round nothing would be left of the scaling.
    graph = Use(capture(IDS, model)[0, 1], 0, 1)
    with edited(model, graph), edited(model, Scale(3.0, 0, 1)):
        found = run(model)
    with edited(model, Scale(3.0, 0, 1)):
        torch.testing.assert_close(found, run(model), rtol=0, atol=1e-9)
        with pytest.raises(EditError, match="put it last"), edited(model, graph):
            run(model)
        run(model)


def test_a_model_score_inside_stands_for_the_score_outside(tiny):
    model = tiny("gpt2", "sdpa", torch.float64)
    with edited(model, Swap(weight=4 * ModelScore())):
        expected = run(model)
    with edited(model, Swap(weight=2 * ModelScore())), edited(model, Swap(weight=2 * ModelScore())):
        torch.testing.assert_close(run(model), expected, rtol=0, atol=1e-9)


def test_edits_end_with_their_context(tiny):
    model = tiny("llama")
    plain = run(model)
    with edited(model, Cut(layer=0)):
        assert not torch.equal(run(model), plain)
    assert torch.equal(run(model), plain)
    with pytest.raises(ZeroDivisionError), edited(model, Cut(layer=0)):
        raise ZeroDivisionError
    assert torch.equal(run(model), plain)


@pytest.mark.parametrize("name", ["llama", "bart", "bloom"])
def test_a_capture_inside_shows_the_edited_attention(tiny, name):
    model = tiny(name, "eager")
    stack = "encoder" if name == "bart" else None
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": OTHERS} if stack else {})
    edits = [
        Cut(layer=0, head=1, query=6, key=3, stack=stack),
        Cut(layer=0, head=2, key=4, renormalize=False, stack=stack),
        Scale(2.0, layer=1, head=0, query=5, stack=stack),
    ]
    plain = capture(inputs, model)[stack] if stack else capture(inputs, model).only_stack
    with edited(model, *edits):
        trace = capture(inputs, model)
    found = trace[stack] if stack else trace.only_stack
    before, after = plain[0, 1].to_dense(), found[0, 1].to_dense()
    assert after[6, 3] == 0 < before[6, 3]
    assert (6, 3) not in list(zip(found[0, 1].query, found[0, 1].key, strict=True))
    rest = np.delete(before[6], 3) / np.delete(before[6], 3).sum()
    np.testing.assert_allclose(np.delete(after[6], 3), rest, atol=1e-6)
    np.testing.assert_array_equal(np.delete(after, 6, 0), np.delete(before, 6, 0))
    before, after = plain[0, 2].to_dense(), found[0, 2].to_dense()
    np.testing.assert_array_equal(np.delete(after, 4, 1), np.delete(before, 4, 1))
    assert not after[:, 4].any()
    np.testing.assert_allclose(found[1, 0].to_dense()[5].sum(), 2.0, atol=1e-5)
    np.testing.assert_array_equal(found[0, 0].to_dense(), plain[0, 0].to_dense())


def test_what_a_context_captures_does_not_depend_on_the_order_of_opening(tiny):
    model = tiny("llama")
    edit = Cut(layer=0, head=1, key=3)
    with edited(model, edit), capturing(model) as inside:
        run(model)
    with capturing(model) as outside, edited(model, edit):
        run(model)
    for place, head in inside.trace.only_stack.items():
        np.testing.assert_array_equal(head.to_dense(), outside.trace[place].to_dense())
    assert not inside.trace[0, 1].to_dense()[:, 3].any()


def test_reported_attention_is_the_edited_one(tiny):
    model = tiny("llama", "eager")
    with torch.no_grad(), edited(model, Cut(layer=1, head=2, query=5, key=3), Scale(2.0, 1, 3)):
        found = model(torch.tensor([IDS]), output_attentions=True).attentions
    with torch.no_grad():
        plain = model(torch.tensor([IDS]), output_attentions=True).attentions
    assert float(found[1][0, 2, 5, 3]) == 0 < float(plain[1][0, 2, 5, 3])
    torch.testing.assert_close(found[1][0, :3].sum(-1), torch.ones(3, 9))
    torch.testing.assert_close(found[1][0, 3], 2 * plain[1][0, 3])
    assert torch.equal(found[1][0, [0, 1]], plain[1][0, [0, 1]])


# Tokens by their text


def test_tokens_are_named_by_their_text(tiny, tokenizer):
    model = tiny("bert")
    text = "the dog chased the cat"  # [CLS] the dog chased the cat [SEP]
    ids = tokenizer(text).input_ids
    for named, places in (
        ({"key": "dog"}, {"key": 2}),
        ({"key": " dog"}, {"key": 2}),
        ({"key": "the"}, {"key": [1, 4]}),
        ({"query": "the", "key": "cat"}, {"query": [1, 4], "key": 5}),
        ({"query": "[SEP]", "key": "[CLS]"}, {"query": 6, "key": 0}),
    ):
        with edited(model, Cut(0, 1, **named), tokenizer=tokenizer):
            found = run(model, ids)
        with edited(model, Cut(0, 1, **places)):
            assert torch.equal(run(model, ids), found)
    assert not torch.equal(found, run(model, ids))


def test_texts_are_found_in_each_sequence_of_a_padded_batch(tiny, tokenizer):
    model = tiny("bert")
    texts = ["the dog chased the cat", "a cat", "fish and the cat"]
    rows = [tokenizer(text).input_ids for text in texts]
    ids, mask = padded(rows, "right")
    with torch.no_grad(), edited(model, Cut(0, 1, key="cat"), tokenizer=tokenizer):
        found = model(ids, attention_mask=mask)[0]
    for row, output, place in zip(rows, found, (5, 2, 4), strict=True):
        with edited(model, Cut(0, 1, key=place)):
            alone = run(model, row)[0]
        torch.testing.assert_close(output[: len(row)], alone, rtol=0, atol=1e-5)


def test_the_models_own_tokenizer_names_tokens(tmp_path, tiny, tokenizer):
    from gattn import load_model

    tiny("bert").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = load_model(tmp_path)
    ids = tokenizer("the dog").input_ids
    with edited(model, Cut(0, 0, key="dog")):
        found = run(model, ids)
    with edited(model, Cut(0, 0, key=2)):
        assert torch.equal(run(model, ids), found)


def test_a_text_that_cannot_be_found_is_refused(tiny, tokenizer):
    model = tiny("bert")
    ids = tokenizer("the dog").input_ids
    with (
        pytest.raises(EditError, match=r"key='cat'.*had nothing to edit"),
        edited(model, Cut(0, 0, key="cat"), tokenizer=tokenizer),
    ):
        run(model, ids)
    with (
        pytest.raises(EditError, match=r"pass tokens= or tokenizer="),
        edited(model, Cut(0, 0, key="dog")),
    ):
        run(model, ids)
    vectors = model.get_input_embeddings()(torch.tensor([ids]))
    with (
        pytest.raises(EditError, match="call the model with input_ids"),
        edited(model, Cut(0, 0, key="dog"), tokenizer=tokenizer),
    ):
        model(inputs_embeds=vectors)


CASED = "The dog chased the cat"


def test_edits_take_the_names_that_traces_show(tiny, tokenizer):
    model = tiny("bert")
    plain = capture(CASED, model, tokenizer)
    assert plain.tokens == ["[CLS]", "The", "dog", "chased", "the", "cat", "[SEP]"]
    for token, places in (("The", [1]), ("the", [4]), ("Dog", [2]), ("[SEP]", [6])):
        with edited(model, Cut(0, 1, key=token), tokenizer=tokenizer):
            trace = capture(CASED, model, tokenizer)
        assert sorted(np.flatnonzero(trace[0, 1].to_dense().sum(0) == 0)) == places
        shown = trace[0, 1].subgraph([token]).node_positions.tolist()
        assert shown == places


def test_what_the_tokenizer_calls_a_token_names_it_where_that_is_clear(tiny, tokenizer):
    model = tiny("bert")
    with edited(model, Cut(0, 1, key="the"), tokenizer=tokenizer):
        trace = capture("The dog", model, tokenizer)
    assert (trace[0, 1].to_dense()[:, 1] == 0).all()
    # The model that was called with ids knows both by one name.
    ids = tokenizer(CASED).input_ids
    with edited(model, Cut(0, 1, key="THE"), tokenizer=tokenizer):
        found = run(model, ids)
    with edited(model, Cut(0, 1, key=[1, 4])):
        assert torch.equal(run(model, ids), found)


def test_several_names_and_positions_go_together(tiny, tokenizer):
    model = tiny("bert")
    ids = tokenizer("the dog chased the cat").input_ids
    with edited(model, Cut(0, 1, key=["dog", -2, 3]), tokenizer=tokenizer):
        found = run(model, ids)
    with edited(model, Cut(0, 1, key=[2, 5, 3])):
        assert torch.equal(run(model, ids), found)
    with (
        pytest.raises(EditError, match=r"at key 'cta': .*most similar tokens are 'cat'"),
        edited(model, Cut(0, 1, key=["dog", "cta"]), tokenizer=tokenizer),
    ):
        run(model, ids)


# From the end


def test_positions_count_from_the_end_of_each_text(tiny):
    model = tiny("llama")
    for edit, plain in (
        (Cut(0, 1, query=-1, key=0), Cut(0, 1, query=8, key=0)),
        (Scale(2.0, 1, query=[-2, 3], key=-9), Scale(2.0, 1, query=[7, 3], key=0)),
        (Cut(0, 1, query=slice(-3, -1), key=1), Cut(0, 1, query=slice(6, 8), key=1)),
        (Cut(0, 1, query=slice(-3, None), key=1), Cut(0, 1, query=slice(6, 9), key=1)),
    ):
        with edited(model, plain):
            expected = run(model)
        with edited(model, edit):
            assert torch.equal(run(model), expected)
    for side in ("left", "right"):
        ids, mask = padded([IDS, FEW], side)
        with torch.no_grad(), edited(model, Cut(0, 1, query=-1, key=0)), capturing(model) as given:
            model(ids, attention_mask=mask)
        for trace, last in zip(given.traces, (8, 3), strict=True):
            dense = trace[0, 1].to_dense()
            assert dense[last, 0] == 0
            assert (dense[:last, 0] > 0).all()


def test_the_end_is_that_of_the_prompt_while_more_is_generated(tiny):
    model = tiny("llama")
    with edited(model, Cut(0, 1, key=-1)), capturing(model) as given:
        generate(model, IDS)
    with edited(model, Cut(0, 1, key=8)), capturing(model) as expected:
        generate(model, IDS)
    dense = given.trace[0, 1].to_dense()
    np.testing.assert_array_equal(dense, expected.trace[0, 1].to_dense())
    assert len(dense) > 9
    assert not dense[:, 8].any()
    assert dense[9:, 7].all()


def test_an_end_that_moves_is_refused(tiny):
    model = tiny("llama")
    edit = Cut(0, 1, query=-1, key=0)
    with pytest.raises(EditError, match="so that the end moves"), edited(model, edit):
        generate(model, IDS, use_cache=False)
    with pytest.raises(EditError, match="comes in chunks"), edited(model, edit):
        generate(model, IDS, prefill_chunk_size=4)
    with torch.no_grad(), edited(model, edit):
        cache = model(torch.tensor([IDS]), use_cache=True).past_key_values
        with pytest.raises(EditError, match="came in several calls"):
            model(torch.tensor([FEW]), past_key_values=cache)
    with torch.no_grad():
        cache = model(torch.tensor([IDS]), use_cache=True).past_key_values
        with pytest.raises(EditError, match="came in several calls"), edited(model, edit):
            model(torch.tensor([FEW[:1]]), past_key_values=cache)
    with edited(model, edit):  # texts that do not go on
        run(model, FEW)
        run(model, IDS)
    model = tiny("bart")
    last = Cut(0, 1, query=-1, stack="decoder")
    with pytest.raises(EditError, match="so that the end moves"), edited(model, last):
        generate(model, IDS, use_cache=False)
    with edited(model, Cut(0, 1, query=-1, stack="encoder")), capturing(model) as given:
        generate(model, IDS, use_cache=False)
    dense = given.traces[0]["encoder"][0, 1].to_dense()
    assert not dense[8].any()
    assert dense[:8].any(1).all()


def test_a_position_before_the_first_is_not_there(tiny):
    with (
        pytest.raises(EditError, match=r"at query -10: the queries are 0 \.\. 8"),
        edited(model := tiny("llama"), Cut(0, query=-10)),
    ):
        run(model)


# What was not there


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Cut(layer=2), r"there is no layer 2; the model has 'decoder' \(layers 0 \.\. 1\)"),
        (Cut(layer=0, key=9), r"the keys are 0 \.\. 8"),
        (Cut(query=slice(20, 30)), r"the tokens are 0 \.\. 8"),
        (Cut(layer=0, query=3, key=5), r"no edge from key 5, which comes later: in a causal"),
        (Scale(2.0, query=2, key=[4, 6]), "no edge from any of these keys, which come later"),
        (Cut(query=[0, 1], key=5), "none of these queries has an edge from key 5, which comes"),
        (Cut(layer=0, stack="cross"), r"no stack 'cross'; it has 'decoder'"),
        (Restrict(TokenGraph.causal(20)), "it changes no edge"),
    ],
    ids=repr,
)
def test_it_is_told_what_is_there_instead(tiny, edit, says):
    model = tiny("llama")
    with pytest.raises(EditError, match="had nothing to edit.*: .*" + says), edited(model, edit):
        run(model)


@pytest.mark.parametrize(("query", "key"), [(0, 4), (4, 0)])
def test_a_masked_edge_is_not_said_to_come_later(query, key):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).eval()
    near = torch.ones(5, 5, dtype=torch.bool).triu(-2).tril(2)
    says = f"query {query} has no edge from key {key}: the model masks that"
    with pytest.raises(EditError, match=says), edited(model, Cut(query=query, key=key)):
        model(torch.randn(1, 5, 8), mask=~near)


def test_all_stacks_are_told(tiny):
    model = tiny("bart")
    with (
        pytest.raises(EditError, match=r"'encoder' \(.*\) and 'decoder' \(.*\) and 'cross' \("),
        edited(model, Cut(0, stack="crosss")),
    ):
        run(model)


# Batches


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "implementation"),
    [("llama", "sdpa"), ("gpt-oss", "eager"), ("mistral", "eager"), ("bloom", "eager")],
)
def test_a_padded_batch_with_edits_is_each_sequence_alone(tiny, name, implementation, side):
    model = tiny(name, implementation)
    rows = [IDS, FEW, IDS[2:8]]
    ids, mask = padded(rows, side)
    edits = [
        Cut(0, 1, query=slice(2, 9), key=[0, 1]),
        Scale(2.0, 1, [0, 3], query=3, key=2),
        Swap(1, 2, weight=0.5 * ModelScore()),
        Cut(0, 3, query=3, renormalize=False),
    ]
    with torch.no_grad(), edited(model, *edits):
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        options = {} if name == "bloom" else {"position_ids": positions}
        found = model(ids, attention_mask=mask, **options)[0]
    for row, output, real in zip(rows, found, mask.bool(), strict=True):
        with edited(model, *edits):
            alone = run(model, row)[0]
        torch.testing.assert_close(output[real], alone, rtol=0, atol=3e-5)
        assert not torch.allclose(alone, run(model, row)[0], atol=1e-3)


def test_each_element_of_a_batch_may_have_edits_of_its_own(tiny):
    model = tiny("llama")
    rows = [IDS, FEW, IDS[2:8]]
    ids, mask = padded(rows, "right")
    edits = [[Cut(0, 1, key=2)], [], [Cut(0, 1, key=2), Scale(3.0, 1, 0, query=4)]]
    with torch.no_grad(), opened(model, Editing(edits)):
        found = model(ids, attention_mask=mask)[0]
    for row, output, some in zip(rows, found, edits, strict=True):
        if some:
            with edited(model, *some):
                alone = run(model, row)[0]
        else:
            alone = run(model, row)[0]
        torch.testing.assert_close(output[: len(row)], alone, rtol=0, atol=1e-5)


# Stacks


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_stacks_are_edited_by_name(tiny, name, stack):
    """Zero a head's slice of what goes into the output projection of that stack's first layer."""
    model = tiny(name)
    ends = {
        "encoder": (
            "encoder.block.0.layer.0.SelfAttention.o",
            "encoder.layers.0.self_attn.out_proj",
        ),
        "decoder": (
            "decoder.block.0.layer.0.SelfAttention.o",
            "decoder.layers.0.self_attn.out_proj",
        ),
        "cross": (
            "decoder.block.0.layer.1.EncDecAttention.o",
            "decoder.layers.0.encoder_attn.out_proj",
        ),
    }[stack]
    (part,) = [module for path, module in model.named_modules() if path.endswith(ends)]

    def ablate(module, given):
        changed = given[0].clone()
        changed[:, 2:, 8:16] = 0
        return (changed,)

    handle = part.register_forward_pre_hook(ablate)
    expected = run(model)
    handle.remove()
    with edited(model, Cut(layer=0, head=1, query=slice(2, None), stack=stack)):
        found = run(model)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(found, run(model), atol=1e-4)


def test_cross_attention_is_cut_between_queries_and_keys(tiny, dense):
    model = tiny("bart", "sdpa", torch.float64)
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([OTHERS])}

    def before(call, scores):
        if scores.shape[-2:] == (5, 9) and call.layer == 3:  # Behind two layers of the encoder.
            scores[:, 2, 1:3, 7] = -torch.inf
        return scores

    expected = dense.run(model, inputs, before)
    with edited(model, Cut(0, 2, query=[1, 2], key=7, stack="cross")):
        found = run(model)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    graph = TokenGraph.from_mask(torch.arange(9)[None] <= torch.arange(5)[:, None] + 2)
    graph = TokenGraph(graph.rule, 5, 9, is_bipartite=True)

    def restrict(call, scores):
        if scores.shape[-2:] == (5, 9):
            return scores.masked_fill(~graph.mask(), -torch.inf)
        return scores

    with edited(model, Restrict(graph, stack="cross")):
        found = run(model)
    torch.testing.assert_close(found, dense.run(model, inputs, restrict), rtol=0, atol=1e-9)
    told = r"the given one is on one\. .*from_mask\(mask, is_bipartite=True\)"
    with (
        pytest.raises(EditError, match=told),
        edited(model, Restrict(TokenGraph.from_mask(graph.mask()), stack="cross")),
    ):
        run(model)


def test_an_edit_of_several_stacks_must_name_one(tiny):
    model = tiny("bart")
    with (
        pytest.raises(EditError, match=r"does not say which stack.*'encoder', 'decoder', 'cross'"),
        edited(model, Cut(layer=0, head=1)),
    ):
        run(model)
    with (
        pytest.raises(EditError, match="'encoder', 'decoder', 'cross': name one"),
        edited(model, Cut(layer=2, head=1)),  # The encoder has two layers.
    ):
        run(model)
    with edited(model, Cut(layer=0, head=1, stack="cross")):
        run(model)


def test_patches_of_an_image_are_cut(tiny, randn):
    model, pixels = tiny("vit"), randn(1, 3, 16, 16).float()
    rows = []
    ends = ("o_proj", "attention.output.dense")
    parts = [module for name, module in model.named_modules() if name.endswith(ends)]
    handle = parts[1].register_forward_pre_hook(lambda module, given: rows.append(given[0][0]))
    with torch.no_grad():
        model(pixels)
        with edited(model, Cut(1, 2, query=slice(3, 6), key=9)), capturing(model) as found:
            model(pixels)
    handle.remove()
    plain, changed = (x.unflatten(1, (4, 8)) for x in rows)
    assert (plain != changed).any(2).nonzero().tolist() == [[3, 2], [4, 2], [5, 2]]
    before = capture({"pixel_values": pixels}, model)[1, 2].to_dense()
    after = found.trace[1, 2].to_dense()
    assert not after[3:6, 9].any()
    expected = np.delete(before[3:6], 9, 1)
    expected = expected / expected.sum(1, keepdims=True)
    np.testing.assert_allclose(np.delete(after[3:6], 9, 1), expected, atol=1e-6)


def test_windows_of_an_image_are_cut_by_their_tokens(randn):
    """Four windows of 16 patches run as one batch: patches are counted row by row of the image."""
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(0)
    config = SwinConfig(
        embed_dim=16, depths=[2], num_heads=[2], image_size=16, patch_size=2, window_size=4
    )
    model, pixels = SwinModel(config).eval(), randn(1, 3, 16, 16).float()
    inputs = {"pixel_values": pixels}
    with torch.no_grad(), edited(model, Cut(0, 1, query=20, key=29)), capturing(model) as found:
        model(**inputs)
    before, after = (trace[0, 1].to_dense() for trace in (capture(inputs, model), found.trace))
    assert after[20, 29] == 0 < before[20, 29]
    expected = np.delete(before[20], 29) / np.delete(before[20], 29).sum()
    np.testing.assert_allclose(np.delete(after[20], 29), expected, atol=1e-6)
    np.testing.assert_array_equal(np.delete(after, 20, 0), np.delete(before, 20, 0))
    with (
        pytest.raises(EditError, match="nothing to edit"),
        edited(model, Cut(0, 1, query=20, key=40)),  # In another window.
        torch.no_grad(),
    ):
        model(**inputs)


# Nothing to edit


@pytest.mark.parametrize(
    "edit",
    [
        Cut(layer=2),
        Cut(layer=0, head=1, query=3, key=5),
        Cut(layer=0, head=1, key=9),
        Cut(layer=0, query=slice(20, 30)),
        Scale(2.0, layer=0, query=2, key=[4, 6]),
        Swap(layer=7, weight=ModelScore()),
        Restrict(TokenGraph.causal(20), layer=5),
        Cut(layer=0, stack="encoder"),
        Restrict(TokenGraph.complete(len(IDS))),
        Restrict(TokenGraph.causal(20)),
    ],
    ids=repr,
)
def test_an_edit_without_anything_to_edit_is_refused(tiny, edit):
    model = tiny("llama")
    with pytest.raises(EditError, match="had nothing to edit"), edited(model, edit):
        run(model)
    with (
        pytest.raises(EditError, match="had nothing to edit") as error,
        edited(model, Cut(layer=0, head=0, key=0), edit),
    ):
        run(model)
    assert repr(edit) in str(error.value)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Cut(layer=[0, 99]), r"in layer 99:"),
        (Cut(layer=[0, 7, 8], key=3), r"in layer 7, in layer 8:"),
        (Cut(layer=0, key=[1, 500]), r"at key 500:"),
        (Scale(2.0, query=[1, 9, 12], key=[0, 11]), r"at query 9, at query 12, at key 11:"),
        (Cut(key=torch.tensor([2, 40])), r"at key 40:"),
        (Cut(layer=[1, 4], query=[7, 30]), r"in layer 4, at query 30:"),
        (Cut(key=[0, *range(10, 20)]), r"key 10, .* at key 14, \.\.\.:"),
        (Swap(layer=[1, 2], weight=ModelScore()), "in layer 2:"),
        (Restrict(TokenGraph.window(20, 2), layer=[0, 3]), "in layer 3:"),
    ],
    ids=repr,
)
def test_all_that_is_named_must_come_up(tiny, edit, says):
    model = tiny("llama")
    with pytest.raises(EditError, match="had nothing to edit .*" + says), edited(model, edit):
        run(model)


@pytest.mark.parametrize(
    "edit",
    [
        Cut(layer=0, key=range(1, 500)),
        Cut(layer=[0, 1], key=slice(3, 50)),
        Cut(query=[8, 2], key=[4, 0, 6]),
        Cut(layer=[1, 0]),
    ],
    ids=repr,
)
def test_spans_may_reach_further_than_the_text(tiny, edit):
    model = tiny("llama")
    plain = run(model)
    with edited(model, edit):
        assert not torch.equal(run(model), plain)


def test_what_is_named_may_come_up_in_several_calls_and_texts(tiny):
    model = tiny("llama")
    with edited(model, Cut(0, query=[3, 12], key=[0, 11])), capturing(model) as found:
        generate(model, IDS)
    attention = found.trace[0, 1].to_dense()
    assert not attention[[3, 12, 12], [0, 0, 11]].any()
    assert attention[12, 1:11].all()
    ids, mask = padded([IDS, FEW])
    with edited(model, Cut(0, key=[1, 8])), torch.no_grad(), capturing(model) as found:
        model(ids, attention_mask=mask)
    long, short = (trace[0, 1].to_dense() for trace in found.traces)
    assert not long[:, [1, 8]].any()
    assert not short[:, 1].any()
    assert long[8, 7] > 0 < short[3, 2]


def test_a_layer_without_the_edge_is_named(tiny):
    model = tiny("gemma2", "eager")
    kinds = model.config.layer_types
    layer, far = kinds.index("sliding_attention"), model.config.sliding_window + 1
    with (
        pytest.raises(EditError, match=f"had nothing to edit in layer {layer}:"),
        edited(model, Cut([0, 1], query=far, key=0)),
    ):
        run(model, (IDS * 4)[: far + 1])


def test_a_window_has_no_edges_to_far_keys(tiny):
    model = tiny("mistral")
    with pytest.raises(EditError, match="nothing to edit"), edited(model, Cut(0, 0, 8, 2)):
        run(model)
    with edited(model, Cut(0, 0, 8, 5)):
        run(model)


def test_a_context_in_which_nothing_runs_is_refused(tiny):
    with pytest.raises(EditError, match="call it inside"), edited(tiny("llama"), Cut(0)):
        pass


def test_an_error_inside_goes_before(tiny):
    with pytest.raises(KeyError), edited(tiny("llama"), Cut(0)):
        raise KeyError


def test_a_head_that_is_not_there_is_named(tiny):
    model = tiny("llama")
    for edit in (Cut(layer=0, head=4), Scale(2.0, head=[0, 9]), Swap(head=7, weight=ModelScore())):
        with (
            pytest.raises(SelectionError, match=r"names head \d, but the heads are 0 \.\. 3"),
            edited(model, edit),
        ):
            run(model)
    assert torch.equal(run(model), run(tiny("llama")))


@pytest.mark.parametrize("wrong", [3, "cut", [Cut(0)], Cut, None], ids=repr)
def test_something_else_than_an_edit_is_refused(tiny, wrong):
    with pytest.raises(EditError, match="An edit is one of Cut"):
        edited(tiny("llama"), wrong)
    with pytest.raises(EditError, match="at least one edit"):
        edited(tiny("llama"))


def test_what_was_passed_in_the_place_of_an_edit_is_told_where_it_goes():
    model, tokenizer = load_model()
    for given, says in (
        (tokenizer, "pass the tokenizer by name, tokenizer=tokenizer"),
        ([Cut(0)], r"pass edits one by one, as in gattn\.edited\(model, \*edits\)"),
        ("2.1", r"such as gattn\.Cut\('2\.1'\)"),
        (model, "the model comes before its edits"),
    ):
        with pytest.raises(EditError, match=says):
            edited(model, Cut(0), given)
    with pytest.raises(EditError, match="takes the model before its edits"):
        edited(Cut(0), model)


# Generation


def generate(model, ids, count=6, **options):
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False} | options
    return model.generate(torch.tensor([ids]), **options)


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize(
    ("name", "implementation", "options"),
    [
        ("llama", "sdpa", {}),
        ("gpt2", "eager", {}),
        ("mistral", "sdpa", {"sliding_window": 8}),
        ("gemma2", "eager", {"sliding_window": 8}),
        ("gpt-oss", "eager", {"sliding_window": 8}),
        ("bloom", "eager", {"initializer_range": 0.3}),
    ],
)
def test_edits_while_generating_are_edits_in_one_pass(tiny, name, implementation, options, cache):
    """The tokens of each step are the largest logits of one edited pass over all that came."""
    model = tiny(name, implementation, **options)
    near = TokenGraph.window(40, 3) | TokenGraph.strided(40, 6)
    edits = [
        Cut(0, 1, query=slice(6, None), key=slice(3, 8)),
        Cut(1, 2, query=11, key=10),
        Scale(3.0, 0, 0, key=[6, 7, 12]),
        Swap(1, 3, weight=2 * ModelScore()),
        Swap(1, 1, weight=ModelScore() + ALiBi(4)),
        Restrict(near, 1, 0),
        Restrict(TokenGraph.from_mask(near.mask()), 0, 2),
        Cut(0, 3, query=10, renormalize=False),
    ]
    chosen = {"cache_implementation": cache} if cache else {}
    with edited(model, *edits), capturing(model) as run_:
        ids = generate(model, IDS, 8, **chosen)[0]
    with edited(model, *edits), capturing(model) as once:
        logits = run(model, ids[:-1].tolist())[0]
    assert ids[len(IDS) :].tolist() == logits[len(IDS) - 1 :].argmax(-1).tolist()
    for place, head in once.trace.only_stack.items():
        found = run_.trace[place]
        assert torch.equal(found.graph.edge_index, head.graph.edge_index)
        np.testing.assert_allclose(found.attention, head.attention, atol=1e-5)
    plain = run(model, ids[:-1].tolist())[0]
    assert not torch.allclose(logits[-1], plain[-1], atol=1e-3)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_stacks_are_edited_while_generating(tiny, name):
    model = tiny(name)
    model.generation_config.forced_eos_token_id = None
    edits = [
        Cut(0, 1, key=3, stack="encoder"),
        Cut(0, 2, query=slice(2, None), key=1, stack="decoder"),
        Scale(3.0, 1, 0, key=[2, 5], stack="cross"),
    ]
    with edited(model, *edits):
        ids = generate(model, IDS, decoder_start_token_id=2)
    with edited(model, *edits):
        logits = run(model, decoder_input_ids=ids[:, :-1])[0]
    assert ids[0, 1:].tolist() == logits.argmax(-1).tolist()
    plain = run(model, decoder_input_ids=ids[:, :-1])[0]
    assert not torch.allclose(logits, plain, atol=1e-3)


def test_a_batch_generates_with_edits_what_each_generates_alone(tiny):
    model = tiny("llama")
    rows = [IDS, FEW, [50]]
    ids, mask = padded(rows)
    edits = [Cut(0, None, query=slice(1, None), key=0), Scale(4.0, 1, [0, 1], query=slice(2, None))]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with edited(model, *edits):
        together = model.generate(ids, attention_mask=mask, **options)
    for row, found in zip(rows, together, strict=True):
        with edited(model, *edits):
            alone = generate(model, row)[0]
        assert found[-6:].tolist() == alone[-6:].tolist()


def test_a_prompts_cache_goes_on_as_several_texts(tiny, tokenizer):
    model = tiny("llama", vocab_size=len(tokenizer))
    prompt, last = [5, 7, 8, 6, 4], [9, 4, 10]
    edits = [Cut(0, 1, query=slice(2, None), key=1), Cut(1, 2, query=5, key="the")]
    with torch.no_grad(), edited(model, *edits, tokenizer=tokenizer):
        cache = model(torch.tensor([prompt]), use_cache=True).past_key_values
        cache.batch_repeat_interleave(3)
        found = model(torch.tensor(last)[:, None], past_key_values=cache).logits[:, -1]
    for token, logits in zip(last, found, strict=True):
        with edited(model, *edits, tokenizer=tokenizer):
            alone = run(model, [*prompt, token])[0, -1]
        torch.testing.assert_close(logits, alone, rtol=0, atol=1e-5)


def test_a_text_is_found_among_generated_tokens(tiny, tokenizer):
    model = tiny("llama", vocab_size=len(tokenizer))
    ids = generate(model, [5, 7, 8], 8)[0].tolist()
    names = tokenizer.convert_ids_to_tokens(ids)
    place = next(n for n in range(3, 9) if names[n] not in names[:n] and ids[n] > 3)
    with edited(model, Cut(0, key=names[place]), tokenizer=tokenizer), capturing(model) as run_:
        generate(model, [5, 7, 8], 8)
    matrix = run_.trace[0, 2].to_dense()
    assert run_.trace.only_stack.tokens[: place + 1] == [str(i) for i in ids[: place + 1]]
    assert not matrix[:, place].any()
    assert (matrix[place + 1 :, place - 1] > 0).all()


def test_located_edits_do_not_pile_up_while_generating(tiny, tokenizer):
    model = tiny("llama", vocab_size=len(tokenizer))
    name = tokenizer.convert_ids_to_tokens([7])[0]
    ids, mask = padded([[5, 7, 8], [7, 7]])
    context = Editing([[Cut(0, key=name), Cut(1, query=name)]], tokenizer)
    with opened(model, context):
        model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    (call,) = context._calls.values()
    assert len(call.located) == len(call.given) == 4
    assert all(of == "decoder" for _, of, *_ in call.located)
    context = Editing([[Cut(0, key=name), Cut(1, query=name)]], tokenizer)
    with opened(model, context), torch.no_grad():
        model(torch.tensor([[5, 7, 8], [6, 7, 9], [7, 7, 7]]))
    (call,) = context._calls.values()
    assert len(call.located) == 6
    assert len(set(map(id, call.located.values()))) == len(call.given) == 4


def test_a_given_graph_must_reach_as_far_as_the_text_that_is_generated(tiny):
    model = tiny("llama")
    short = capture(IDS, model)[0, 0]
    with pytest.raises(EditError, match="generated ones too"), edited(model, Use(short, 0, 0)):
        generate(model, IDS)
    whole = capture(generate(model, IDS)[0].tolist(), model)
    with edited(model, *(Use(head, *place) for place, head in whole.only_stack.items())):
        assert torch.equal(generate(model, IDS), generate(model, IDS))
    with edited(model, Restrict(TokenGraph.window(30, 12))):  # The prompt is shorter.
        generate(model, IDS)


# Training


class Slopes(PositionWeight):
    def __init__(self, dtype):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.linspace(-0.5, 0.5, 4, dtype=dtype))

    def forward(self, query, key, pairs):
        return self.slopes * pairs.offset


class Scaled(WeightFunction):
    """A squared distance with a learned width a head: a plain pair function."""

    def __init__(self, dtype):
        super().__init__()
        self.width = torch.nn.Parameter(torch.linspace(0.2, 0.8, 4, dtype=dtype))

    def forward(self, query, key, pairs):
        return -self.width * (query - key).square().sum(-1)


@pytest.mark.parametrize("head", [None, [1, 3]], ids=str)
@pytest.mark.parametrize("kind", [Slopes, Scaled])
def test_gradients_are_those_of_finite_differences(tiny, kind, head):
    model = tiny("gpt2", "sdpa", torch.float64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    weight = kind(torch.float64)
    full = weight if kind is Scaled else ModelScore() + weight
    (parameter,) = weight.parameters()

    def loss():
        with edited(model, Swap(weight=full, head=head), Cut(0, 1, query=slice(3, None), key=0)):
            return model(torch.tensor([IDS]))[0].square().mean()

    (found,) = torch.autograd.grad(loss(), [parameter])
    for n in range(4):
        with torch.no_grad():
            values = []
            for step in (1e-5, -2e-5):
                parameter[n] += step
                values.append(float(loss()))
            parameter[n] += 1e-5
        expected = (values[0] - values[1]) / 2e-5
        assert abs(float(found[n]) - expected) < 1e-6 * max(1, abs(expected))
        assert (expected != 0) == (head is None or n in head)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_checkpointing_gives_the_same_gradients(tiny, name, reentrant):
    options = {"attention_dropout": 0.0} if name == "llama" else {}
    if name == "gpt2":
        options = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    if name == "bert":
        options = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    model = tiny(name, **options)
    if name == "bert":
        model.pooler = None
    weight = ModelScore() + Slopes(torch.float32)
    plain = gradients_of(model, weight)
    found = gradients_of(model, weight, reentrant)
    assert len(plain) == len(found) > 10
    for one, other in zip(plain, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert bool(plain[0].any())


def checkpointing(model):
    """How to switch checkpointing on; its name changed within transformers 5."""
    usual = "gradient_checkpointing_enable"
    return getattr(model, "activation_checkpointing_enable", None) or getattr(model, usual)


def gradients_of(model, weight, reentrant=None):
    model.train()
    model.zero_grad()
    weight.zero_grad()
    if reentrant is not None:
        checkpointing(model)({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    options = {} if type(model).__name__ == "BertModel" else {"use_cache": False}
    with edited(model, Swap(weight=weight), Cut(0, 1, query=slice(3, None), key=0)):
        model(torch.tensor([IDS]), **options)[0].square().mean().backward()
    if reentrant is not None:
        for layer in model.modules():
            layer.gradient_checkpointing = False
        model.disable_input_require_grads()
    model.eval()
    return [x.grad.clone() for x in (*weight.parameters(), *model.parameters())]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_backward_pass_that_would_miss_the_edits_is_refused(tiny, reentrant):
    model = tiny("llama").train()
    checkpointing(model)({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    with pytest.raises(EditError, match=r"call backward\(\) inside"), edited(model, Cut(0, 1)):
        model(torch.tensor([IDS]), use_cache=False)[0].square().mean()
    with torch.no_grad(), edited(model, Cut(0, 1)):
        model(torch.tensor([IDS]), use_cache=False)
    model.eval()
    with edited(model, Cut(0, 1)):
        model(torch.tensor([IDS]), use_cache=False)[0].square().mean().backward()


def test_a_model_learns_a_weight_function(tiny):
    """A few steps of gradient descent on nothing but the widths of a swapped-in distance."""
    model, weight = tiny("llama"), Scaled(torch.float32)
    model.requires_grad_(False)
    labels = torch.tensor([IDS])
    optimizer = torch.optim.Adam(weight.parameters(), 0.1)
    losses = []
    for _ in range(8):
        with edited(model, Swap(weight=weight)):
            loss = model(labels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half(tiny, dtype):
    edits = [Cut(0, 1, key=2), Scale(2.0, 1, 0), Swap(1, 3, weight=0.5 * ModelScore())]
    exact, half = tiny("llama"), tiny("llama", dtype=dtype)
    with edited(exact, *edits):
        expected = run(exact)
    with edited(half, *edits):
        found = run(half)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.5)
    with edited(half, Swap(weight=SquaredDistance())):
        assert run(half).dtype == dtype


def test_autocast_is_the_models_own_affair(tiny):
    model = tiny("llama")
    edits = [Cut(0, 1, key=2), Scale(2.0, 1, 0), Swap(1, 3, weight=0.5 * ModelScore())]
    with edited(model, *edits):
        exact = run(model)
    with torch.autocast("cpu", torch.bfloat16), edited(model, *edits):
        found = run(model)
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(found.float(), exact, rtol=0, atol=0.5)
    assert not torch.equal(found.float(), exact)


def test_kept_graphs_of_edited_heads_match_those_of_all_edges(tiny):
    model = tiny("llama")
    with edited(model, Cut(0, 1, key=2), Scale(2.0, 0, 2)):
        whole, kept = capture(IDS, model), capture(IDS, model, keep=TopK(2))
    for place, head in whole.only_stack.items():
        expected = head.keep(TopK(2))
        assert torch.equal(kept[place].graph.edge_index, expected.graph.edge_index)
        np.testing.assert_allclose(kept[place].attention, expected.attention, atol=1e-6)
