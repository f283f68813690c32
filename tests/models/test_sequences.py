"""Sequences that are followed through caches, in calls at once, within others and broken off."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
import pytest
import torch

from gattn import Cut, TopK, capture, capturing, edited
from gattn.errors import CaptureError, EditError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21, 11, 12, 13]
OTHERS = [IDS, [7, 11, 23, 40], IDS[::-1], [9, 3, 21]]


@torch.no_grad()
def step(model, cache, *rows):
    return model(torch.tensor(rows), past_key_values=cache, use_cache=True).past_key_values


def searched(model, ids=IDS, **options):
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None} | options
    options["suppress_tokens"] = [0]  # It would be padding in a later prompt.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(torch.tensor([ids]), **options)


def same(trace, ids, model):
    """Hold a trace to the capture of its tokens in one pass."""
    whole = capture(torch.tensor(ids), model)
    assert trace.only_stack.tokens == whole.only_stack.tokens
    for place, head in whole.only_stack.items():
        np.testing.assert_allclose(trace[place].to_dense(), head.to_dense(), atol=1e-5)


class Once:
    """A hook that calls a function at one of its calls."""

    def __init__(self, function, number=1):
        self.function, self.number = function, number

    def __call__(self, *_):
        self.number -= 1
        if not self.number:
            self.function()


def fail():
    raise ZeroDivisionError


SEARCHES = [
    {"num_beams": 3, "num_return_sequences": 2},
    {"prompt_lookup_num_tokens": 3, "max_new_tokens": 20},
]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_searches_at_once_keep_what_each_returned(tiny, options):
    model = tiny("llama")
    alone = [searched(model, ids, **options) for ids in OTHERS]
    with capturing(model) as run, ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(copy_context().run, lambda ids=ids: searched(model, ids, **options))
            for ids in OTHERS * 2
        ]
        found = [future.result() for future in futures]
    assert all(torch.equal(a, b) for a, b in zip(alone * 2, found, strict=True))
    expected = sorted(row.tolist()[:-1] for rows in found for row in rows)
    ran = [[int(token) for token in trace.only_stack.tokens] for trace in run.traces]
    assert sorted(ran) == expected
    for trace, ids in zip(run.traces, ran, strict=True):
        same(trace, ids, model)


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_what_came_after_the_prompt_of_a_search_is_generated(tiny, options):
    model = tiny("llama")
    with capturing(model) as run:
        found = searched(model, **options)
    for trace, ids in zip(run.traces, found, strict=True):
        assert trace.generated == len(ids) - 1 - len(IDS)
        assert {head.generated for head in trace.heads()} == {trace.generated}


def test_a_turn_after_a_search_counts_its_own_tokens(tiny):
    from transformers import DynamicCache

    model = tiny("llama")
    cache = DynamicCache(config=model.config)
    with capturing(model) as run:
        one = searched(model, past_key_values=cache, prompt_lookup_num_tokens=3)[0].tolist()
        assert run.trace.generated == 7
        more = [*one, 40, 41, 42]
        two = searched(model, more, past_key_values=cache)[0].tolist()
    assert run.trace.generated == len(two) - 1 - len(more)
    same(run.trace, two[:-1], model)


def test_a_call_within_a_search_has_its_own_trace(tiny):
    model = tiny("llama")
    expected = searched(model, num_beams=3)
    hook = Once(lambda: step(model, None, OTHERS[1]), number=4)
    handle = model.model.layers[1].register_forward_hook(hook)
    with capturing(model) as run:
        assert torch.equal(searched(model, num_beams=3), expected)
    handle.remove()
    ran = {tuple(int(token) for token in trace.only_stack.tokens) for trace in run.traces}
    assert ran == {tuple(expected[0].tolist()[:-1]), tuple(OTHERS[1])}
    for trace in run.traces:
        same(trace, [int(token) for token in trace.only_stack.tokens], model)


def test_a_search_within_a_call_has_its_own_traces(tiny):
    model = tiny("llama")
    expected = searched(model, OTHERS[1], num_beams=3)
    for context in (capturing(model), None):
        hook = Once(lambda: searched(model, OTHERS[1], num_beams=3))
        handle = model.model.layers[1].register_forward_hook(hook)
        if context is None:  # `capture` reads one call, and nothing within it.
            assert capture(IDS, model).only_stack.tokens == [str(i) for i in IDS]
        else:
            with context as run:
                step(model, None, IDS)
        handle.remove()
    ran = {tuple(int(token) for token in trace.only_stack.tokens) for trace in run.traces}
    assert ran == {tuple(IDS), tuple(expected[0].tolist()[:-1])}


def test_a_copy_goes_on_while_its_original_does(tiny):
    """Some layers of the original have one token more by then, and it may still fail."""
    model = tiny("llama")
    for fails in (False, True):
        with capturing(model, keep=TopK(64)) as run:
            cache = step(model, None, IDS)
            branch = copy.deepcopy(cache)
            hook = Once(lambda branch=branch: step(model, branch, [3]))
            handles = [model.model.layers[1].register_forward_pre_hook(hook)]
            if fails:
                handles.append(model.lm_head.register_forward_hook(Once(fail, number=2)))
                with pytest.raises(ZeroDivisionError):
                    step(model, cache, [4])
            else:
                step(model, cache, [4])
            for handle in handles:
                handle.remove()
        ran = [[int(token) for token in trace.only_stack.tokens] for trace in run.traces]
        assert ran == [IDS if fails else [*IDS, 4], [*IDS, 3]]
        for trace, ids in zip(run.traces, ran, strict=True):
            same(trace, ids, model)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_step_after_a_crop_that_fails_takes_nothing_back(tiny, layer):
    model = tiny("llama")
    with capturing(model) as run:
        cache = step(model, step(model, None, IDS), [3, 4, 5])
        saved = copy.deepcopy(cache)
        cache.crop(-2)
        handle = model.model.layers[layer].mlp.register_forward_hook(Once(fail))
        with pytest.raises(ZeroDivisionError):
            step(model, cache, [6])
        handle.remove()
        assert run.trace.only_stack.tokens == [str(i) for i in [*IDS, 3, 4, 5]]
        step(model, saved, [7])
    same(run.trace, [*IDS, 3, 4, 5, 7], model)


def test_a_reordered_step_that_fails_may_be_tried_again(tiny):
    model = tiny("llama")
    with capturing(model) as run:
        cache = step(model, None, IDS, IDS[::-1])
        cache.reorder_cache(torch.tensor([1, 1]))
        saved = copy.deepcopy(cache)
        handle = model.lm_head.register_forward_hook(Once(fail))
        with pytest.raises(ZeroDivisionError):
            step(model, cache, [3], [4])
        handle.remove()
        ran = [trace.only_stack.tokens for trace in run.traces]
        assert ran == [[str(i) for i in ids] for ids in (IDS, IDS[::-1])]
        step(model, saved, [5], [6])
    ran = [[int(token) for token in trace.only_stack.tokens] for trace in run.traces]
    assert sorted(ran) == sorted([IDS, [*IDS[::-1], 5], [*IDS[::-1], 6]])
    for trace, ids in zip(run.traces, ran, strict=True):
        same(trace, ids, model)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_decoders_of_one_encoded_text_go_on_each(tiny, name):
    model = tiny(name)
    with capturing(model) as run, torch.no_grad():
        encoded = model.get_encoder()(torch.tensor([IDS, IDS[::-1]]))
        tokens = [torch.tensor([[2, 7], [2, 9]]), torch.tensor([[2, 11], [2, 13]])]
        caches = [
            model(encoder_outputs=encoded, decoder_input_ids=some, use_cache=True).past_key_values
            for some in tokens
        ]
        for cache, new in zip(caches, ([[20], [21]], [[22], [23]]), strict=True):
            given = {"encoder_outputs": encoded, "past_key_values": cache}
            model(**given, decoder_input_ids=torch.tensor(new))
    decoded = [[2, 7, 20], [2, 9, 21], [2, 11, 22], [2, 13, 23]]
    for trace, ids, text in zip(run.traces, decoded, [IDS, IDS[::-1]] * 2, strict=True):
        assert list(trace.stacks) == ["encoder", "decoder", "cross"]
        names = [str(i) for i in text]
        assert trace["encoder"].tokens == trace["cross"].tokens == names
        inputs = {"input_ids": torch.tensor([text]), "decoder_input_ids": torch.tensor([ids])}
        whole = capture(inputs, model)
        for stack in trace.stacks:
            for place, head in whole[stack].items():
                found = trace[stack][place]
                np.testing.assert_allclose(found.to_dense(), head.to_dense(), atol=1e-5)


def test_rows_of_a_cache_keep_the_names_of_their_text(tiny):
    model = tiny("t5")
    with capturing(model) as run, torch.no_grad():
        encoded = model.encoder(torch.tensor([IDS[:6], IDS[6:]]))
        start = torch.tensor([[0], [0]])
        cache = model(encoder_outputs=encoded, decoder_input_ids=start).past_key_values
        cache.reorder_cache(torch.tensor([1, 0]))
        other = type(encoded)(last_hidden_state=encoded.last_hidden_state[[1, 0]])
        new = torch.tensor([[3], [4]])
        model(encoder_outputs=other, decoder_input_ids=new, past_key_values=cache)
    for trace, text in zip(run.traces, (IDS[:6], IDS[6:]), strict=True):
        names = [str(i) for i in text]
        assert trace["encoder"].tokens == trace["cross"].tokens == names


def test_a_position_from_the_end_is_that_of_the_prompt_in_each_beam(tiny):
    model = tiny("llama", dtype=torch.float64)
    options = {"num_beams": 3, "num_return_sequences": 3}
    with edited(model, Cut(layer=0, key=-1, renormalize=False)):
        found = searched(model, **options)
    with edited(model, Cut(layer=0, key=len(IDS) - 1, renormalize=False)):
        assert torch.equal(found, searched(model, **options))
    assert not torch.equal(found, searched(model, **options))
    with (
        pytest.raises(EditError, match="the end of its prompt is not known"),
        edited(model, Cut(key=-1)),
    ):
        searched(model, prompt_lookup_num_tokens=3)


def test_a_call_that_is_refused_leaves_no_trace(tiny):
    model = tiny("llama")
    handle = model.lm_head.register_forward_pre_hook(
        Once(lambda: model.model(torch.tensor([OTHERS[1]])))
    )
    with capturing(model) as run:
        with pytest.raises(CaptureError, match="calls its attention 4 times"):
            step(model, None, IDS)
        handle.remove()
        assert run.traces == []
        step(model, None, IDS)
    same(run.trace, IDS, model)
