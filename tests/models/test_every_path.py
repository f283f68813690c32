"""Every cache with every way to generate: edits that change nothing change nothing.

What is returned, and its logits, are those of the plain model; the trace of each sequence is one
pass over its tokens, as the model itself reports it under eager.
"""

import numpy as np
import pytest
import torch
from old_transformers import attention_by, needs

from gattn import ModelScore, Scale, Swap, Use, capture, capturing, edited

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21, 11, 12, 13]
FEW = [7, 11, 23, 40]
PAD = 1
CACHES = {
    "none": ("llama", {}, {"use_cache": False}),
    "dynamic": ("llama", {}, {}),
    "absolute": ("gpt2", {"implementation": "eager"}, {}),
    "static": ("llama", {}, {"cache_implementation": "static", "disable_compile": True}),
    "sliding": ("mistral", {"sliding_window": 8}, {}),
    "static sliding": (
        "gemma2",
        {"implementation": "eager", "sliding_window": 8},
        {"cache_implementation": "static", "disable_compile": True},
    ),
    "sinks": ("gpt-oss", {"implementation": "eager", "sliding_window": 8}, {}),
    "unrouted": ("bloom", {"implementation": "eager", "initializer_range": 0.3}, {}),
    "encoder-decoder": ("t5", {}, {"decoder_start_token_id": 2}),
    "static encoder-decoder": (
        "bart",
        {},
        {
            "decoder_start_token_id": 2,
            "cache_implementation": "static",
            "disable_compile": True,
        },
    ),
}
WAYS = {
    "greedy": {},
    "sample": {"do_sample": True},
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
    "beams that end": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": [4, 9, 16, 30]},
    "chunks": {"prefill_chunk_size": 5},
    "padding": {"padded": True},
    "padded beams": {"padded": True, "num_beams": 2},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "assistant": {"assistant": True},
}
EDITS = {
    "scale": lambda whole: [Scale(1.0)],
    "some": lambda whole: [Scale(1.0, layer=0, head=[0, 2])],
    "score": lambda whole: [Swap(weight=ModelScore())],
    "own": lambda whole: [Use(head, *place) for place, head in whole.only_stack.items()],
}
SEARCHES = ("lookup", "assistant")
LACKS = {("sinks", "assistant"): needs("5.18", "raises in this search itself")}


def cases():
    for n, cache in enumerate(CACHES):
        for m, way in enumerate(WAYS):
            is_static = "static" in cache
            if (cache == "none" and way in ("chunks", *SEARCHES)) or (
                is_static and way in SEARCHES
            ):
                continue  # transformers itself wants a dynamic cache.
            if "encoder" in cache and ("pad" in way or way == "chunks"):
                continue  # Such texts are padded at their ends, which other tests do.
            names = list(EDITS)
            edit, marks = names[(n + m) % len(names)], LACKS.get((cache, way), ())
            yield pytest.param(cache, way, edit, id=f"{cache}-{way}", marks=marks)


def generate(model, cache, way, assistant=None):
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": PAD}
    options |= cache | WAYS[way] | {"suppress_tokens": [PAD]}
    ids = torch.tensor([IDS])
    if options.pop("padded", False):
        ids = torch.tensor([IDS, [PAD] * 8 + FEW])
        options["attention_mask"] = (ids != PAD).long()
    if options.pop("assistant", False):
        options["assistant_model"] = assistant
    torch.manual_seed(4)
    return model.generate(ids, return_dict_in_generate=True, output_logits=True, **options)


def ran(ids):
    """The tokens that ran: without padding, and without the last."""
    ids = ids.tolist()
    while ids[-1] == PAD:
        ids.pop()
    while ids[0] == PAD:
        ids.pop(0)
    return ids[:-1]


def edits_of(edit, model, found, way):
    """Edits that change nothing; a graph of one's own fits only the text that it is of."""
    if edit == "own" and (len(found) > 1 or "beams" in way or model.config.is_encoder_decoder):
        edit = "scale"
    if edit != "own":
        edits = EDITS[edit](None)
        if not model.config.is_encoder_decoder:
            return edits
        where = [{"stack": stack} for stack in ("encoder", "decoder", "cross")]
        return [type(one)(**{**vars(one), **some}) for one in edits for some in where]
    return EDITS[edit](capture(found[0], model))


def reported(model, ids):
    inputs = {"input_ids": torch.tensor([ids])}
    names = {"decoder": "attentions"}
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": inputs["input_ids"]}
        names = {name: f"{name}_attentions" for name in ("encoder", "decoder", "cross")}
    with attention_by(model, "eager"), torch.no_grad():
        output = model(**inputs, output_attentions=True, use_cache=False)
    return {stack: output[name] for stack, name in names.items()}


def is_one_pass(model, trace, ids):
    layers = reported(model, ids)
    for name, stack in trace.stacks.items():
        for (layer, h), head in stack.items():
            expected = layers[name][layer][0, h].numpy()
            np.testing.assert_allclose(head.to_dense(), expected, atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "way", "edit"), list(cases()))
def test_an_identity_on_every_path(tiny, cache, way, edit):
    name, options, how = CACHES[cache]
    model = tiny(name, **options)
    assistant = tiny(name, **options | ({"num_hidden_layers": 1} if name == "llama" else {}))
    plain = generate(model, how, way, assistant)
    edits = edits_of(edit, model, plain.sequences, way)
    with edited(model, *edits), capturing(model) as run:
        found = generate(model, how, way, assistant)
    assert torch.equal(found.sequences, plain.sequences)
    for one, other in zip(plain.logits, found.logits, strict=True):
        size = max(float(one.abs().max()), 1.0)
        torch.testing.assert_close(other, one, rtol=0, atol=1e-4 * size)
    if cache == "none" and "beams" not in way and "encoder" not in cache:
        return  # Each step is a trace of its own.
    rows = [ran(ids) for ids in found.sequences]
    for trace, ids in zip(run.traces, rows, strict=True):
        # Greedy and sampled rows go on with padding after their end.
        count = next(iter(trace.stacks["decoder"].values())).graph.num_queries
        ids += [PAD] * (count - len(ids))
        is_one_pass(model, trace, ids)


COMPRESSED = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
compresses = needs("5.21", "compresses no cache without another package")


@compresses
def test_a_compressed_cache_shows_what_the_model_reports(tiny):
    """Its keys are rounded after the prompt, so that a text is no longer one pass."""
    model, options = tiny("llama", "eager"), COMPRESSED | {"do_sample": False, "max_new_tokens": 6}
    with capturing(model) as run:
        found = model.generate(
            torch.tensor([IDS]), output_attentions=True, return_dict_in_generate=True, **options
        )
    assert run.trace.only_stack.tokens == [str(i) for i in found.sequences[0, :-1].tolist()]
    for (layer, h), head in run.trace.only_stack.items():
        dense, first = head.to_dense(), 0
        for step in found.attentions:
            rows = step[layer][0, h].numpy()
            here = dense[first : first + len(rows), : rows.shape[1]]
            np.testing.assert_allclose(here, rows, atol=2e-5)
            first += len(rows)


@compresses
@pytest.mark.parametrize("way", ["samples", "beams", "beams that end", "padded beams"])
def test_sequences_are_followed_in_a_compressed_cache(tiny, way):
    model = tiny("llama")
    plain = generate(model, COMPRESSED, way)
    with capturing(model) as run:
        found = generate(model, COMPRESSED, way)
    assert torch.equal(found.sequences, plain.sequences)
    for trace, ids in zip(run.traces, found.sequences, strict=True):
        rows = [str(i) for i in ran(ids)]
        assert trace.only_stack.tokens[: len(rows)] == rows
