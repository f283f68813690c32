"""Models whose weights are elsewhere while they do not run, as by accelerate's `cpu_offload`."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gattn import Cut, capture, capturing, edited, effect
from gattn.errors import ModelError
from gattn.models.effects.copying import LayerCopies

IDS = [5, 17, 42, 17, 8]


def offload(model):
    """Do as accelerate does: weights are there only while their own module runs."""
    for module in model.modules():
        own = {name: x.data for name, x in module.named_parameters(recurse=False)}
        if own:
            _wrap(module, own)
    model._hf_hook = SimpleNamespace(execution_device=None)


def _wrap(module, own):
    forward = module.forward

    def loaded(*args, **kwargs):
        _put(module, own)
        try:
            return forward(*args, **kwargs)
        finally:
            _put(module, {name: x.to("meta") for name, x in own.items()})

    module.forward = loaded
    hook = SimpleNamespace(execution_device="cpu")
    module._hf_hook = SimpleNamespace(hooks=(hook,))  # As where several hooks follow each other.
    _put(module, {name: x.to("meta") for name, x in own.items()})


def _put(module, values):
    for name, value in values.items():
        module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)


def by_accelerate(model):
    pytest.importorskip("accelerate").cpu_offload(model, execution_device="cpu")


@pytest.mark.parametrize("how", [offload, by_accelerate])
@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("bloom", "eager")])
def test_an_offloaded_model_is_captured_and_edited(tiny, name, implementation, how):
    plain, model = tiny(name, implementation), tiny(name, implementation)
    how(model)
    assert model.device.type == "meta"
    expected = capture(IDS, plain)
    with capturing(model) as run, torch.no_grad():
        model(torch.tensor([IDS]))
    for found in (capture(IDS, model), run.trace):
        assert torch.equal(found.logits, expected.logits)
        for place, head in expected.only_stack.items():
            np.testing.assert_array_equal(found[place].attention, head.attention)
    cuts = [Cut(layer=layer, head=0) for layer in (0, 1)]
    effects = [effect(IDS, cuts, one, metric="kl", progress=False) for one in (plain, model)]
    np.testing.assert_array_equal(effects[0]["effect"], effects[1]["effect"])
    with torch.no_grad(), edited(plain, cuts[1]), edited(model, cuts[1]):
        inputs = torch.tensor([IDS])
        assert torch.equal(plain(inputs).logits, model(inputs).logits)
    outputs = [[], []]
    for one, some in zip((plain, model), outputs, strict=True):
        LayerCopies(IDS, one, None).run([[cuts[0]]], lambda _, x, some=some: some.append(x))
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize(
    ("contributions", "name"), [(True, "contribution"), ("value", "value_norm")]
)
def test_contributions_of_an_offloaded_model_are_those_of_the_model(tiny, contributions, name):
    model = tiny("llama")
    expected = capture(IDS, model, contributions=contributions)
    offload(model)
    found = capture(IDS, model, contributions=contributions)
    for place, head in expected.only_stack.items():
        np.testing.assert_allclose(getattr(found[place], name), getattr(head, name), rtol=1e-5)


def test_a_model_whose_weights_come_from_nowhere_is_refused(tiny):
    model = tiny("llama").to("meta")
    for call in (
        lambda: capture(IDS, model),
        lambda: effect(IDS, [Cut(layer=0)], model, metric="kl", progress=False),
        lambda: LayerCopies(IDS, model, None),
    ):
        with pytest.raises(ModelError, match="load its weights"):
            call()
