"""Contexts see the calls of their own model, in their own thread or task, and nothing else."""

import asyncio
from contextlib import ExitStack
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from transformers import (
    AttentionInterface,
    BertConfig,
    CLIPConfig,
    CLIPModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    RemBertConfig,
)

from benchmarks import zoo
from gattn.errors import CaptureError, EditError, ModelError
from gattn.models.doors.attending import routes, unseen
from gattn.models.edit.edges import Cut, Scale
from gattn.models.edit.swap import Swap
from gattn.models.run.capturing import capture, capturing
from gattn.models.run.editing import edited
from gattn.models.run.opening import opened
from gattn.models.watch.contexts import Context
from gattn.weights import ScaledDotProduct

IDS = torch.tensor([[5, 17, 42, 17, 8]])
CUT = Cut(layer=0, head=0, key=0)


class Watch(Context):
    """Collects the calls that it is shown."""

    def __init__(self, calls, who=None):
        self.calls, self.who = calls, who

    def wants(self, place):
        return True

    def see(self, call, place, readings):
        self.calls.append(call if self.who is None else (self.who, type(call.module).__name__))


def forward(model):
    with torch.no_grad():
        return model(IDS)[0]


def run_all(*works):
    """Run each work in a thread of its own; raise what one of them raised."""
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# Seeing


def test_a_context_sees_each_layer_once_and_in_order(tiny):
    model, calls = tiny("llama"), []
    with opened(model, Watch(calls)):
        output = forward(model)
    assert [call.name for call in calls] == [f"model.layers.{i}.self_attn" for i in range(2)]
    assert [call.module for call in calls] == [layer.self_attn for layer in model.model.layers]
    assert all(call.is_causal and not call.is_scores for call in calls)  # by sdpa, without a mask
    assert calls[0].query.shape == (1, 4, 5, 8)
    assert calls[0].key.shape == calls[0].value.shape == (1, 2, 5, 8)
    assert calls[0].output.shape == (1, 5, 4, 8)
    assert torch.equal(output, forward(model))
    assert len(calls) == 2


def test_contexts_nest_and_each_sees_its_own_model(tiny):
    one, other, log = tiny("llama"), tiny("bert"), []
    with opened(one, Watch(log, "outer")):
        with opened(other, Watch(log, "inner")):
            forward(one)
            forward(other)
            with opened(one, Watch(log, "again")):
                forward(one)
        forward(other)
        assert len(log) == 2 + 2 + 4
        forward(one)
    llama, bert = "LlamaAttention", "BertSelfAttention"
    assert log[:4] == [("outer", llama)] * 2 + [("inner", bert)] * 2
    assert log[4:8] == [("outer", llama), ("again", llama)] * 2
    assert log[8:] == [("outer", llama)] * 2


def test_a_part_of_a_model_is_a_model(tiny):
    """A context on the inner model sees calls of the inner and of the whole one."""
    model, calls = tiny("llama"), []
    with opened(model.model, Watch(calls)):
        forward(model.model)
        forward(model)
    assert len(calls) == 4
    assert {call.name for call in calls} == {"layers.0.self_attn", "layers.1.self_attn"}


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_contexts_may_close_in_any_order(tiny, name):
    model = tiny(name, "eager")
    cut, scale = (CUT, Scale(3.0, layer=1, head=1))
    plain = forward(model)
    with edited(model, cut):
        only_cut = forward(model)
    with edited(model, scale):
        only_scaled = forward(model)
    assert not torch.equal(plain, only_cut)
    assert not torch.equal(plain, only_scaled)
    before = AttentionInterface.get_interface
    first, second = edited(model, cut), edited(model, scale)
    first.__enter__()
    second.__enter__()
    both = forward(model)
    assert not torch.equal(both, only_cut)
    first.__exit__(None, None, None)
    assert torch.equal(forward(model), only_scaled)
    second.__exit__(None, None, None)
    assert torch.equal(forward(model), plain)
    assert AttentionInterface.get_interface is before


@pytest.mark.parametrize(("name", "twin"), [("llama", "bert"), ("bloom", "bloom")])
def test_contexts_of_two_models_may_close_in_any_order(tiny, name, twin):
    one, other = tiny(name, "eager"), tiny(twin, "eager")
    before = AttentionInterface.get_interface
    with edited(other, CUT):
        expected = forward(other)
    first, second = edited(one, CUT), edited(other, CUT)
    with ExitStack() as stack:
        first.__enter__()
        stack.enter_context(second)
        forward(one)
        first.__exit__(None, None, None)
        assert AttentionInterface.get_interface is not before
        assert torch.equal(forward(other), expected)
    assert AttentionInterface.get_interface is before


def test_two_models_from_one_configuration_are_two(tiny):
    one = tiny("llama")
    other = type(one)(one.config).eval()
    plain = forward(other)
    with edited(one, CUT):
        changed = forward(one)
        assert torch.equal(forward(other), plain)
    assert not torch.equal(changed, forward(one))


# Threads and tasks


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_threads_edit_one_model_at_once_each_its_own_way(tiny, name):
    """Four threads with other edits each, and a fifth that runs the model as it is."""
    model = tiny(name, "eager")
    plain = forward(model)
    edits = [Cut(layer=layer, head=head) for layer in (0, 1) for head in (0, 3)]
    alone = []
    for edit in edits:
        with edited(model, edit):
            alone.append(forward(model))
    assert len({float(x.sum()) for x in [plain, *alone]}) == 5
    barrier = Barrier(5)

    def edit_it(number):
        barrier.wait()
        for _ in range(4):
            with edited(model, edits[number]):
                assert torch.equal(forward(model), alone[number])

    def leave_it():
        barrier.wait()
        for _ in range(8):
            assert torch.equal(forward(model), plain)

    before = AttentionInterface.get_interface
    run_all(*(lambda n=n: edit_it(n) for n in range(4)), leave_it)
    assert AttentionInterface.get_interface is before
    assert torch.equal(forward(model), plain)


def test_threads_capture_at_once_what_they_capture_alone(tiny):
    models = [tiny("llama"), tiny("gpt2"), tiny("bloom", "eager"), tiny("llama")]
    inputs = [[5, 6, 7, 8], [9, 8, 7], [3, 3, 3, 3, 3], [11, 12]]
    alone = [capture(ids, model) for ids, model in zip(inputs, models, strict=True)]
    barrier = Barrier(4)

    def work(number):
        barrier.wait()
        for _ in range(3):
            found = capture(inputs[number], models[number])
            (heads,), (twins,) = alone[number].stacks.values(), found.stacks.values()
            assert list(heads) == list(twins)
            for place, head in heads.items():
                assert (head.attention == twins[place].attention).all()

    run_all(*(lambda n=n: work(n) for n in range(4)))


def test_another_thread_does_not_see_a_context_and_that_is_said(tiny):
    model = tiny("llama")
    with pytest.raises(EditError, match="had nothing to edit"), edited(model, CUT):
        run_all(lambda: forward(model))
    with pytest.raises(CaptureError, match="was not called"), capturing(model):
        run_all(lambda: forward(model))


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_tasks_have_contexts_of_their_own(tiny, name):
    model = tiny(name, "eager")
    edits = [Cut(layer=0, head=head) for head in range(3)]
    alone = []
    for edit in edits:
        with edited(model, edit):
            alone.append(forward(model))
    plain = forward(model)

    async def work(number):
        with edited(model, edits[number]):
            for _ in range(3):
                await asyncio.sleep(0.001 * (3 - number))
                assert torch.equal(forward(model), alone[number])
        assert torch.equal(forward(model), plain)

    async def every():
        await asyncio.gather(*(work(n) for n in range(3)))

    asyncio.run(every())


def test_a_task_does_not_keep_what_the_task_that_began_it_has_closed(tiny):
    model = tiny("llama")
    plain = forward(model)

    async def child(begin):
        await begin.wait()
        with capturing(model):
            return forward(model)

    async def parent():
        begin = asyncio.Event()
        with edited(model, CUT):
            task = asyncio.create_task(child(begin))
            await asyncio.sleep(0)
            assert not torch.equal(forward(model), plain)
        begin.set()
        return await task

    assert torch.equal(asyncio.run(parent()), plain)


# Refusals


class Plain(torch.nn.Module):
    """Attention that asks nobody how."""

    def forward(self, hidden_states, **options):
        return hidden_states, None


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layer_that_is_not_seen_is_refused_and_the_others_keep_their_numbers(tiny, layer):
    """A graph in place of code does so: what it computes asks nobody."""
    model = tiny("llama", num_hidden_layers=3)
    attention = model.model.layers[layer].self_attn
    attention.forward = Plain().forward
    says = rf"attention of model\.layers\.{layer}\.self_attn was not seen"
    cut = edited(model, Cut(layer=1, head=0))
    for context in (capturing(model), cut):
        with pytest.raises(CaptureError, match=says), context:
            forward(model)
    del attention.forward
    with capturing(model) as run:
        forward(model)
    assert run.trace.only_stack.layers == [0, 1, 2]


@pytest.mark.parametrize(
    "missing", ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "encoder_attn"]
)
def test_a_stack_that_is_not_seen_beside_others_is_refused(tiny, missing):
    model = tiny("bart")
    some = [
        module
        for name, module in model.named_modules()
        if name.endswith(missing.rpartition(".")[2]) and missing.partition(".")[0] in name
    ]
    assert len(some) >= 2
    for attention in some:
        attention.forward = Plain().forward
    inputs = {"input_ids": torch.arange(5, 9)[None], "decoder_input_ids": torch.arange(5, 8)[None]}
    for context in (capturing(model), edited(model, Cut(key=0, stack="cross"))):
        with pytest.raises(CaptureError, match="attn ran without showing its attention"), context:
            model(**inputs)
    for attention in some:
        del attention.forward
    with capturing(model) as run:
        model(**inputs)
    assert set(run.trace.stacks) == {"encoder", "decoder", "cross"}


def test_a_model_that_is_told_to_run_fewer_layers_has_fewer(tiny):
    model = tiny("llama", num_hidden_layers=3)
    model.config.num_hidden_layers = 2
    with capturing(model) as run:
        forward(model)
    assert run.trace.only_stack.layers == [0, 1]


def test_a_model_without_numbers_is_refused(tiny):
    model = tiny("llama").to("meta")
    with pytest.raises(ModelError, match=r"'meta'.*load its weights"):
        capture([5, 6], model)


def test_models_that_route_are_told_from_others(tiny):
    assert [routes(tiny(name, "eager")) for name in ("llama", "bert", "t5", "bloom")] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (3, "not int: gattn.load_model"),
        ("gpt2", "not str: gattn.load_model"),
        (None, "not NoneType: gattn.load_model"),
        (lambda x: x, r"not a function: pass the module that it calls.*effect\(function, edits, "),
        (torch.relu, "not a function: pass the module that it calls"),
        (torch.nn.Linear, r"not the class Linear: create one, as in Linear\(...\)"),
    ],
)
def test_something_else_than_a_module_is_refused(model, says):
    with pytest.raises(ModelError, match=f"edited takes a torch.nn.Module, {says}"):
        edited(model, CUT).__enter__()
    with pytest.raises(ModelError, match=f"capturing takes a torch.nn.Module, {says}"):
        capturing(model).__enter__()


def test_texts_with_caches_of_their_own_are_kept_apart(tiny):
    model = tiny("llama")
    texts = [torch.tensor([[5, 6, 7, 8]]), torch.tensor([[15, 16, 17, 18]])]
    with torch.no_grad(), capturing(model) as run:
        caches = [model(text, use_cache=True).past_key_values for text in texts]
        model(torch.tensor([[3]]), past_key_values=caches[0])
    assert [trace.tokens for trace in run.traces] == [[*"5678", "3"], ["15", "16", "17", "18"]]


def test_a_batch_is_known_by_the_names_of_its_inputs(tiny):
    model = tiny("llama")
    ids = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    with torch.no_grad(), capturing(model) as run:
        model(position_ids=torch.arange(4)[None], input_ids=ids)
    assert [trace.tokens for trace in run.traces] == [list("5678"), list("1234")]


def test_padding_in_a_cache_from_before_is_told_by_the_mask(tiny):
    model = tiny("llama")
    ids = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    mask = torch.cat([(ids != 0).long(), torch.ones(2, 1, dtype=torch.long)], 1)
    positions = mask.cumsum(1)[:, -1:] - 1
    step = {"attention_mask": mask, "position_ids": positions}

    def run(*edits, where):
        first = mask[:, :-1].cumsum(1).sub(1).clamp_min(0)
        with torch.no_grad(), ExitStack() as stack:
            if edits and where == "all":
                stack.enter_context(edited(model, *edits))
            cache = model(ids, attention_mask=mask[:, :-1], position_ids=first, use_cache=True)
            if edits and where == "step":
                stack.enter_context(edited(model, *edits))
            cache = cache.past_key_values
            return model(torch.tensor([[9], [8]]), past_key_values=cache, **step).logits

    cut = Cut(layer=0, query=3, key=1)
    assert not torch.equal(run(where="all")[0], run(cut, where="step")[0])
    torch.testing.assert_close(run(cut, where="step")[0], run(cut, where="all")[0])
    assert torch.equal(run(where="all")[1], run(cut, where="step")[1])


def test_large_finite_masks_are_masks(tiny):
    model = tiny("llama")
    mask = torch.full((1, 1, 5, 5), -1e9).triu(1)
    with torch.no_grad(), capturing(model) as run:
        plain = model(IDS, attention_mask=mask).logits
    assert run.trace[0, 0].graph.num_edges == 15
    with torch.no_grad(), edited(model, Swap(weight=ScaledDotProduct())):
        torch.testing.assert_close(model(IDS, attention_mask=mask).logits, plain)


def test_images_and_texts_of_their_own_number_are_sequences_of_their_own():
    config = CLIPConfig(
        text_config={
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 37,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 37,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 20,
            "patch_size": 10,
        },
    )
    model = CLIPModel(config).eval()
    texts = torch.tensor([[5, 6, 7], [1, 2, 3], [7, 8, 9]])
    with torch.no_grad(), capturing(model) as run:
        model(pixel_values=torch.randn(2, 3, 20, 20), input_ids=texts)
    assert [list(trace.stacks) for trace in run.traces] == [["text"]] * 3 + [["vision"]] * 2
    vision = [trace["vision"][0, 0].graph.num_queries for trace in run.traces[3:]]
    assert vision == [5, 5]


def test_parts_that_do_not_route_are_named(tiny):
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 37}
    sizes |= {"num_attention_heads": 4}
    encoder, decoder = BertConfig(**sizes), RemBertConfig(**sizes, input_embedding_size=32)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = EncoderDecoderModel(config).eval()
    with (
        pytest.warns(UserWarning, match=r"decoder\.rembert.*\(RemBertSelfAttention\)"),
        torch.no_grad(),
        capturing(model) as run,
    ):
        model(input_ids=IDS, decoder_input_ids=IDS)
    assert list(run.trace.stacks) == ["encoder"]
    assert unseen(tiny("t5")) == unseen(tiny("llama")) == unseen(tiny("bloom", "eager")) == []


@pytest.mark.parametrize(
    ("family", "stack", "heads"),
    [("siglip", "vision_model.head", 4), ("bridgetower", "vision", 1)],
)
def test_torchs_own_attention_in_a_routed_model_is_seen_and_edited(family, stack, heads):
    specimen = zoo.specimen(family)
    assert any(isinstance(m, torch.nn.MultiheadAttention) for m in specimen.model.modules())
    with capturing(specimen.model) as run:
        specimen.run()
    assert run.traces[0][stack].head_numbers == list(range(heads))
    with capturing(specimen.model) as run, edited(specimen.model, Scale(0.5, stack=stack)):
        specimen.run()
    assert run.traces[0][stack][0, 0].to_dense().sum(1) == pytest.approx(0.5)


class Pooling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, hidden):
        found, self.weights = self.attention(hidden, hidden, hidden, average_attn_weights=False)
        return hidden + found


def test_torchs_own_attention_is_seen_in_a_model_that_routes_nothing(tiny):
    model = tiny("bloom", "eager")
    model.transformer.ln_f = Pooling().eval()
    with torch.no_grad(), capturing(model) as run:
        model(IDS)
    assert sorted(run.trace.stacks) == ["decoder", "encoder"]
    own = model.transformer.ln_f.weights[0]
    for head in range(2):
        np.testing.assert_allclose(run.trace["encoder"][0, head].to_dense(), own[head], atol=1e-6)
