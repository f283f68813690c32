"""Generation is recorded as one forward pass over all that came, without the last token."""

from threading import Thread

import numpy as np
import pytest
import torch
from old_transformers import attention_by
from transformers import DynamicCache, GenerationConfig

from gattn import All, Cut, Threshold, TopK, TopMass, capture, capturing, edited
from gattn.errors import CaptureError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21, 11, 12, 13]
FEW = [7, 11, 23, 40]
WINDOW = {"sliding_window": 8}
MODELS = [
    ("llama", "sdpa", {}),
    ("llama", "eager", {}),
    ("qwen2", "sdpa", {}),
    ("gpt2", "sdpa", {}),
    ("opt", "eager", {}),
    ("mistral", "sdpa", WINDOW),
    ("mistral", "eager", WINDOW),
    ("gemma2", "eager", WINDOW),
    ("gemma3", "sdpa", {}),
    ("gpt-oss", "eager", WINDOW),
    ("bloom", "eager", {"initializer_range": 0.3}),
]


def gemma3(implementation):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    config = Gemma3TextConfig(
        vocab_size=60,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=8,
        initializer_range=0.3,
        pad_token_id=0,
        attn_implementation=implementation,
        **sizes,
    )
    model = Gemma3ForCausalLM(config).eval()
    torch.random.set_rng_state(state)
    return model


@pytest.fixture(scope="module")
def build(tiny):
    def built(name, implementation="sdpa", **options):
        if name == "gemma3":
            return gemma3(implementation)
        return tiny(name, implementation, **options)

    return built


def generate(model, ids, count=6, mask=None, **options):
    ids = torch.tensor(ids if isinstance(ids[0], list) else [ids])
    if mask is not None:
        options["attention_mask"] = mask
    options = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count} | options
    return model.generate(ids, **options)


def reported(model, inputs):
    """What the model itself reports, under eager, in one pass: layers of (heads, N, N)."""
    with attention_by(model, "eager"), torch.no_grad():
        return model(**inputs, output_attentions=True, use_cache=False)


def same_as_one_pass(model, trace, ids):
    (stack,) = trace.stacks.values()
    output = reported(model, {"input_ids": ids[None]})
    assert len(stack) == len(output.attentions) * len(output.attentions[0][0])
    for (layer, h), head in stack.items():
        expected = output.attentions[layer][0, h]
        np.testing.assert_allclose(head.to_dense(), expected, atol=1e-5, err_msg=(layer, h))
    return output.logits[0]


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("count", [1, 6, 14])
@pytest.mark.parametrize("prompt", [IDS, FEW, [9]], ids=len)
@pytest.mark.parametrize(("name", "implementation", "options"), MODELS, ids=str)
def test_a_generated_text_is_one_pass(build, name, implementation, options, prompt, count, cache):
    """Windows of 8 tokens meet prompts that are shorter and longer, caches that roll over."""
    model = build(name, implementation, **options)
    chosen = {"cache_implementation": cache} if cache else {}
    with capturing(model) as run:
        ids = generate(model, prompt, count, **chosen)[0]
    assert torch.equal(ids, generate(model, prompt, count, **chosen)[0])
    logits = same_as_one_pass(model, run.trace, ids[:-1])
    assert run.trace.generated == count - 1
    assert list(run.trace.only_stack.tokens) == [str(int(i)) for i in ids[:-1]]
    assert run.trace.logits.shape == (count, 60)
    torch.testing.assert_close(run.trace.logits, logits[-count:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_sampled_text_is_one_pass(build, name, cache):
    model = build(name)
    chosen = {"cache_implementation": cache} if cache else {}
    torch.manual_seed(3)
    with capturing(model) as run:
        ids = generate(model, IDS, do_sample=True, temperature=2.0, **chosen)[0]
    torch.manual_seed(3)
    assert torch.equal(ids, generate(model, IDS, do_sample=True, temperature=2.0, **chosen)[0])
    same_as_one_pass(model, run.trace, ids[:-1])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize(
    ("name", "implementation", "options"), [x for x in MODELS if x[0] != "opt"], ids=str
)
def test_a_padded_batch_is_a_pass_for_each(build, name, implementation, options, cache):
    model = build(name, implementation, **options)
    rows = [IDS, FEW, [9]]
    ids = [[0] * (12 - len(row)) + row for row in rows]
    mask = torch.tensor([[0] * (12 - len(row)) + [1] * len(row) for row in rows])
    chosen = {"cache_implementation": cache} if cache else {}
    with capturing(model) as run:
        found = generate(model, ids, 7, mask, **chosen)
    assert len(run.traces) == 3
    for row, new, trace in zip(rows, found[:, 12:], run.traces, strict=True):
        whole = torch.tensor([*row, *new[:-1].tolist()])
        same_as_one_pass(model, trace, whole)
        assert trace.generated == 6
        assert {head.generated for head in trace.heads()} == {6}
        assert list(trace.only_stack.tokens) == [str(int(i)) for i in whole]


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_decoder_generates_in_three_stacks(tiny, name, implementation, cache):
    model = tiny(name, implementation)
    rows = [IDS, FEW]
    padding = model.config.pad_token_id
    ids = [row + [padding] * (12 - len(row)) for row in rows]
    mask = torch.tensor([[1] * len(row) + [0] * (12 - len(row)) for row in rows])
    options = {"cache_implementation": cache} if cache else {}
    with capturing(model) as run:
        found = generate(model, ids, 6, mask, decoder_start_token_id=2, **options)
    for row, decoder, trace in zip(rows, found[:, :-1], run.traces, strict=True):
        inputs = {"input_ids": torch.tensor([row]), "decoder_input_ids": decoder[None]}
        output = reported(model, inputs)
        assert list(trace.stacks) == ["encoder", "decoder", "cross"]
        for stack in trace.stacks:
            layers = output[f"{stack}_attentions"]
            assert trace[stack].layers == list(range(len(layers)))
            for (layer, h), head in trace[stack].items():
                np.testing.assert_allclose(head.to_dense(), layers[layer][0, h], atol=1e-5)
        assert trace.generated == 5
        counts = {name: {h.generated for h in one.values()} for name, one in trace.stacks.items()}
        assert counts == {"encoder": {0}, "decoder": {5}, "cross": {5}}
        assert trace["encoder"].tokens == trace["cross"].tokens == [str(i) for i in row]
        decoded = [str(int(i)) for i in decoder]
        assert trace["decoder"].tokens == trace["cross"][0, 0].query_labels() == decoded
        torch.testing.assert_close(trace.logits, output.logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("keep", [TopK(2), Threshold(0.1), TopMass(0.8), All()], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral", "bloom"])
def test_keeping_while_generating_is_keeping_afterwards(build, name, keep):
    model = build(name, "eager", **(WINDOW if name == "mistral" else {}))
    contributions = name != "bloom"
    options = {"scores": True, "contributions": contributions}
    with capturing(model, keep=keep, **options) as run:
        ids = generate(model, IDS)[0]
    whole = capture(ids[:-1], model, **options)
    for place, head in whole.only_stack.items():
        found, expected = run.trace[place], head.keep(keep)
        assert torch.equal(found.graph.edge_index, expected.graph.edge_index)
        names = ["attention", "score", "total_mass", "kept_mass"]
        for name in [*names, "contribution"] if contributions else names:
            np.testing.assert_allclose(
                getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5
            )
        assert found.dropped_edges.tolist() == expected.dropped_edges.tolist()


def test_chosen_layers_and_heads_of_a_generated_text(build):
    model = build("llama")
    with capturing(model, layers=[1], heads=[3, 0]) as run:
        ids = generate(model, IDS)[0]
    whole = capture(ids[:-1], model)
    assert sorted(run.trace.only_stack) == [(1, 0), (1, 3)]
    assert run.trace.generated == 5
    for place, head in run.trace.only_stack.items():
        np.testing.assert_allclose(head.to_dense(), whole[place].to_dense(), atol=1e-5)


def test_a_tokenizer_names_generated_tokens(tiny, tokenizer):
    model = tiny("llama", vocab_size=len(tokenizer))
    with capturing(model, tokenizer) as run:
        ids = generate(model, [5, 7, 8])[0]
    names = [tokenizer.convert_ids_to_tokens([int(i)])[0].removeprefix("##") for i in ids[:-1]]
    assert run.trace.only_stack.tokens == names


# Several texts, other ways to generate


def test_two_texts_in_one_context_have_a_trace_each(build):
    model = build("llama")
    with capturing(model) as run:
        one, other = generate(model, IDS, 4)[0], generate(model, FEW, 3)[0]
        with torch.no_grad():
            model(torch.tensor([[3, 4, 5]]))
    for ids, trace in zip((one[:-1], other[:-1], torch.tensor([3, 4, 5])), run.traces, strict=True):
        same_as_one_pass(model, trace, ids)
    assert [trace.generated for trace in run.traces] == [3, 2, 0]
    with pytest.raises(CaptureError, match=r"3 sequences ran.*run\.traces"):
        run.trace  # noqa: B018


def test_several_samples_of_a_prompt_have_a_trace_each(build):
    model = build("llama")
    torch.manual_seed(0)
    with capturing(model) as run:
        found = generate(model, IDS, do_sample=True, num_return_sequences=3)
    assert len({tuple(ids.tolist()) for ids in found}) > 1
    for ids, trace in zip(found, run.traces, strict=True):
        same_as_one_pass(model, trace, ids[:-1])


def test_samples_of_one_encoded_text_share_its_encoder(tiny):
    """The text is encoded once, and its encoder is in the trace of each sample."""
    model = tiny("t5")
    options = {"do_sample": True, "num_return_sequences": 2, "decoder_start_token_id": 0}
    with capturing(model) as run:
        generate(model, IDS, **options)
        generate(tiny("t5"), FEW, **options)  # Another model of the same kind.
    assert [list(trace.stacks) for trace in run.traces] == [["encoder", "decoder", "cross"]] * 2


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_samples_of_several_encoded_texts_keep_their_text(tiny, name):
    """Each sample's cross-attention and encoder are those of its own text."""
    model = tiny(name, "eager")
    ids = torch.tensor([[5, 17, 42, 8, 1], [9, 21, 33, 0, 0], [7, 7, 50, 11, 0]])
    mask = (ids > 0).long()
    options = {"do_sample": True, "num_return_sequences": 2, "decoder_start_token_id": 0}
    torch.manual_seed(3)
    with capturing(model) as run:
        found = model.generate(ids, attention_mask=mask, max_new_tokens=4, **options)
    assert len(run.traces) == 6
    for number, trace in enumerate(run.traces):
        text = ids[number // 2][mask[number // 2].bool()]
        decoder = found[number][: trace["decoder"][0, 0].graph.num_tokens]
        assert trace["encoder"].tokens == trace["cross"].tokens == [str(int(i)) for i in text]
        assert trace["cross"][0, 0].query_tokens == tuple(str(int(i)) for i in decoder)
        with torch.no_grad():
            own = model(text[None], decoder_input_ids=decoder[None], output_attentions=True)
        for stack, layers in {
            "encoder": own.encoder_attentions,
            "decoder": own.decoder_attentions,
            "cross": own.cross_attentions,
        }.items():
            for (layer, head), graph in trace[stack].items():
                expected = layers[layer][0, head].numpy()
                np.testing.assert_allclose(graph.to_dense(), expected, atol=1e-5)


def test_encoder_outputs_in_another_order_keep_their_text(tiny):
    model, start = tiny("t5"), torch.zeros(3, 1, dtype=torch.long)
    ids = torch.tensor([[5, 17, 42, 8, 1], [9, 21, 33, 4, 6]])
    with capturing(model) as run, torch.no_grad():
        encoded = model.encoder(ids).last_hidden_state
        model(encoder_outputs=(encoded[[1, 0, 1]],), decoder_input_ids=start)
    names = [[str(int(i)) for i in ids[n]] for n in (1, 0, 1)]
    assert [trace["cross"].tokens for trace in run.traces] == names
    assert [trace["encoder"].tokens for trace in run.traces] == names


def test_encoder_outputs_of_another_text_have_no_names(tiny):
    model, start = tiny("t5"), torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        encoded = model.encoder(torch.tensor([[9, 21, 33, 4, 6]])).last_hidden_state
        with capturing(model) as run:
            model.encoder(torch.tensor([[5, 17, 42, 8, 1]]))
            model(encoder_outputs=(encoded,), decoder_input_ids=start)
    first, second = run.traces
    assert first["encoder"].tokens == ["5", "17", "42", "8", "1"]
    assert list(second.stacks) == ["decoder", "cross"]
    assert second["cross"][0, 0].tokens == ()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_decoder_goes_on_with_the_text_whose_encoder_it_is_given(tiny, name):
    """Whatever was encoded in between: another text, or one in another order."""
    model = tiny(name, "eager")
    texts, starts = [torch.tensor([row]) for row in (IDS, FEW)], torch.tensor([[2, 7, 9]])
    with capturing(model) as run, torch.no_grad():
        encoded = [model.get_encoder()(text) for text in texts]
        for one in encoded:
            model(encoder_outputs=one, decoder_input_ids=starts)
    assert len(run.traces) == 2
    for text, trace in zip(texts, run.traces, strict=True):
        output = reported(model, {"input_ids": text, "decoder_input_ids": starts})
        assert list(trace.stacks) == ["encoder", "decoder", "cross"]
        assert trace["cross"].tokens == trace["encoder"].tokens == [str(int(i)) for i in text[0]]
        for (layer, h), head in trace["cross"].items():
            expected = output.cross_attentions[layer][0, h]
            np.testing.assert_allclose(head.to_dense(), expected, atol=1e-5)
    with capturing(model) as run, torch.no_grad():
        model.get_encoder()(texts[0])
        unknown = (torch.randn_like(encoded[0][0]),)
        model(encoder_outputs=unknown, decoder_input_ids=starts)
    assert [list(trace.stacks) for trace in run.traces] == [["encoder"], ["decoder", "cross"]]
    assert run.traces[1]["cross"].tokens != run.traces[0]["encoder"].tokens


def test_without_a_cache_each_step_is_a_pass_of_its_own(build):
    model = build("llama")
    with capturing(model) as run:
        ids = generate(model, FEW, 3, use_cache=False)[0]
    assert [trace[0, 0].graph.num_tokens for trace in run.traces] == [4, 5, 6]
    for count, trace in zip((4, 5, 6), run.traces, strict=True):
        same_as_one_pass(model, trace, ids[:count])
        assert trace.generated == 0


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_a_loop_of_ones_own_is_one_pass(build, name):
    model = build(name, **(WINDOW if name == "mistral" else {}))
    cache, logits = None, []
    with capturing(model) as run, torch.no_grad():
        for part in (IDS[:4], IDS[4:5], IDS[5:6], IDS[6:10], IDS[10:]):
            output = model(torch.tensor([part]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits[0])
    expected = same_as_one_pass(model, run.trace, torch.tensor(IDS))
    assert run.trace.only_stack.tokens == [str(i) for i in IDS]
    assert torch.equal(run.trace.logits, torch.cat(logits))
    torch.testing.assert_close(run.trace.logits, expected, rtol=0, atol=1e-4)


def test_a_prompt_in_pieces_is_one_pass(build):
    model = build("llama")
    with capturing(model) as run:
        ids = generate(model, IDS, 4, prefill_chunk_size=5)[0]
    same_as_one_pass(model, run.trace, ids[:-1])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 6, 11, 12, 20])
def test_the_pieces_of_a_prompt_are_not_generated(build, chunk, cache):
    model = build("llama")
    options = {"cache_implementation": cache} if cache else {}
    with capturing(model) as run:
        ids = generate(model, IDS, 4, prefill_chunk_size=chunk, **options)[0]
    assert run.trace.generated == 3
    assert {head.generated for head in run.trace.heads()} == {3}
    assert run.trace.only_stack.tokens == [str(int(i)) for i in ids[:-1]]
    assert run.trace.logits[-4:].argmax(-1).tolist() == ids[-4:].tolist()
    same_as_one_pass(model, run.trace, ids[:-1])


def test_what_came_after_the_last_prompt_is_generated(build):
    """A second turn begins with the text so far and what its reader says."""
    model = build("llama")
    cache = DynamicCache(config=model.config)
    with capturing(model) as run:
        one = generate(model, IDS, 4, past_key_values=cache)[0]
        assert run.trace.generated == 3
        text = [*one.tolist(), *FEW]
        whole = torch.ones(1, len(text), dtype=torch.long)
        two = generate(model, text, 3, whole, past_key_values=cache)[0]
    assert run.trace.generated == 2
    assert run.trace.only_stack.tokens == [str(int(i)) for i in two[:-1]]
    same_as_one_pass(model, run.trace, two[:-1])


def ending(model, rows, **options):
    """Sample until each text ends by itself, at its own length: the text of each, its logits."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    found = model.generate(
        ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **options
    )
    texts = []
    for row, new in zip(rows, found.sequences[:, width:].tolist(), strict=True):
        stop = new.index(2) + 1 if 2 in new else len(new)
        texts.append(row + new[:stop])
    return texts, torch.stack(found.logits, 1)


ROWS = [IDS, FEW, [9], [3, 3, 3], [50, 40, 30, 20, 10], [7]]
ENDS = {"do_sample": True, "max_new_tokens": 16, "temperature": 3.0}


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama", "mistral", "bloom"])
@pytest.mark.parametrize("pad", [0, 2], ids=["pad", "eos"])
def test_texts_that_end_early_have_the_traces_that_they_have_alone(build, name, cache, pad):
    """What `generate` feeds of a text that has ended is padding, whatever its mask says."""
    model = build(name, "eager", vocab_size=6)
    rows = [[token % 3 + 3 for token in row] for row in ROWS]
    options = ENDS | {"pad_token_id": pad, "eos_token_id": 2}
    if cache and name != "bloom":
        options["cache_implementation"] = cache
    torch.manual_seed(5)
    with capturing(model) as run:
        texts, logits = ending(model, rows, **options)
    lengths = [len(text) - len(row) for text, row in zip(texts, rows, strict=True)]
    assert len(set(lengths)) > 2
    assert min(lengths) < 5
    for number, (row, text, trace) in enumerate(zip(rows, texts, run.traces, strict=True)):
        count = lengths[number]
        assert trace.only_stack.tokens == [str(i) for i in text[:-1]]
        assert trace.generated == count - 1
        assert {head.generated for head in trace.heads()} == {count - 1}
        assert torch.equal(trace.logits, logits[number, :count])
        same_as_one_pass(model, trace, torch.tensor(text[:-1]))
        assert len(trace.only_stack.tokens) == len(row) + count - 1


def test_texts_of_an_encoder_decoder_that_end_early(tiny):
    model = tiny("bart", "eager", vocab_size=6)
    rows = torch.tensor([[3, 4, 5, 3], [5, 5, 4, 3], [4, 3, 3, 3], [4, 4, 4, 4]])
    torch.manual_seed(4)
    with capturing(model) as run:
        found = model.generate(rows, decoder_start_token_id=1, forced_eos_token_id=None, **ENDS)
    ends = [[*row.tolist(), 2].index(2, 1) for row in found]
    assert len(set(ends)) > 1
    for row, decoded, stop, trace in zip(rows, found, ends, run.traces, strict=True):
        decoder = decoded[: min(stop, len(decoded) - 1)]
        inputs = {"input_ids": row[None], "decoder_input_ids": decoder[None]}
        output = reported(model, inputs)
        for stack in ("decoder", "cross"):
            for (layer, h), head in trace[stack].items():
                expected = output[f"{stack}_attentions"][layer][0, h]
                np.testing.assert_allclose(head.to_dense(), expected, atol=1e-5)
        assert trace.generated == len(decoder) - 1
        assert trace["decoder"].tokens == [str(int(i)) for i in decoder]


def test_tokens_after_an_end_that_nobody_heeds_are_real(build):
    """In a loop of one's own, and where a text is told to go on, an end is a token like others."""
    model = build("llama")
    ids = [5, 2, 0, 0, 7, 2]
    with torch.no_grad(), capturing(model) as run:
        cache = None
        for token in ids:
            output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
    assert run.trace.only_stack.tokens == [str(i) for i in ids]
    same_as_one_pass(model, run.trace, torch.tensor(ids))


def test_vectors_in_place_of_tokens_have_no_names(build):
    model = build("llama")
    vectors = model.get_input_embeddings()(torch.tensor([IDS])).detach()
    with capturing(model) as run, torch.no_grad():
        model(torch.tensor([IDS]))
        model(inputs_embeds=vectors)
        model.generate(inputs_embeds=vectors, max_new_tokens=3, do_sample=False)
    assert run.traces[0].only_stack.tokens == [str(i) for i in IDS]
    assert run.traces[1][0, 0].tokens == ()
    assert run.traces[2][0, 0].tokens == ()
    for place, head in run.traces[0].only_stack.items():
        np.testing.assert_allclose(head.attention, run.traces[1][place].attention, atol=1e-6)


# Refusals


@pytest.mark.parametrize("stack", ["llama", "t5"])
def test_a_cache_from_before_is_refused(tiny, stack):
    model = tiny(stack)
    inputs = {"input_ids": torch.tensor([IDS])}
    if stack == "t5":
        inputs["decoder_input_ids"] = torch.tensor([FEW])
    with torch.no_grad():
        output = model(**inputs, use_cache=True)
    name = "input_ids" if stack == "llama" else "decoder_input_ids"
    more = inputs | {name: torch.tensor([[3]])}
    with (
        pytest.raises(
            CaptureError, match=r"cache of \d+ tokens that were not recorded.*before the prompt"
        ),
        capturing(model),
        torch.no_grad(),
    ):
        model(**more, past_key_values=output.past_key_values)


def test_going_on_after_a_prompt_that_failed_says_so(build):
    model = build("llama")
    cache = DynamicCache(config=model.config)
    handle = model.lm_head.register_forward_pre_hook(lambda module, given: 1 / 0)
    with torch.no_grad(), capturing(model):
        with pytest.raises(ZeroDivisionError):
            model(torch.tensor([IDS]), past_key_values=cache)
        handle.remove()
        with pytest.raises(CaptureError, match=r"calls left 0 in it, .* by a call that failed"):
            model(torch.tensor([[4]]), past_key_values=cache)
        model(torch.tensor([IDS]))
    with pytest.raises(CaptureError, match=r"Every call of LlamaForCausalLM .* failed"):
        one_that_fails(model)


def one_that_fails(model):
    with torch.no_grad(), capturing(model), pytest.raises(IndexError):
        model(torch.tensor([[10**6]]))


def test_text_generated_by_another_thread_is_not_seen_and_that_is_said(build):
    """So it goes with streamers, and with continuous batching, which generate in a thread."""
    model = build("llama")

    def elsewhere():
        thread = Thread(target=generate, args=[model, IDS])
        thread.start()
        thread.join()

    with pytest.raises(CaptureError, match="was not called"), capturing(model):
        elsewhere()


def test_a_context_without_a_call_has_nothing_to_capture(build):
    model = build("llama")
    with (
        pytest.raises(CaptureError, match="LlamaForCausalLM was not called"),
        capturing(model) as run,
    ):
        pass
    with pytest.raises(CaptureError, match="No sequence ran: call the model"):
        run.trace  # noqa: B018
    assert run.traces == []


def test_a_model_in_training_does_not_generate_a_trace(build):
    from gattn.errors import ModelError

    model = build("llama").train()
    with pytest.raises(ModelError, match=r"training mode.*eval\(\)"), capturing(model):
        model(torch.tensor([IDS]))


def test_a_function_of_ones_own_is_not_taken_for_a_search(tiny):
    """Whatever its name, and though it is given the model: its steps are steps, as any others."""
    model = tiny("llama")
    prompt = torch.tensor([[5, 17, 42, 17]])

    def decode(self):
        unfinished_sequences = torch.zeros(1)
        cache = self(prompt, use_cache=True).past_key_values
        for token in (8, 33):
            self(torch.tensor([[token]]), past_key_values=cache)
        return unfinished_sequences

    def _prefill_and_decode(self):
        return decode(self)

    def _beam_search(self):
        return decode(self)

    def _sample(self):
        unfinished_sequences = torch.zeros(1)
        decode(self)
        return unfinished_sequences

    def generate(self):
        inputs_tensor = prompt + 1
        decode(self)
        return inputs_tensor

    def _prefill(self, generation_config):
        return decode(self)

    traces = []
    for function in (decode, _prefill_and_decode, _beam_search, _sample, generate):
        with capturing(model) as run, torch.no_grad():
            function(model)
        traces.append(run.trace)
    for trace in traces:
        assert trace.generated == 2
        assert trace.only_stack.tokens == traces[0].only_stack.tokens
        for place, head in trace.only_stack.items():
            np.testing.assert_array_equal(head.attention, traces[0][place].attention)
    chunks = GenerationConfig(prefill_chunk_size=2)
    with edited(model, Cut(layer=0, head=0, key=-3, renormalize=False)), torch.no_grad():
        _prefill(model, chunks)
