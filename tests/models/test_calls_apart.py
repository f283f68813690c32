"""Calls at once, calls within calls and calls that break off are told apart."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier

import numpy as np
import pytest
import torch
from pairs import all_pairs, in_turn

from gattn import Cut, Scale, capture, capturing, edited
from gattn.errors import CaptureError, EditError
from gattn.models.decompose.decomposing import decompose
from gattn.models.edit.unmet import Unmet
from gattn.models.effects.copying import LayerCopies

TEXTS = [[5, 17, 42, 17, 8], [9, 3], [33, 21, 11], [7, 7, 7, 7], [12, 13, 14, 15, 16, 17], [59, 58]]
MODELS = [("llama", "sdpa"), ("bloom", "eager"), ("bert", "eager")]


def forward(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]))[0]


def at_once(way, works):
    """Run works in threads that have the present context variables."""
    if way == "to_thread":

        async def every():
            return await asyncio.gather(*(asyncio.to_thread(work) for work in works))

        return asyncio.run(every())
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(copy_context().run, work) for work in works]
        return [future.result() for future in futures]


def same(trace, other):
    """Assert that two traces have the same graphs, bit for bit."""
    assert list(trace.stacks) == list(other.stacks)
    for stack in trace.stacks:
        assert list(trace[stack]) == list(other[stack])
        for place, head in trace[stack].items():
            np.testing.assert_array_equal(head.attention, other[stack][place].attention)
            assert head.tokens == other[stack][place].tokens


# Threads that share contexts


@pytest.mark.parametrize("way", ["to_thread", "pool"])
@pytest.mark.parametrize(("name", "implementation"), MODELS)
def test_threads_that_share_an_edit_are_edited_each(tiny, name, implementation, way):
    model = tiny(name, implementation)
    plain = [forward(model, ids) for ids in TEXTS]
    cut = Cut(layer=1, head=0, key=0, renormalize=False)
    barrier = Barrier(len(TEXTS))

    def work(ids):
        barrier.wait()
        return [forward(model, ids) for _ in range(5)]

    with edited(model, cut):
        alone = [forward(model, ids) for ids in TEXTS]
        found = at_once(way, [lambda ids=ids: work(ids) for ids in TEXTS])
    for one, some, before in zip(alone, found, plain, strict=True):
        assert not torch.equal(one, before)
        assert all(torch.equal(one, other) for other in some)
    assert [torch.equal(forward(model, ids), one) for ids, one in zip(TEXTS, plain, strict=True)]


@pytest.mark.parametrize("way", ["to_thread", "pool"])
@pytest.mark.parametrize(("name", "implementation"), MODELS)
def test_threads_that_share_a_recording_have_a_trace_for_each_call(tiny, name, implementation, way):
    model = tiny(name, implementation)
    alone = {tuple(map(str, ids)): capture(ids, model) for ids in TEXTS}
    barrier = Barrier(len(TEXTS))

    def work(ids):
        barrier.wait()
        for _ in range(4):
            forward(model, ids)

    with capturing(model) as run:
        at_once(way, [lambda ids=ids: work(ids) for ids in TEXTS])
    assert len(run.traces) == 4 * len(TEXTS)
    for trace in run.traces:
        same(trace, alone[tuple(trace.only_stack.tokens)])
    counts = [tuple(trace.only_stack.tokens) for trace in run.traces]
    assert {counts.count(tokens) for tokens in alone} == {4}


def test_threads_generate_at_once_with_contributions_and_edits(tiny):
    model = tiny("llama")
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    scale = Scale(-2.0, layer=0, head=1)

    def generate(ids):
        return model.generate(torch.tensor([ids]), **options)[0].tolist()

    with edited(model, scale):
        texts = [generate(ids) for ids in TEXTS]
        alone = {}
        for ids in TEXTS:
            with capturing(model, contributions=True) as run:
                generate(ids)
            alone[tuple(run.trace.only_stack.tokens)] = run.trace
        with capturing(model, contributions=True) as run:
            found = at_once("pool", [lambda ids=ids: generate(ids) for ids in TEXTS])
    assert found == texts
    assert len(run.traces) == len(TEXTS)
    for trace in run.traces:
        expected = alone[tuple(trace.only_stack.tokens)]
        same(trace, expected)
        assert trace.generated == 4
        assert torch.equal(trace.logits, expected.logits)
        for place, head in trace.only_stack.items():
            np.testing.assert_array_equal(head.contribution, expected[place].contribution)


def test_edits_that_name_tokens_find_those_of_each_thread(tiny, tokenizer):
    model = tiny("llama", vocab_size=len(tokenizer))
    texts = [[4, 5, 6], [5, 4, 6, 8], [6, 9, 5, 4]]  # "the" is 4.
    places = [ids.index(4) for ids in texts]
    expected = []
    for ids, place in zip(texts, places, strict=True):
        with edited(model, Cut(layer=1, key=place, renormalize=False)):
            expected.append(forward(model, ids))
    with edited(model, Cut(layer=1, key="the", renormalize=False), tokenizer=tokenizer):
        works = [lambda ids=ids: [forward(model, ids) for _ in range(5)] for ids in texts]
        found = at_once("pool", works)
    for one, some in zip(expected, found, strict=True):
        assert all(torch.equal(one, other) for other in some)


def test_two_threads_may_meet_an_edit_at_the_same_time(tiny, monkeypatch):
    model, barrier, meet = tiny("llama"), Barrier(2), Unmet.meet

    def met(*given):
        meet(*given)
        barrier.wait(timeout=60)

    monkeypatch.setattr(Unmet, "meet", met)
    cut = Cut(layer=1, key=0, renormalize=False)
    with edited(model, cut):
        one, other = at_once("pool", [lambda: forward(model, TEXTS[0])] * 2)
    assert torch.equal(one, other)


def test_a_sequence_may_go_on_in_another_thread(tiny):
    model = tiny("llama", dtype=torch.float64)
    ids = TEXTS[0]
    expected = capture(ids, model)
    with capturing(model) as run, torch.no_grad():
        cache = model(torch.tensor([ids[:3]]), use_cache=True).past_key_values
        for token in ids[3:]:
            step = {"past_key_values": cache, "input_ids": torch.tensor([[token]])}
            at_once("pool", [lambda step=step: forward_on(model, step)])
    for place, head in run.trace.only_stack.items():
        np.testing.assert_allclose(head.to_dense(), expected[place].to_dense(), atol=1e-12)


def forward_on(model, step):
    with torch.no_grad():
        return model(**step)


def test_copies_of_layers_run_beside_another_thread(tiny):
    """The first copy's hidden states are for this thread's call alone."""
    model = tiny("llama")
    plain = [forward(model, ids) for ids in TEXTS]
    done, failures = [], []

    def see(layer, output):
        if layer == 0 and not done:  # In the middle of the copies' call.
            done.append(True)
            with ThreadPoolExecutor(1) as pool:
                found = pool.submit(lambda: [forward(model, ids) for ids in TEXTS]).result()
            failures.extend(not torch.equal(a, b) for a, b in zip(plain, found, strict=True))

    copies = LayerCopies(torch.tensor([TEXTS[0]]), model, None)
    outputs = []
    copies.run([[Cut(layer=0, head=0)]], lambda layer, output: outputs.append(output))
    again = []
    copies.run(
        [[Cut(layer=0, head=0)]],
        lambda layer, output: (again.append(output), see(layer, output)),
    )
    assert done == [True]
    assert failures == [False] * len(TEXTS)
    assert all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))


# Calls within calls


class Once:
    """A hook that calls a function at its first call, and keeps what that gave."""

    def __init__(self, function):
        self.function, self.found, self.is_done = function, None, False

    def __call__(self, *_):
        if not self.is_done:
            self.is_done = True
            self.found = self.function()


def inner_places(name):
    if name == "llama":
        return ["", "model", "model.layers.0", "model.layers.1.self_attn.q_proj", "lm_head"]
    return ["", "transformer.h.0", "transformer.h.1.self_attention.query_key_value", "lm_head"]


@pytest.mark.parametrize(
    ("name", "place", "is_pre"),
    [
        *(("llama", *case) for case in in_turn(inner_places("llama"), [True, False])),
        *(("bloom", *case) for case in in_turn(inner_places("bloom"), [False, True])),
    ],
)
def test_a_hook_may_call_the_model(tiny, name, place, is_pre):
    model = tiny(name, "eager")
    outer, within = TEXTS[0], TEXTS[4]
    cut = Cut(layer=1, head=0, key=0, renormalize=False)
    with edited(model, cut):
        expected, expected_within = forward(model, outer), forward(model, within)
    traces = [capture(outer, model), capture(within, model)]
    module = model.get_submodule(place)

    def run():
        hook = Once(lambda: forward(model, within))
        register = module.register_forward_pre_hook if is_pre else module.register_forward_hook
        handle = register(hook)
        found = forward(model, outer)
        handle.remove()
        return found, hook.found

    with edited(model, cut):
        found, found_within = run()
    assert torch.equal(found, expected)
    assert torch.equal(found_within, expected_within)
    with capturing(model) as recording:
        run()
    assert len(recording.traces) == 2
    for trace in recording.traces:
        same(trace, traces[trace.only_stack.tokens == [str(i) for i in within]])


def test_a_hook_may_call_the_model_between_attention_and_its_projection(tiny):
    model = tiny("llama")
    expected = [capture(ids, model, contributions=True) for ids in (TEXTS[0], TEXTS[4])]
    hook = Once(lambda: forward(model, TEXTS[4]))
    handle = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(hook, prepend=True)
    with capturing(model, contributions=True) as run:
        forward(model, TEXTS[0])
    handle.remove()
    assert len(run.traces) == 2
    for trace in run.traces:
        one = expected[trace.only_stack.tokens == expected[1].only_stack.tokens]
        same(trace, one)
        for place, head in trace.only_stack.items():
            np.testing.assert_array_equal(head.contribution, one[place].contribution)


def test_edits_that_name_tokens_find_those_of_a_call_within_a_call(tiny, tokenizer):
    model = tiny("llama", vocab_size=len(tokenizer))
    outer, within = [4, 5, 6, 8], [6, 9, 5, 4]
    expected = []
    for ids, key in ((outer, 0), (within, 3)):
        with edited(model, Cut(key=key, renormalize=False)):
            expected.append(forward(model, ids))
    hook = Once(lambda: forward(model, within))
    handle = model.model.layers[1].register_forward_pre_hook(hook)
    with edited(model, Cut(key="the", renormalize=False), tokenizer=tokenizer):
        found = forward(model, outer)
    handle.remove()
    assert torch.equal(found, expected[0])
    assert torch.equal(hook.found, expected[1])


def test_a_part_of_the_model_may_be_called_within_itself(tiny):
    model = tiny("llama")
    within = torch.tensor([TEXTS[4]])
    cut = Cut(layer=1, head=0, key=0, renormalize=False)
    with edited(model, cut), torch.no_grad():
        expected = model.model(within)[0]
        outer = forward(model, TEXTS[0])
    hook = Once(lambda: model.model(within)[0])
    handle = model.model.layers[0].register_forward_pre_hook(hook)
    with edited(model, cut):
        assert torch.equal(forward(model, TEXTS[0]), outer)
    handle.remove()
    assert torch.equal(hook.found, expected)


def test_a_part_that_runs_twice_in_a_call_is_refused(tiny):
    """Which of its layers come first cannot be told from layers of one module."""
    model = tiny("llama")
    again = Once(lambda: model.model(torch.tensor([TEXTS[4]])))
    handle = model.lm_head.register_forward_pre_hook(again)
    for context in (capturing(model), edited(model, Cut(layer=1))):
        again.is_done = False
        with pytest.raises(CaptureError, match="calls its attention 4 times in 2 layers"), context:
            forward(model, TEXTS[0])
    handle.remove()


def test_a_context_opened_in_a_hook_reads_calls_from_then_on(tiny):
    model = tiny("llama")
    expected = capture(TEXTS[4], model)
    hook = Once(lambda: capture(TEXTS[4], model))
    handle = model.model.layers[0].register_forward_hook(hook)
    cut = Cut(layer=1, head=3)
    with edited(model, cut):
        edited_alone = capture(TEXTS[4], model)
        outer = forward(model, TEXTS[0])
    hook.is_done = False
    forward(model, TEXTS[0])
    same(hook.found, expected)
    hook.is_done = False
    with edited(model, cut):
        assert torch.equal(forward(model, TEXTS[0]), outer)
    same(hook.found, edited_alone)
    handle.remove()


def test_what_reads_one_call_leaves_out_another_within_it(tiny):
    model = tiny("llama")
    options = {"read": lambda sublayer: sublayer.own(), "progress": False}
    expected, trace = decompose(TEXTS[0], model, **options), capture(TEXTS[0], model)
    for place in ("model.layers.0", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp"):
        hook = Once(lambda: forward(model, TEXTS[1]))
        handle = model.get_submodule(place).register_forward_hook(hook)
        found = decompose(TEXTS[0], model, **options)
        assert hook.is_done
        assert all(torch.equal(a, b) for a, b in zip(found.results, expected.results, strict=True))
        hook.is_done = False
        same(capture(TEXTS[0], model), trace)
        assert hook.is_done
        handle.remove()


# Calls that break off


class Break:
    """A hook that raises once, when it is told to."""

    def __init__(self, error):
        self.error = error

    def __call__(self, *_):
        error, self.error = self.error, None
        if error is not None:
            raise error


ERRORS = [KeyboardInterrupt(), RuntimeError("out of memory"), SystemExit(1)]


@pytest.mark.parametrize(
    ("place", "part", "error"),
    all_pairs(
        ["model.layers.1", "model", "model.layers.0.self_attn.o_proj"], ["", "model"], ERRORS
    ),
)
def test_after_a_call_broke_off_the_next_is_edited_and_recorded(tiny, place, part, error):
    model = tiny("llama")
    called = model.get_submodule(part)
    ids = torch.tensor([TEXTS[0]])
    cut = Cut(layer=1, head=0, key=0, renormalize=False)
    with edited(model, cut), torch.no_grad():
        expected = called(ids)[0]
    trace = capture(TEXTS[0], model, contributions=True)
    for context in (edited(model, cut), capturing(model, contributions=True)):
        handle = model.get_submodule(place).register_forward_pre_hook(Break(error))
        with context as run, torch.no_grad():
            with pytest.raises(type(error)):
                forward(model, TEXTS[4])
            handle.remove()
            if run is not None:
                assert run.traces == []
            found = called(ids)[0]
            if run is None:
                assert torch.equal(found, expected)
        if run is not None:
            assert len(run.traces) == 1
            same(run.trace, trace)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("options", [{}, {"contributions": True, "scores": True}], ids=str)
def test_a_step_that_broke_off_leaves_the_trace_as_it_was(tiny, error, options):
    """The prompt and the steps before stay, also where the step reached some layers."""
    from gattn import TopK

    model = tiny("llama", dtype=torch.float64)
    ids = TEXTS[4]
    keeps = [None, TopK(2)]
    for keep in keeps:
        expected = capture(ids[:5], model, keep=keep, **options)
        with capturing(model, keep=keep, **options) as run, torch.no_grad():
            cache = None
            for part in (ids[:4], ids[4:5]):
                inputs = {"input_ids": torch.tensor([part]), "past_key_values": cache}
                cache = model(**inputs, use_cache=True).past_key_values
            hook = model.model.layers[1].mlp.register_forward_pre_hook(Break(error))
            with pytest.raises(type(error)):
                model(torch.tensor([ids[5:]]), past_key_values=cache)
            hook.remove()
            broken = run.trace
            cache.crop(-1)
            model(torch.tensor([ids[5:]]), past_key_values=cache)
        assert broken.only_stack.tokens == [str(i) for i in ids[:5]]
        assert broken.generated == 1
        whole = capture(ids, model, keep=keep, **options)
        names = ["attention", "total_mass", *(["contribution", "score"] if options else [])]
        for found, wanted in ((broken, expected), (run.trace, whole)):
            for place, head in found.only_stack.items():
                assert torch.equal(head.graph.edge_index, wanted[place].graph.edge_index)
                for name in names:
                    np.testing.assert_allclose(
                        getattr(head, name), getattr(wanted[place], name), atol=1e-12
                    )


def test_an_interrupted_call_of_an_unrouted_model_leaves_no_trace(tiny):
    model = tiny("bloom", "eager")
    expected = capture(TEXTS[0], model)
    with capturing(model) as run:
        handle = model.transformer.h[1].register_forward_pre_hook(Break(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            forward(model, TEXTS[4])
        handle.remove()
        forward(model, TEXTS[0])
    same(run.trace, expected)


def test_an_edit_that_met_only_calls_that_broke_off_says_so(tiny):
    model = tiny("llama")
    handle = model.model.layers[0].register_forward_pre_hook(Break(KeyboardInterrupt()))
    with (
        pytest.raises(EditError, match=r"had nothing to edit.*every call of the model failed"),
        edited(model, Cut(layer=0)),
        pytest.raises(KeyboardInterrupt),
    ):
        forward(model, TEXTS[0])
    handle.remove()


def test_a_call_that_is_refused_at_its_end_leaves_the_traces_as_they_were(tiny):
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    ids = torch.tensor([TEXTS[0]])
    with capturing(model) as run, torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
        before = run.traces
        for more in ({}, {"past_key_values": cache}):
            attention.forward = lambda hidden_states, **_: (hidden_states, None)
            with pytest.raises(CaptureError, match="was not seen"):
                model(ids[:, :1], **more)
            del attention.forward
            (after,) = run.traces
            same(after, before[0])
        forward(model, TEXTS[1])
        assert len(run.traces) == 2
    same(run.traces[1], capture(TEXTS[1], model))


# Calls in which no attention is seen


def test_a_call_that_shows_no_attention_is_refused(tiny):
    model = tiny("llama")
    ids = torch.tensor([TEXTS[0]])
    hidden = model.model(ids)
    for context in (edited(model, Cut(layer=0, head=0, key=0)), capturing(model)):
        with context, torch.no_grad():
            model(ids)
            model.model.forward = lambda *_, **__: hidden
            for part in (model, model.model):
                with pytest.raises(CaptureError, match="showed no attention"):
                    part(ids)
            del model.model.forward
            model(ids)


def test_a_call_of_an_unrouted_model_that_shows_no_attention_any_more_is_refused(tiny):
    model = tiny("bloom", "eager")
    ids = torch.tensor([TEXTS[0]])
    hidden = model.transformer(ids)
    with edited(model, Cut(layer=0, head=0, key=0)), torch.no_grad():
        model(ids)
        model.transformer.forward = lambda *_, **__: hidden
        with pytest.raises(CaptureError, match="showed no attention"):
            model(ids)
        del model.transformer.forward


def test_a_call_of_a_part_without_the_edited_stack_is_not_refused(tiny):
    model = tiny("t5", "eager")
    ids = torch.tensor([TEXTS[0]])
    with torch.no_grad():
        plain, output = model.get_encoder()(ids), model(input_ids=ids, decoder_input_ids=ids)
        with edited(model, Cut(layer=0, head=0, key=0, stack="decoder", renormalize=False)):
            encoded = model.get_encoder()(ids)
            found = model(encoder_outputs=encoded, decoder_input_ids=ids)
    assert torch.equal(encoded[0], plain[0])
    assert not torch.equal(found.logits, output.logits)
