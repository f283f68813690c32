"""Sequences are followed through caches that are copied, reordered, repeated, cut and searched.

Whatever was done to a cache, a trace is one pass over the tokens of its sequence, and the model
runs as it does without gattn.
"""

import copy
import warnings

import numpy as np
import pytest
import torch
from old_transformers import attention_by, needs

from gattn import Cut, Restrict, Scale, TokenGraph, TopK, capture, capturing, edited
from gattn.errors import CaptureError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21, 11, 12, 13]
FEW = [7, 11, 23, 40]
WINDOW = {"sliding_window": 8}
MODELS = [
    ("llama", {}),
    ("gpt2", {}),
    ("mistral", WINDOW),
    ("bloom", {"implementation": "eager", "initializer_range": 0.3}),
]


def attentions(model, ids, text=None):
    """What the model itself reports in one pass: by stack and layer, (heads, queries, keys)."""
    inputs = {"input_ids": torch.as_tensor(ids)[None]}
    if text is not None:
        inputs = {
            "input_ids": torch.as_tensor(text)[None],
            "decoder_input_ids": inputs["input_ids"],
        }
    with attention_by(model, "eager"), torch.no_grad():
        output = model(**inputs, output_attentions=True, use_cache=False)
    if text is None:
        return {"decoder": output.attentions}, output.logits[0]
    names = ("encoder", "decoder", "cross")
    return {name: output[f"{name}_attentions"] for name in names}, output.logits[0]


def is_one_pass(model, trace, ids, text=None):
    stacks, logits = attentions(model, ids, text)
    assert set(trace.stacks) == set(stacks)
    for name, layers in stacks.items():
        assert len(trace[name]) == sum(len(layer[0]) for layer in layers)
        for (layer, h), head in trace[name].items():
            expected = layers[layer][0, h].numpy()
            np.testing.assert_allclose(head.to_dense(), expected, atol=1e-5, err_msg=(name, layer))
    return logits


def are_passes(model, run, rows):
    """Hold each trace to one pass over its tokens; return the traces' tokens."""
    assert [list(trace.only_stack.tokens) for trace in run.traces] == [
        [str(int(i)) for i in row] for row in rows
    ]
    for trace, row in zip(run.traces, rows, strict=True):
        logits = is_one_pass(model, trace, row)
        torch.testing.assert_close(trace.logits, logits, rtol=0, atol=1e-4)


@pytest.fixture(params=MODELS, ids=lambda x: x[0])
def model(request, tiny):
    name, options = request.param
    return tiny(name, **options)


@torch.no_grad()
def step(model, cache, *rows):
    return model(torch.tensor(rows), past_key_values=cache, use_cache=True).past_key_values


def prompt(model, *rows):
    return step(model, None, *rows)


# Copies of a prompt's cache


def test_each_copy_of_a_prompt_goes_on_with_the_prompt(model):
    with capturing(model) as run:
        cache = prompt(model, IDS)
        for ids in ([3, 4], [5, 6, 7], [8]):
            branch = copy.deepcopy(cache)
            for number in ids:
                branch = step(model, branch, [number])
        step(model, cache, [9])
    are_passes(model, run, [[*IDS, 3, 4], [*IDS, 5, 6, 7], [*IDS, 8], [*IDS, 9]])


def test_generating_from_copies_of_a_prompt(tiny):
    model = tiny("llama")
    plain, found = [], []
    for chosen in (plain, found):
        context = capturing(model) if chosen is found else warnings.catch_warnings()
        with context as run:
            cache = prompt(model, IDS)
            for more in ([30, 31], [32]):
                ids = torch.tensor([[*IDS, *more]])
                options = {"past_key_values": copy.deepcopy(cache), "max_new_tokens": 4}
                chosen.append(model.generate(ids, do_sample=False, **options)[0])
    assert all(torch.equal(*pair) for pair in zip(plain, found, strict=True))
    are = [trace.only_stack.tokens for trace in run.traces]
    assert are == [[str(int(i)) for i in ids[:-1]] for ids in found]
    for trace, ids in zip(run.traces, found, strict=True):
        is_one_pass(model, trace, ids[:-1])


def test_a_copy_goes_on_after_its_original_is_gone(model):
    with capturing(model) as run:
        cache = prompt(model, IDS)
        branch = copy.deepcopy(cache)
        del cache
        step(model, branch, [4])
    are_passes(model, run, [[*IDS, 4]])


def test_a_copy_is_refused_where_its_prompt_was_not_recorded(model):
    cache = prompt(model, IDS)
    says = "12 tokens that were not recorded"
    with pytest.raises(CaptureError, match=says), capturing(model):
        step(model, copy.deepcopy(cache), [4])


# Rows in another order, fewer, more


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("order", "rows"),
    [
        ([1, 0, 2], [[*IDS, 4], [*IDS[::-1], 3], [*IDS[6:], *IDS[:6], 5]]),
        ([0, 0, 2], [[*IDS, 3], [*IDS, 4], IDS[::-1], [*IDS[6:], *IDS[:6], 5]]),
        ([2, 0], [[*IDS, 4], IDS[::-1], [*IDS[6:], *IDS[:6], 3]]),
        ([1], [IDS, [*IDS[::-1], 3], [*IDS[6:], *IDS[:6]]]),
    ],
    ids=str,
)
def test_rows_are_followed(model, order, rows, by_hand):
    """By the cache's methods, or as one's own beam search does it."""
    with capturing(model) as run:
        cache = prompt(model, IDS, IDS[::-1], [*IDS[6:], *IDS[:6]])
        if by_hand:
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[order], layer.values[order]
        elif len(order) == 3:
            cache.reorder_cache(torch.tensor(order))
        else:
            cache.batch_select_indices(torch.tensor(order))
        step(model, cache, *([3 + n] for n in range(len(order))))
    are_passes(model, run, rows)


def test_rows_are_followed_step_by_step(tiny):
    """A beam search of one's own: each step takes its rows from others."""
    model = tiny("llama")
    texts = [list(IDS), list(IDS[::-1])]
    generator = torch.Generator().manual_seed(0)
    with capturing(model, keep=TopK(64)) as run:
        cache = prompt(model, *texts)
        for _ in range(8):
            order = torch.randint(0, 2, (2,), generator=generator)
            new = torch.randint(3, 60, (2,), generator=generator).tolist()
            cache.reorder_cache(order)
            texts = [[*texts[n], more] for n, more in zip(order.tolist(), new, strict=True)]
            cache = step(model, cache, *([more] for more in new))
    ran = {tuple(trace.only_stack.tokens): trace for trace in run.traces}
    for text in texts:
        is_one_pass(model, ran[tuple(str(i) for i in text)], text)
    assert len(ran) == len(run.traces)
    for tokens, trace in ran.items():
        is_one_pass(model, trace, [int(i) for i in tokens])


def test_a_repeated_prompt_goes_on_in_each_row(model):
    with capturing(model) as run:
        cache = prompt(model, IDS, IDS[::-1])
        cache.batch_repeat_interleave(2)
        step(model, cache, [3], [4], [5], [6])
    are_passes(model, run, [[*IDS, 3], [*IDS, 4], [*IDS[::-1], 5], [*IDS[::-1], 6]])


def test_padding_is_followed_with_its_row(tiny):
    model = tiny("llama")
    ids = torch.tensor([IDS, [0] * 8 + FEW])
    mask = torch.tensor([[1] * 12, [0] * 8 + [1] * 4])
    with capturing(model) as run, torch.no_grad():
        cache = model(ids, attention_mask=mask).past_key_values
        cache.reorder_cache(torch.tensor([1, 1]))
        mask = torch.cat([mask[[1, 1]], torch.ones(2, 1, dtype=torch.long)], 1)
        position = torch.tensor([[12], [12]])
        new = torch.tensor([[3], [4]])
        model(new, attention_mask=mask, position_ids=position, past_key_values=cache)
    for trace, row in zip(run.traces, (IDS, [*FEW, 3], [*FEW, 4]), strict=True):
        assert trace.only_stack.tokens == [str(i) for i in row]
        is_one_pass(model, trace, row)


@pytest.mark.parametrize("layers", [1, 2])
def test_encoded_texts_are_followed(tiny, layers):
    """The first layer's keys of a decoder are those of its tokens, whatever text it reads."""
    model = tiny("t5", num_layers=layers)
    texts, start = [IDS[:6], IDS[6:]], torch.zeros(2, 1, dtype=torch.long)
    with capturing(model) as run, torch.no_grad():
        encoded = model.encoder(torch.tensor(texts))
        cache = model(encoder_outputs=encoded, decoder_input_ids=start).past_key_values
        cache.reorder_cache(torch.tensor([1, 0]))
        other = type(encoded)(last_hidden_state=encoded.last_hidden_state[[1, 0]])
        new = torch.tensor([[3], [4]])
        model(encoder_outputs=other, decoder_input_ids=new, past_key_values=cache)
    for trace, text, more in zip(run.traces, texts, ([0, 4], [0, 3]), strict=True):
        assert trace["decoder"].tokens == [str(i) for i in more]
        is_one_pass(model, trace, more, text)


def test_a_long_search_forgets_no_prompt(tiny):
    model = tiny("gpt2")
    with capturing(model, keep=TopK(4)) as run:
        cache = prompt(model, IDS)
        searched(model, ids=[FEW], num_beams=2, max_new_tokens=40, min_new_tokens=40)
        step(model, copy.deepcopy(cache), [3])
    first, second = run.traces
    assert first.only_stack.tokens == [str(i) for i in [*IDS, 3]]
    assert len(second.only_stack.tokens) == 43


# Tokens that are taken back


def test_tokens_are_taken_back(tiny):
    model = tiny("llama")
    with capturing(model) as run:
        cache = prompt(model, IDS)
        cache = step(model, cache, [3, 4, 5, 6])
        cache.crop(-3)
        cache = step(model, cache, [7])
        cache = step(model, cache, [8])
    are_passes(model, run, [[*IDS, 3, 7, 8]])


@pytest.mark.parametrize("keep", [None, TopK(2)], ids=str)
def test_a_cropped_copy_leaves_its_original(tiny, keep):
    model = tiny("gpt2")
    with capturing(model, keep=keep, contributions=True, scores=True) as run:
        cache = prompt(model, IDS)
        branch = copy.deepcopy(cache)
        branch.crop(-5)
        step(model, branch, [3])
        step(model, cache, [4])
    for trace, ids in zip(run.traces, ([*IDS, 4], [*IDS[:-5], 3]), strict=True):
        whole = capture(torch.tensor(ids), model, keep=keep, contributions=True, scores=True)
        assert trace.only_stack.tokens == whole.only_stack.tokens
        for place, head in whole.only_stack.items():
            found = trace[place]
            assert torch.equal(found.graph.edge_index, head.graph.edge_index)
            for name in ("attention", "score", "contribution", "total_mass", "kept_mass"):
                one, other = getattr(found, name), getattr(head, name)
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_keys_that_were_changed_are_refused(tiny):
    model = tiny("llama")
    with capturing(model):
        cache = prompt(model, IDS)
        cache.layers[-1].keys[:, :, 3] += 1
        with pytest.raises(CaptureError, match="not recorded"):
            step(model, cache, [3])


@pytest.mark.parametrize("kind", ["keys", "values"])
@pytest.mark.parametrize("layer", [0, 1])
def test_layers_in_different_orders_are_refused(tiny, layer, kind):
    model = tiny("llama")
    with capturing(model):
        cache = prompt(model, IDS, IDS[::-1])
        held = getattr(cache.layers[layer], kind)
        setattr(cache.layers[layer], kind, held[[1, 0]])
        with pytest.raises(CaptureError, match="not recorded"):
            step(model, cache, [3], [4])


def test_a_step_that_fails_leaves_its_prompt(tiny):
    model = tiny("llama")

    def fail(*args):
        raise ValueError("on purpose")

    with capturing(model) as run:
        cache = prompt(model, IDS)
        branch = copy.deepcopy(cache)
        handle = model.model.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(ValueError, match="on purpose"):
            step(model, branch, [3])
        handle.remove()
        assert run.trace.only_stack.tokens == [str(i) for i in IDS]
        step(model, cache, [4])
    are_passes(model, run, [[*IDS, 4]])


# Searches


def searched(model, **options):
    ids = options.pop("ids", [IDS])
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1} | options
    options["suppress_tokens"] = [1]  # So that what is padding is padding.
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(torch.tensor(ids), **options)


def without_end(ids):
    """The tokens that ran: all but the last, without the padding after the end."""
    ids = ids.tolist()
    while ids[-1] == 1:
        ids.pop()
    return ids[:-1]


SEARCHES = {
    "beams": {"num_beams": 3},
    "all beams": {"num_beams": 4, "num_return_sequences": 4},
    "sampled beams": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
    "ending beams": {"num_beams": 4, "num_return_sequences": 3, "eos_token_id": list(range(3, 20))},
    "early": {"num_beams": 3, "eos_token_id": list(range(3, 20)), "early_stopping": True},
    "static": {"num_beams": 3, "cache_implementation": "static", "disable_compile": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "long lookup": {"prompt_lookup_num_tokens": 3, "max_new_tokens": 30},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_what_a_search_returns_has_its_trace(model, search):
    options = SEARCHES[search]
    if search == "long lookup" and type(model).__name__.startswith("Mistral"):
        pytest.skip("the tokens that a window forgot are not cropped")
    with capturing(model) as run:
        found = searched(model, **options)
    assert torch.equal(found, searched(model, **options))
    assert len(run.traces) == len(found)
    for trace, ids in zip(run.traces, found, strict=True):
        ran = without_end(ids)
        assert trace.only_stack.tokens == [str(i) for i in ran]
        is_one_pass(model, trace, ran)


def test_beams_of_several_texts(model):
    options = {"num_beams": 3, "num_return_sequences": 2, "ids": [IDS, [1] * 8 + FEW]}
    options["attention_mask"] = torch.tensor([[1] * 12, [0] * 8 + [1] * 4])
    with capturing(model) as run:
        found = searched(model, **options)
    assert torch.equal(found, searched(model, **options))
    for number, (trace, ids) in enumerate(zip(run.traces, found, strict=True)):
        ran = without_end(ids)[8 * (number > 1) :]
        assert trace.only_stack.tokens == [str(i) for i in ran]
        is_one_pass(model, trace, ran)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "num_return_sequences": 2},
        pytest.param(
            {"prompt_lookup_num_tokens": 2},
            marks=needs("5.18", "looks up nothing for some encoder-decoders"),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_searches_of_encoder_decoders(tiny, name, options):
    model = tiny(name)
    with capturing(model) as run:
        found = searched(model, decoder_start_token_id=2, **options)
    assert torch.equal(found, searched(model, decoder_start_token_id=2, **options))
    assert len(run.traces) == len(found)
    for trace, ids in zip(run.traces, found, strict=True):
        ran = without_end(ids)
        assert trace["decoder"].tokens == [str(i) for i in ran]
        if "encoder" in trace.stacks:
            is_one_pass(model, trace, ran, IDS)


def test_turns_of_a_chat_are_one_text(tiny):
    from transformers import DynamicCache

    model = tiny("llama")
    cache, ids = DynamicCache(config=model.config), IDS
    with capturing(model) as run:
        for more in ([], [40, 41], [50]):
            given = {"ids": [[*ids, *more]], "past_key_values": cache, "max_new_tokens": 5}
            ids = searched(model, **given)[0].tolist()
    assert run.trace.only_stack.tokens == [str(i) for i in ids[:-1]]
    is_one_pass(model, run.trace, ids[:-1])


def test_the_cache_of_a_search_goes_on(tiny):
    from transformers import DynamicCache

    model = tiny("llama")
    cache = DynamicCache(config=model.config)
    with capturing(model) as run:
        ids = searched(model, past_key_values=cache, prompt_lookup_num_tokens=3)[0].tolist()
        step(model, cache, [ids[-1]])
    assert run.trace.only_stack.tokens == [str(i) for i in ids]
    is_one_pass(model, run.trace, ids)


def test_guidance_runs_two_texts(tiny):
    """The unguided text goes on in a cache of its own, a step each time."""
    model = tiny("llama")
    with capturing(model) as run:
        ids = searched(model, guidance_scale=2.0, max_new_tokens=5)[0]
    guided, free = (trace.only_stack.tokens for trace in run.traces)
    assert guided == [str(int(i)) for i in ids[:-1]]
    assert free == guided[11:]
    is_one_pass(model, run.traces[1], [int(i) for i in free])


def test_an_assistant_drafts(tiny):
    model, assistant = tiny("llama"), tiny("llama", num_hidden_layers=1)
    for sampled in (False, True):
        options = {"assistant_model": assistant, "max_new_tokens": 20, "do_sample": sampled}
        with capturing(model) as run:
            found = searched(model, **options)
        assert torch.equal(found, searched(model, **options))
        ran = without_end(found[0])
        assert run.trace.only_stack.tokens == [str(i) for i in ran]
        is_one_pass(model, run.trace, ran)


def test_a_model_that_drafts_for_itself_is_refused(tiny):
    model = tiny("llama")
    with pytest.raises(CaptureError, match="assistant_early_exit"), capturing(model):
        searched(model, assistant_early_exit=1)


EDITS = {
    "identity": lambda: Scale(1.0),
    "head": lambda: Cut(layer=0, head=1),
    "scale": lambda: Scale(0.5, layer=1),
    "restrict": lambda: Restrict(TokenGraph.window(64, 3), layer=0),
    "tokens": lambda: Cut(layer=0, head=2, query=slice(5, None), key=[2, 13], renormalize=False),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("search", ["beams", "ending beams", "prompt lookup"])
def test_searches_under_edits(tiny, search, edit):
    """They return what a search without a cache returns, each step a pass of its own."""
    model = tiny("llama", dtype=torch.float64)
    with edited(model, EDITS[edit]()), capturing(model) as run:
        found = searched(model, **SEARCHES[search])
    plain = {**SEARCHES[search], "use_cache": False}
    if "prompt_lookup_num_tokens" in plain:
        plain = {"use_cache": False}
    with edited(model, EDITS[edit]()):
        assert torch.equal(found, searched(model, **plain))
    for trace, ids in zip(run.traces, found, strict=True):
        with edited(model, EDITS[edit]()):
            whole = capture(torch.tensor(without_end(ids)), model)
        for place, head in whole.only_stack.items():
            np.testing.assert_allclose(trace[place].to_dense(), head.to_dense(), atol=1e-5)


def test_decoders_of_one_encoding_each_have_its_encoder(tiny):
    model = tiny("t5", "eager")
    with capturing(model) as run, torch.no_grad():
        encoded = model.get_encoder()(torch.tensor([[5, 6, 7]]))
        for token in (4, 9):
            ids = torch.tensor([[0, token]])
            model(encoder_outputs=encoded, decoder_input_ids=ids, use_cache=False)
    for trace, token in zip(run.traces, (4, 9), strict=True):
        assert trace["encoder"].tokens == ["5", "6", "7"]
        assert trace["decoder"].tokens == ["0", str(token)]
