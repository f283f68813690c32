"""Watches leave models as they were, and see only what is theirs."""

from contextlib import ExitStack
from threading import Barrier, Thread

import pytest
import torch
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gattn.models.capturing import capture
from gattn.models.interface import watching

IDS = torch.tensor([[5, 17, 42, 17, 8]])


def forward(model):
    with torch.no_grad():
        return model(IDS)[0]


def configurations(model):
    return {
        name: (module.config._attn_implementation, module.config.to_dict())
        for name, module in model.named_modules()
        if hasattr(module, "config")
    }


def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return [len(getattr(module, kind)) for module in model.modules() for kind in kinds]


def state(model):
    answer = AttentionInterface.get_interface
    return answer, configurations(model), hooks(model), dict(ALL_ATTENTION_FUNCTIONS.items())


def test_a_watch_sees_each_layer_once_and_in_order(tiny):
    model, calls = tiny("llama"), []
    with watching(model, calls.append):
        output = forward(model)
    assert [call.name for call in calls] == [f"model.layers.{i}.self_attn" for i in range(2)]
    assert [call.module for call in calls] == [layer.self_attn for layer in model.model.layers]
    assert {call.implementation for call in calls} == {"sdpa"}
    assert calls[0].query.shape == (1, 4, 5, 8)
    assert calls[0].key.shape == calls[0].value.shape == (1, 2, 5, 8)
    assert calls[0].output.shape == (1, 5, 4, 8)
    assert torch.equal(output, forward(model))
    forward(model)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt-oss"])
def test_nothing_is_left_behind(tiny, name):
    model = tiny(name, "eager")
    before = state(model)
    inputs = {"input_ids": [5, 6, 7]} | ({"decoder_input_ids": [3, 4]} if name == "t5" else {})
    capture(inputs, model)
    assert state(model) == before


def test_nothing_is_left_behind_after_an_error(tiny):
    model = tiny("llama")
    before = state(model)

    def fail(call):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watching(model, fail):
        forward(model)
    with pytest.raises(KeyboardInterrupt), watching(model, fail):
        raise KeyboardInterrupt
    assert state(model) == before
    with pytest.raises(LookupError):
        capture([5, 6], model, heads=[9])
    assert state(model) == before
    calls = []
    with watching(model, calls.append):
        forward(model)
    assert len(calls) == 2


def test_watches_nest_and_each_sees_its_own_model(tiny):
    one, other, log = tiny("llama"), tiny("bert"), []

    def note(who):
        return lambda call: log.append((who, type(call.module).__name__))

    with watching(one, note("outer")):
        with watching(other, note("inner")):
            forward(one)
            forward(other)
            with watching(one, note("again")):
                forward(one)
        forward(other)
        assert len(log) == 2 + 2 + 4
        forward(one)
    llama, bert = "LlamaAttention", "BertSelfAttention"
    assert log[:4] == [("outer", llama)] * 2 + [("inner", bert)] * 2
    assert log[4:8] == [("outer", llama), ("again", llama)] * 2
    assert log[8:] == [("outer", llama)] * 2


def test_watches_may_close_in_any_order(tiny):
    one, other = tiny("llama"), tiny("bert")
    before = AttentionInterface.get_interface
    with ExitStack() as outer:
        outer.enter_context(watching(one, lambda call: None))
        with watching(other, lambda call: None):
            assert AttentionInterface.get_interface is not before
        assert AttentionInterface.get_interface is not before
    assert AttentionInterface.get_interface is before


def test_threads_see_their_own_models_only(tiny):
    """Two threads watch two models at once, while a third runs both unwatched."""
    models = {"llama": tiny("llama"), "bert": tiny("bert")}
    alone = {name: forward(model) for name, model in models.items()}
    seen = {"llama": [], "bert": []}
    barrier, failures = Barrier(3), []

    def watch(name):
        with watching(models[name], lambda call: seen[name].append(type(call.module).__name__)):
            barrier.wait()
            for _ in range(5):
                failures.extend([name] * (not torch.equal(forward(models[name]), alone[name])))
            barrier.wait()

    def plain():
        barrier.wait()
        for name, model in models.items():
            failures.extend([name] * (not torch.equal(forward(model), alone[name])))
        barrier.wait()

    threads = [Thread(target=watch, args=[name]) for name in models] + [Thread(target=plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert seen == {"llama": ["LlamaAttention"] * 10, "bert": ["BertSelfAttention"] * 10}


def test_threads_capture_at_once_what_they_capture_alone(tiny):
    models = [tiny("llama"), tiny("gpt2"), tiny("bert"), tiny("llama")]
    inputs = [[5, 6, 7, 8], [9, 8, 7], [3, 3, 3, 3, 3], [11, 12]]
    alone = [capture(ids, model) for ids, model in zip(inputs, models, strict=True)]
    before = AttentionInterface.get_interface
    found = [None] * 4
    barrier = Barrier(4)

    def work(index):
        barrier.wait()
        for _ in range(3):
            found[index] = capture(inputs[index], models[index])

    threads = [Thread(target=work, args=[index]) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert AttentionInterface.get_interface is before
    for one, other in zip(alone, found, strict=True):
        (heads,), (twins,) = one.stacks.values(), other.stacks.values()
        assert list(heads) == list(twins)
        for place, head in heads.items():
            assert (head.attention == twins[place].attention).all()


def test_gradients_flow_through_a_watched_model(tiny):
    model = tiny("llama")

    def gradient():
        model.zero_grad()
        model(IDS)[0].square().mean().backward()
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    plain = gradient()
    with watching(model, lambda call: None):
        watched = gradient()
    assert torch.equal(plain, watched)
    assert bool((plain != 0).any())
