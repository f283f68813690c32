"""Compiled models are seen and edited as they are written, and are compiled again afterwards."""

from contextlib import ExitStack
from threading import Event, Thread

import numpy as np
import pytest
import torch
from torch._dynamo import eval_frame
from transformers import CompileConfig

from gattn import Cut, Scale, capture, capturing, edited, effect
from gattn.errors import CaptureError, EditError, ModelError

IDS = torch.tensor([[5, 17, 42, 17, 8]])
CUT = Cut(layer=1, head=0, key=0, renormalize=False)


@pytest.fixture(autouse=True)
def _anew():
    torch._dynamo.reset()
    before = eval_frame._stance
    yield
    assert eval_frame._stance is before
    torch._dynamo.reset()


class Backend:
    """A backend that counts what is compiled; copies of configurations share the count."""

    def __init__(self):
        self.frame_count = 0

    def __call__(self, graph, inputs):
        self.frame_count += 1
        return graph.forward

    def __deepcopy__(self, memo):
        return self


def forward(model, ids=IDS):
    with torch.no_grad():
        return model(ids)[0]


def compiled(model, how, backend, **options):
    """Compile a model, a part of it or each layer; give what is called."""
    options |= {"backend": backend}
    if how == "wrapped":
        return torch.compile(model, **options)
    if how == "in place":
        model.compile(**options)
    elif how == "wrapped layer":
        model.model.layers[0] = torch.compile(model.model.layers[0], **options)
    elif how == "layers":
        for layer in model.model.layers:
            layer.compile(**options)
    else:
        model.get_submodule(how).compile(**options)
    return model


WAYS = ["wrapped", "in place", "layers", "model", "model.layers.0.self_attn", "wrapped layer"]


@pytest.mark.parametrize(
    ("how", "is_warm"),
    [
        ("wrapped", True),
        ("layers", False),
        *(pytest.param(how, True, marks=pytest.mark.slow) for how in WAYS[1:]),
        pytest.param("wrapped", False, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_model_is_captured_and_edited_as_it_is_written(tiny, how, is_warm):
    plain = tiny("llama")
    attentions = capture(IDS[0], plain)
    with edited(plain, CUT):
        expected = forward(plain)
    assert not torch.equal(expected, forward(plain))
    counter = Backend()
    model = compiled(tiny("llama"), how, counter)
    if is_warm:
        forward(model)
        forward(model)
        assert counter.frame_count
    before = counter.frame_count
    with edited(model, CUT):
        assert torch.equal(forward(model), expected)
    found = capture(IDS[0], model)
    with capturing(model) as run:
        forward(model)
    for trace in (found, run.trace):
        assert list(trace.only_stack) == list(attentions.only_stack)
        for place, head in trace.only_stack.items():
            np.testing.assert_array_equal(head.attention, attentions[place].attention)
    assert counter.frame_count == before
    forward(model)
    if is_warm:
        assert counter.frame_count == before, "it was compiled once more"


@pytest.mark.parametrize("how", ["wrapped", "in place", "layers"])
@pytest.mark.slow
def test_a_model_compiled_whole_runs_compiled_again(tiny, how):
    """Under `fullgraph` a graph break, or running uncompiled, is an error of PyTorch's."""
    counter = Backend()
    model = compiled(tiny("llama"), how, counter, fullgraph=True)
    expected = forward(model)
    frames = counter.frame_count
    with capturing(model) as run:
        forward(model)
    assert len(run.trace.only_stack) == 8
    assert torch.equal(forward(model), expected)
    assert counter.frame_count == frames
    with pytest.raises(ZeroDivisionError), edited(model, CUT):
        raise ZeroDivisionError
    assert torch.equal(forward(model), expected)
    assert counter.frame_count == frames


@pytest.mark.slow
def test_effects_of_a_compiled_model_are_those_of_the_model(tiny):
    edits = [Cut(layer=layer, head=0) for layer in (0, 1)]
    expected = effect(IDS[0], edits, tiny("llama"), metric="kl", progress=False)
    model = compiled(tiny("llama"), "in place", "eager")
    forward(model)
    found = effect(IDS[0], edits, model, metric="kl", progress=False)
    np.testing.assert_array_equal(found["effect"], expected["effect"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_routes_nothing_is_seen_when_compiled(tiny):
    plain = tiny("bloom", "eager")
    expected = capture(IDS[0], plain)
    model = compiled(tiny("bloom", "eager"), "in place", "eager")
    forward(model)
    found = capture(IDS[0], model)
    for place, head in found.only_stack.items():
        np.testing.assert_array_equal(head.attention, expected[place].attention)


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.slow
def test_compiled_decoding_steps_are_recorded_and_edited(tiny, is_warm):
    """On a GPU transformers compiles these steps unasked where a cache is static."""
    counter = Backend()
    model, plain = tiny("llama"), tiny("llama")
    config = CompileConfig(backend=counter, mode=None, fullgraph=True)
    config._compile_all_devices = True
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    options |= {"cache_implementation": "static"}

    def generate(one, **more):
        return one.generate(IDS, **options, **more)

    if is_warm:
        generate(model, compile_config=config)
        assert counter.frame_count
    before = counter.frame_count
    with capturing(plain) as expected:
        generate(plain)
    with capturing(model) as run:
        ids = generate(model, compile_config=config)
    assert torch.equal(ids, generate(plain))
    assert run.trace.only_stack.tokens == [str(int(i)) for i in ids[0, :-1]]
    for place, head in run.trace.only_stack.items():
        np.testing.assert_array_equal(head.attention, expected.trace[place].attention)
    factor = Scale(-2.0, layer=1, head=1)
    with edited(plain, factor):
        wanted = generate(plain)
    with edited(model, factor):
        assert torch.equal(generate(model, compile_config=config), wanted)
    assert not torch.equal(wanted, ids)
    assert counter.frame_count == before
    assert torch.equal(generate(model, compile_config=config), ids)
    if is_warm:
        assert counter.frame_count == before
    else:
        assert counter.frame_count > before


def test_contexts_that_close_in_any_order_leave_the_compiler_as_it_was(tiny):
    model, before = tiny("llama"), eval_frame._stance
    first, second = edited(model, CUT), edited(model, Scale(2.0, layer=0))
    with ExitStack() as stack:
        first.__enter__()
        stack.enter_context(second)
        forward(model)
        first.__exit__(None, None, None)
        assert eval_frame._stance.stance == "force_eager"
        forward(model)
    assert eval_frame._stance is before


def test_a_stance_of_ones_own_that_ends_later_is_no_trap(tiny):
    model, before = tiny("llama"), eval_frame._stance
    context = edited(model, CUT)
    context.__enter__()
    forward(model)
    own = torch.compiler.set_stance("eager_on_recompile")
    context.__exit__(None, None, None)
    assert eval_frame._stance.stance == "eager_on_recompile"
    own.__exit__(None, None, None)
    assert eval_frame._stance.stance == "default"
    with edited(model, CUT):
        forward(model)
        assert eval_frame._stance.stance == "force_eager"
    assert eval_frame._stance is before


@pytest.mark.slow
def test_threads_edit_a_compiled_model_while_another_runs_it(tiny):
    counter = Backend()
    model = compiled(tiny("llama"), "in place", counter)
    expected = forward(model)
    frames = counter.frame_count
    edits = [Cut(layer=layer, head=0) for layer in (0, 1)]
    alone = []
    for edit in edits:
        with edited(model, edit):
            alone.append(forward(model))
    failures, done = [], Event()

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    def edit_it(number):
        for _ in range(6):
            with edited(model, edits[number]):
                assert torch.equal(forward(model), alone[number])

    def run_it():
        while not done.is_set():
            torch.testing.assert_close(forward(model), expected, rtol=0, atol=1e-5)

    threads = [Thread(target=guarded, args=[lambda n=n: edit_it(n)]) for n in range(2)]
    other = Thread(target=guarded, args=[run_it])
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert not failures
    assert torch.equal(forward(model), expected)
    assert counter.frame_count == frames


@pytest.mark.slow
def test_a_context_inside_of_compiled_code_is_refused(tiny):
    model = tiny("llama")

    @torch.compile(backend="eager")
    def run(ids):
        with edited(model, CUT):
            return model(ids)[0]

    with pytest.raises(ModelError, match="around the call of the function"):
        run(IDS)
    with edited(model, CUT):
        expected = forward(model)
    assert not torch.equal(expected, forward(model))


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["", "model.layers.0.mlp"])
def test_graphs_in_place_of_code_are_refused_with_the_reason(tiny, part):
    model = tiny("llama")
    if part:
        layer = model.model.layers[0]
        layer.mlp = torch.jit.trace(layer.mlp, torch.randn(1, 5, 32))
    else:
        model = torch.jit.trace(Logits(model), IDS)
    for call in (lambda: capture(IDS[0], model), lambda: edited(model, CUT).__enter__()):
        with pytest.raises(ModelError, match="scripted, traced or exported"):
            call()
    exported = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(ModelError, match="is now a graph of operations"):
        edited(exported, CUT).__enter__()


def test_a_missing_layer_of_a_compiled_model_is_said(tiny):
    model = compiled(tiny("llama"), "in place", "eager")
    forward(model)
    with (
        pytest.raises(EditError, match="had nothing to edit in layer 7"),
        edited(model, Cut(layer=7)),
    ):
        forward(model)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_call_that_a_stance_of_ones_own_runs_compiled_is_refused(tiny, is_recorded):
    model = compiled(tiny("llama"), "layers", Backend())
    forward(model)
    with capturing(model) if is_recorded else edited(model, CUT):
        forward(model)
        with (
            torch.compiler.set_stance("default"),
            pytest.raises(CaptureError, match=r"showed no attention.*compiled"),
        ):
            forward(model)
        forward(model)
