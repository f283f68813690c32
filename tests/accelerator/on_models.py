"""Live models on an accelerator: the CPU's numbers, and few waits for the device."""

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from chosen import accelerator
from on_device import by_gattn, on_device

import gattn
from gattn import (
    Ablate,
    All,
    Cut,
    Patch,
    Restrict,
    Scale,
    Swap,
    Threshold,
    TokenGraph,
    TopK,
    TopMass,
    Use,
    Without,
)

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
OTHER = [5, 18, 42, 7, 8, 33, 4, 3, 22]
LISTED = TokenGraph.from_edges(
    [(j, i) for i in range(9) for j in range(i + 1) if (i + j) % 3 != 1], 9
)
KEEPS = [All(), Threshold(0.05), TopK(3), TopMass(0.8)]
EAGER = {"gemma2", "gpt-oss"}  # softcaps and sinks


@pytest.fixture
def both(tiny):
    """A model, and its copy on the device."""

    def build(name, **options):
        implementation = "eager" if name in EAGER else "sdpa"
        if name == "gpt-oss":  # its experts' own kernel knows no float64
            options["experts_implementation"] = "eager"
        model = tiny(name, implementation, dtype=torch.float64, **options)
        return model, on_device(model)

    return build


CLOSE = 1e-5 if accelerator.NAME == "cuda" else 1e-9
"""Rotary models keep sines in float32 even in float64, and a GPU rounds these otherwise."""


def same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(as_array(one), as_array(other), atol=CLOSE, rtol=CLOSE)


def as_array(numbers):
    return numbers.detach().cpu() if isinstance(numbers, torch.Tensor) else numbers


def heads(trace):
    names = ("key", "query", "attention", "total_mass")
    return [getattr(head, name) for head in trace.heads() for name in names]


def logits(model, ids=IDS, edits=()):
    with torch.no_grad(), gattn.edited(model, *edits) if edits else nullcontext():
        return [model(torch.tensor([ids], device=model.device)).logits]


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", *sorted(EAGER), "bert", "modernbert"])
def test_captures(both, name, keep):
    plain, moved = both(name)
    options = {"keep": keep, "scores": True}
    same(heads(gattn.capture(IDS, moved, **options)), heads(gattn.capture(IDS, plain, **options)))


def test_captures_of_padded_batches_and_generated_text(both):
    plain, moved = both("llama")

    def found(model):
        traces = list(gattn.capture_many([IDS, IDS[:4], OTHER[2:]], model, progress=False))
        with gattn.capturing(model, keep=TopK(2)) as context:
            ids = torch.tensor([IDS], device=model.device)
            model.generate(ids, max_new_tokens=3, do_sample=False)
        return [numbers for trace in (*traces, context.trace) for numbers in heads(trace)]

    same(found(moved), found(plain))


EDITS = {
    "cut": lambda model: Cut(0, 1, query=5, key=2),
    "cut after normalizing": lambda model: Cut(1, 2, query=5, renormalize=False),
    "scale": lambda model: Scale(0.5, 1, query=5, key=[1, 2]),
    "window": lambda model: Restrict(TokenGraph.window(9, 3)),
    "listed": lambda model: Restrict(LISTED),
    "listed on the device": lambda model: Restrict(LISTED.to(model.device)),
    "use": lambda model: Use(next(iter(gattn.capture(IDS, model).heads())), 1),
    "other normalizer": lambda model: Swap(normalizer=gattn.Sparsemax()),
    "other weight": lambda model: Swap(weight=gattn.L1Distance(0.3)),
    "ablated": lambda model: Ablate("zero", 0, 2),
    "mean": lambda model: Ablate([IDS, OTHER], 0, 2),
    "patched": lambda model: Patch(OTHER, 0, 2),
    "patched attention": lambda model: Patch(OTHER, 1, 2, what="attention"),
    "patched values": lambda model: Patch(OTHER, 1, 2, what="values"),
    "patched outputs": lambda model: Patch(OTHER, 1, 2, what="outputs"),
    "without a head": lambda model: Without("0.1", "key", 1),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits(both, edit):
    for name in ("gpt2", "llama"):
        plain, moved = both(name)
        wanted = logits(plain, edits=[EDITS[edit](plain)])
        same(logits(moved, edits=[EDITS[edit](moved)]), wanted)
        assert not torch.equal(wanted[0], logits(plain)[0])


QUESTIONS = {
    "effect": lambda model: gattn.effect(IDS, [Cut(0, 0), Cut(1, 2)], model, progress=False),
    "estimate": lambda model: gattn.estimate(
        IDS, model, target=5, other=7, sample=5, progress=False
    ),
    "why": lambda model: gattn.why(IDS, model, layer=1, head=0, query=6, key=2).matrix(),
    "contributions": lambda model: gattn.analysis.contributions(IDS, model),
    "scores": lambda model: gattn.analysis.head_table(gattn.capture(IDS, model)),
    "weights": lambda model: gattn.head_weights(model, layer=1, head=0).ov.to_dense(),
}


def numbers_of(found):
    if hasattr(found, "select_dtypes"):
        found = found.select_dtypes("number").to_numpy(dtype=float, na_value=np.nan)
    return [np.asarray(as_array(found), dtype=float)]


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions(both, question):
    for name in ("gpt2", "llama"):
        plain, moved = both(name)
        same(*(numbers_of(QUESTIONS[question](model)) for model in (moved, plain)))


def test_circuits(both):
    plain, moved = both("gpt2")
    options = {"target": 5, "other": 7, "progress": False}
    one, other = (gattn.circuit(IDS, model, **options) for model in (moved, plain))
    assert len(one) == len(other) > 0
    same(numbers_of(one.table()), numbers_of(other.table()))


# Tensors are made on the device, as by torch.set_default_device


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "gemma2"])
def test_captures_where_the_device_is_the_default(both, name):
    plain, moved = both(name)
    for keep in (All(), TopK(3)):
        with torch.device(accelerator.NAME):
            found = heads(gattn.capture(IDS, moved, keep=keep, scores=True))
        same(found, heads(gattn.capture(IDS, plain, keep=keep, scores=True)))


@pytest.mark.parametrize("edit", EDITS)
def test_edits_where_the_device_is_the_default(both, edit):
    plain, moved = both("gpt2")
    with torch.device(accelerator.NAME):
        found = logits(moved, edits=[EDITS[edit](moved)])
    same(found, logits(plain, edits=[EDITS[edit](plain)]))


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_where_the_device_is_the_default(both, question):
    plain, moved = both("gpt2")
    with torch.device(accelerator.NAME):
        found = numbers_of(QUESTIONS[question](moved))
    same(found, numbers_of(QUESTIONS[question](plain)))


def read_in(model, keep):
    """List what a second capture reads."""
    ids = torch.tensor([IDS], device=model.device)
    gattn.capture(ids, model, keep=keep)
    accelerator.forget()
    gattn.capture(ids, model, keep=keep)
    return Counter(read.what for read in by_gattn(accelerator.reads))


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_one_transfer_a_layer_whatever_the_number_of_heads(both, keep):
    """A layer waits for what proves its reading, the number of edges, and the edges."""
    few, many = (read_in(both("gpt2", n_layer=layers)[1], keep) for layers in (2, 5))
    more = {"a copy to the host": 2 * 3, "nonzero": 3}
    if accelerator.NAME == "cuda":
        more = {accelerator.WAIT: sum(more.values())}
    assert many - few == more
    assert read_in(both("gpt2", n_layer=2, n_head=8)[1], keep) == few


def test_gradients_flow_through_edits(both):
    found = []
    for model in both("gpt2"):
        ids = torch.tensor([IDS], device=model.device)
        with gattn.edited(model, Scale(0.5, 0), Restrict(LISTED, 1)):
            model(ids).logits[0, -1].square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(found[0]) > 10
    same(found[1], found[0])


class Attends(torch.nn.Module):
    """A model of no library, read by what its tensors do."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(3, 16, 16, generator=generator, dtype=torch.float64) / 2
        self.maps = torch.nn.Parameter(drawn)

    def forward(self, x):
        q, k, v = (x @ one for one in self.maps)
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in (q, k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).flatten(2)


def test_models_of_no_library():
    plain = Attends().eval()
    moved = on_device(plain)
    x = torch.randn(1, 7, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def found(model, x):
        with torch.no_grad(), gattn.capturing(model, keep=TopK(3)) as context:
            model(x)
        with torch.no_grad(), gattn.edited(model, Cut(0, 1, query=5)):
            return [*heads(context.trace), model(x)]

    same(found(moved, x.to(accelerator.NAME)), found(plain, x))


def test_surveys(both, tmp_path):
    plain, moved = both("gpt2")
    found = []
    for n, model in enumerate((plain, moved)):
        texts = [IDS, OTHER, IDS[:5]]
        options = {"out": tmp_path / str(n), "keep": TopK(2), "progress": False}
        survey = gattn.survey(texts, model, **options)
        found.append(numbers_of(survey.heads)[0])
    np.testing.assert_allclose(found[1], found[0], atol=1e-6, rtol=1e-6)
