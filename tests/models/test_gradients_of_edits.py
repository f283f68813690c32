"""Gradients through edits are those of finite differences, whatever looks at the same call.

Attention is edited, proved and recorded from one reading of a call; what one of them computes
without gradients must not serve another that needs them.
"""

from contextlib import ExitStack

import pytest
import torch
from pairs import in_turn
from torch import nn

from gattn import (
    Cut,
    ModelScore,
    Restrict,
    Scale,
    Sigmoid,
    SquaredDistance,
    Swap,
    TokenGraph,
    Use,
    capture,
    capturing,
    edited,
)

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
OTHERS = [44, 2, 9, 9, 30]
MODELS = {
    "gpt2": ("sdpa", "decoder"),
    "llama": ("sdpa", "decoder"),
    "gpt-oss": ("eager", "decoder"),
    "bert": ("eager", "encoder"),
    "bart": ("sdpa", "cross"),
    "bloom": ("eager", "decoder"),
}


def in_double(tiny, name):
    """A small model that computes in double precision throughout: RMS norms go by float32."""
    model = tiny(name, MODELS[name][0], torch.float64)
    if name == "gpt-oss":
        model.set_experts_implementation("eager")
    for module in list(model.modules()):
        for child, part in module.named_children():
            if "RMSNorm" in type(part).__name__:
                setattr(module, child, nn.LayerNorm(part.weight.shape, dtype=torch.float64))
    return model


def inputs_of(model):
    inputs = {"input_ids": torch.tensor([IDS])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([OTHERS])
    return inputs


def edit(kind, head, name, model):
    where = {"layer": 0, "head": head, "stack": MODELS[name][1]}
    edits = {
        "scale": lambda: Scale(0.5, **where),
        "scale to nothing": lambda: Scale(0.0, **where),
        "scale by one": lambda: Scale(1.0, **where),
        "scale some": lambda: Scale(-2.0, query=[2, 4], key=[0, 1, 2], **where),
        "zero": lambda: Cut(key=[0, 2], renormalize=False, **where),
        "zero all": lambda: Cut(renormalize=False, **where),
        "cut": lambda: Cut(key=[0, 2], **where),
        "restrict": lambda: Restrict(allowed(), **where),
        "use": lambda: Use(
            capture(inputs_of(model), model)[1, 0], **{**where, "head": head or range(4)}
        ),
        "sigmoid": lambda: Swap(normalizer=Sigmoid(), **where),
        "swap": lambda: Swap(weight=0.1 * SquaredDistance() + ModelScore(), **where),
        "scores": lambda: Swap(weight=ModelScore(), **where),
    }
    return edits[kind]()


def allowed():
    mask = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
    mask[:, 2] = False
    mask[4, :2] = False
    return TokenGraph.from_mask(mask)


def loss_of(model, inputs, edits, captures):
    with ExitStack() as stack:
        if captures == "around":
            stack.enter_context(capturing(model))
        stack.enter_context(edited(model, *edits))
        if captures == "inside":
            stack.enter_context(capturing(model))
        output = model(**inputs, use_cache=False)[0]
    fixed = torch.Generator().manual_seed(2)
    return (output * torch.randn(output.shape, generator=fixed, dtype=output.dtype)).sum()


def check(model, edits, captures, step=1e-5, rel=1e-5):
    """Compare the derivative along a random direction of all parameters, in its own share each."""
    inputs = inputs_of(model)
    model.zero_grad()
    loss_of(model, inputs, edits, captures).backward()
    generator = torch.Generator().manual_seed(1)
    for part in ("query or key", "rest"):
        directions = {
            name: torch.randn(one.shape, generator=generator, dtype=one.dtype)
            for name, one in model.named_parameters()
            if is_query_or_key(name) == (part == "query or key") and one.grad is not None
        }
        found = sum(float((model.get_parameter(n).grad * d).sum()) for n, d in directions.items())
        expected = difference(model, inputs, edits, captures, directions, step)
        assert found == pytest.approx(expected, rel=rel, abs=step / 10), part


def is_query_or_key(name):
    return any(word in name for word in ("q_proj", "k_proj", "query", "c_attn", "sinks"))


def difference(model, inputs, edits, captures, directions, step):
    losses = []
    with torch.no_grad():
        for shift in (step, -2 * step):
            for name, direction in directions.items():
                model.get_parameter(name).add_(direction, alpha=shift)
            losses.append(float(loss_of(model, inputs, edits, captures)))
        for name, direction in directions.items():
            model.get_parameter(name).add_(direction, alpha=step)
    return (losses[0] - losses[1]) / (2 * step)


KINDS = [
    "scale", "scale to nothing", "scale by one", "scale some", "zero", "zero all", "cut",
    "restrict", "use", "sigmoid", "swap", "scores",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "head", "captures"), in_turn(KINDS, [None, [1, 3]], [None, "around", "inside"])
)
def test_gradients_of_each_edit(tiny, kind, head, captures):
    model = in_double(tiny, "gpt2")
    check(model, [edit(kind, head, "gpt2", model)], captures)


@pytest.mark.parametrize("kind", ["scale", "zero", "scores"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt2"])
def test_gradients_of_edits_of_all_heads_of_other_models(tiny, name, kind):
    """Grouped queries, rotary positions, sinks, cross-attention, a model that is not routed."""
    model = in_double(tiny, name)
    # BLOOM's own softmax is of float32: steps are larger there, and noise and curvature tell.
    exact = {"step": 1e-3, "rel": 1e-3} if name == "bloom" else {}
    check(model, [edit(kind, None, name, model)], "inside", **exact)
