"""Models, configurations and transformers itself are as they were, whatever happened inside."""

import gc
import os
import signal
from contextlib import ExitStack

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gattn import Cut, ModelScore, Scale, Swap, capture, capture_many, capturing, edited
from gattn.errors import CaptureError, EditError, GattnError
from gattn.models.doors.attaching import _hooks
from gattn.models.watch.contexts import present

IDS = [5, 17, 42, 17, 8]
CUT = Cut(layer=0, head=1, key=0)
NAMES = ["llama", "bert", "gpt-oss", "t5", "bloom"]


def run(model, **options):
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = torch.tensor([IDS])
    with torch.no_grad():
        return model(torch.tensor([IDS]), **options)[0]


def state(model):
    """Everything of a model and of transformers that a context could have changed."""
    hooks = [
        len(value)
        for module in model.modules()
        for name, value in vars(module).items()
        if "hooks" in name
    ]
    return (
        AttentionInterface.get_interface,
        AttentionMaskInterface.__getitem__,
        dict(ALL_ATTENTION_FUNCTIONS.items()),
        dict(ALL_MASK_ATTENTION_FUNCTIONS.items()),
        [(n, m.config.to_dict()) for n, m in model.named_modules() if hasattr(m, "config")],
        [
            (name, getattr(module.config, "_attn_implementation", None))
            for name, module in model.named_modules()
            if hasattr(module, "config")
        ],
        hooks,
        [module.training for module in model.modules()],
        [key for module in model.modules() for key in vars(module)],
        [type(module).forward for module in model.modules()],
        torch.overrides._get_current_function_mode_stack(),
        torch.is_grad_enabled(),
        torch.random.get_rng_state().tolist(),
        present(),
    )


@pytest.fixture(params=NAMES)
def model(request, tiny):
    return tiny(request.param, "eager")


@pytest.fixture
def edit(model):
    stack = "encoder" if model.config.is_encoder_decoder else None
    return Cut(layer=0, head=1, key=0, stack=stack)


@pytest.fixture(autouse=True)
def unchanged(model):
    """Hold each test to leave all as it found it, and the output with it."""
    output, before = run(model), state(model)
    parameters = [parameter.clone() for parameter in model.parameters()]
    yield
    assert state(model) == before
    assert torch.equal(run(model), output)
    assert all(map(torch.equal, parameters, model.parameters()))
    assert model not in _hooks


def inputs_of(model):
    return {"input_ids": IDS} | (
        {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    )


def test_success(model, edit):
    capture(inputs_of(model), model)
    found = capture_many([inputs_of(model)] * 3, model, batch_size=2, progress=False)
    assert len(list(found)) == 3
    with edited(model, edit), capturing(model) as recording:
        run(model)
    assert len(recording.traces) == 1


def test_errors_of_every_kind(model, edit):
    for wrong in (
        lambda: capture({**inputs_of(model), "input_ids": [999]}, model),
        lambda: capture(inputs_of(model), model, heads=[9]),
        lambda: capture(inputs_of(model), model, layers=[9]),
        lambda: capture([], model),
    ):
        with pytest.raises(GattnError):
            wrong()
    with pytest.raises(EditError), edited(model, Cut(layer=9)):
        run(model)
    with pytest.raises(CaptureError), capturing(model):
        pass
    with pytest.raises(ZeroDivisionError), edited(model, edit), capturing(model):
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_inside_of_the_model(model, edit, error):
    part = list(model.modules())[-1]
    last = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]

    def fail(*_):
        raise error

    for place in {part, last}:
        for context in (edited(model, edit), capturing(model)):
            handle = place.register_forward_pre_hook(fail)
            with pytest.raises(error), context:
                run(model)
            handle.remove()


def test_an_error_inside_and_a_call_behind_it(model, edit):
    """What an interrupted call leaves in a context does not spoil its next call."""
    with edited(model, edit):
        expected = run(model)
    last = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]

    def fail(*_):
        raise KeyboardInterrupt

    with edited(model, edit), capturing(model) as found:
        handle = last.register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            run(model)
        handle.remove()
        assert torch.equal(run(model), expected)
    assert len(found.traces) in (1, 2)


def test_an_interrupt_of_the_process(model, edit):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)

    # Whoever starts in the background ignores it.
    known = signal.signal(signal.SIGINT, signal.default_int_handler)
    handle = list(model.modules())[-1].register_forward_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), edited(model, edit), capturing(model):
            run(model)
    finally:
        signal.signal(signal.SIGINT, known)
        handle.remove()


@pytest.mark.slow
def test_an_abandoned_generator(model):
    some = capture_many([inputs_of(model)] * 6, model, batch_size=2, progress=False)
    next(some)
    output = run(model)
    assert torch.equal(run(model), output)
    del some
    gc.collect()


def test_a_context_inside_of_an_abandoned_generator(model, edit):
    def outputs():
        with edited(model, edit):
            while True:
                yield run(model)

    plain = run(model)
    some = outputs()
    changed = next(some)
    assert not torch.equal(changed, plain)
    some.close()
    assert torch.equal(run(model), plain)


def test_contexts_within_contexts(model, edit):
    plain = run(model)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(edited(model, edit))
            stack.enter_context(capturing(model))
        assert not torch.equal(run(model), plain)


def test_generation(model, edit):
    if not model.can_generate():
        pytest.skip("it does not generate")
    options = {"max_new_tokens": 3, "do_sample": False, "decoder_start_token_id": 0}
    if not model.config.is_encoder_decoder:
        del options["decoder_start_token_id"]
    for beams in (1, 2):
        with edited(model, edit), capturing(model) as found:
            model.generate(torch.tensor([IDS]), num_beams=beams, **options)
        assert len(found.traces) == 1


def test_gradients(model, edit):
    def gradient():
        model.zero_grad()
        options = {"decoder_input_ids": torch.tensor([IDS])}
        options = options if model.config.is_encoder_decoder else {}
        model(torch.tensor([IDS]), **options)[0].square().mean().backward()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return found

    plain = gradient()
    with capturing(model):
        watched = gradient()
    assert all(map(torch.equal, plain, watched))
    assert any(bool(x.any()) for x in plain)
    with edited(model, Swap(weight=ModelScore(), stack=edit.stack)):
        swapped = gradient()
    for one, other in zip(plain, swapped, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    with edited(model, Scale(2.0, stack=edit.stack)):
        gradient()
