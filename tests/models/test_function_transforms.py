"""Models inside torch.func, whose tensors hide their numbers, are refused in words."""

from __future__ import annotations

import pytest
import torch
from torch import func, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, TOKENS = 8, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, bias=0.0):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5 + bias).softmax(-1) @ v


def made():
    torch.manual_seed(0)
    return Layer().eval(), torch.randn(2, TOKENS, WIDTH)


WAYS = {
    "grad": lambda model, x: func.grad(lambda x: model(x).sum())(x),
    "jvp": lambda model, x: func.jvp(model, (x,), (x,)),
    "vmap": lambda model, x: torch.vmap(model)(x[None]),
    "grad of parameters": lambda model, x: func.grad(
        lambda given: func.functional_call(model, given, (x,)).sum()
    )(dict(model.named_parameters())),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("context", [capturing, lambda model: edited(model, Cut(query=3, key=1))])
def test_transforms_are_refused_in_words_and_no_refusal_is_kept(way, context):
    model, x = made()
    with pytest.raises(CaptureError, match=r"inside torch\.(func.*autograd|vmap)"), context(model):
        WAYS[way](model, x)
    for given in (x, x[:1]):
        with context(model):
            model(given)


def over_heads(q, k, v):
    return torch.vmap(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, -1, -1)(q, k, v)


def over_texts(q, k, v):
    return torch.vmap(torch.nn.functional.scaled_dot_product_attention)(q, k, v)


@pytest.mark.parametrize("attend", [over_heads, over_texts])
@torch.no_grad()
def test_attention_inside_vmap_within_a_model_is_refused_in_words(attend):
    class Mapped(Layer):
        def forward(self, x):
            return attend(*self.qkv(x).unflatten(-1, (3, 4, 2)).unbind(2))

    model, x = Mapped().eval(), made()[1]
    says = r"Mapped attends inside torch\.vmap, which hides dimensions of its tensors"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(x)


def test_gradients_by_autograd_pass_through_edits():
    model, x = made()
    x.requires_grad_()
    with edited(model, Cut(query=3, key=1)):
        (found,) = torch.autograd.grad(model(x).square().sum(), x)
    bias = torch.zeros(TOKENS, TOKENS)
    bias[3, 1] = -torch.inf
    (wanted,) = torch.autograd.grad(model(x, bias).square().sum(), x)
    torch.testing.assert_close(found, wanted)


@torch.no_grad()
def test_other_parameters_by_functional_call_are_read():
    model, x = made()
    given = {name: 1.5 * value for name, value in model.named_parameters()}
    with capturing(model) as run:
        func.functional_call(model, given, (x,))
    q, k, _ = func.functional_call(
        model.qkv, {"weight": given["qkv.weight"], "bias": given["qkv.bias"]}, (x,)
    ).chunk(3, -1)
    oracle = (q @ k.mT / WIDTH**0.5).softmax(-1)[1].numpy()
    assert run.traces[1][0, 0].to_dense() == pytest.approx(oracle, abs=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("context", [capturing, lambda model: edited(model, Cut(query=3, key=1))])
def test_transforms_are_refused_where_the_same_inputs_were_proved_before(way, context):
    model, x = made()
    for given in (x, x[None]):
        with context(model):
            model(given)
    with pytest.raises(CaptureError, match=r"inside torch\.(func.*autograd|vmap)"), context(model):
        WAYS[way](model, x)


def test_a_routed_model_inside_a_transform_is_refused_in_words(tiny):
    model = tiny("llama")
    x = model.get_input_embeddings()(torch.arange(5)[None]).detach()

    def total(x):
        return model(inputs_embeds=x).logits.sum()

    with pytest.raises(CaptureError, match=r"inside torch\.func.*autograd"), capturing(model):
        func.grad(total)(x)


def test_a_model_that_transforms_itself_is_refused_in_words():
    class Force(Layer):
        def forward(self, x):
            return func.grad(lambda x: super(Force, self).forward(x).sum())(x)

    model, x = Force().eval(), made()[1]
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"inside torch\.func.*autograd"), capturing(model):
            model(x)
