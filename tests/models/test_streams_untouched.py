"""Taking layers apart leaves models, hooks, chance and memory as they were."""

import gc
import weakref
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import transformers
from torch import nn

import gattn
from gattn.analysis import alti
from gattn.errors import CaptureError
from gattn.models.doors.proof import plans
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.stream.again import twins
from gattn.models.stream.again.twins import Twin

WIDTH, HEADS, TOKENS = 8, 2, 5
Answer = namedtuple("Answer", ["hidden", "rest"])


class Attention(nn.Module):
    """Attention that gives its output as a tensor, or in whatever `answer` makes of it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        split = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*split)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer that multiplies two maps itself: it runs again to be understood."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.gate = (
            nn.LayerNorm(WIDTH),
            *(nn.Linear(WIDTH, WIDTH) for _ in range(2)),
        )

    def fed(self, x):
        x = self.norm2(x)
        return self.up(x) * self.gate(x).sigmoid()

    def attend(self, x):
        return self.attention(self.norm(x))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.fed(x)


class Model(nn.Module):
    def __init__(self, layer=Layer):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def made(layer=Layer, model=Model):
    torch.manual_seed(0)
    found = model(layer).double().eval().requires_grad_(False)
    x = torch.randn(1, TOKENS, WIDTH).double()
    return found, x, lambda: found(x)


def test_layers_run_again():
    """The other tests of this file are about copies: there are some."""
    model, _, run = made()
    count = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(twins, "copied", lambda *args, **named: count.append(1) or copied(*args))
        alti(run, model, progress=False)
    assert len(count) == len(model.layers)


def test_no_copy_of_a_layer_outlives_it(monkeypatch):
    model, _, run = made()
    known, made_copy = [], Twin.__init__

    def noting(self, *args, **named):
        known.append(weakref.ref(self))
        made_copy(self, *args, **named)

    monkeypatch.setattr(Twin, "__init__", noting)
    gc.collect()
    gc.disable()
    try:
        alti(run, model, progress=False)
        assert known
        assert not [one for one in known if one() is not None]
    finally:
        gc.enable()


def test_copies_share_parameters_of_whatever_a_layer_holds():
    model, _, _ = made()
    model.layers[0].owner = [model]
    twin = copied(model.layers[0])
    assert twin.owner[0] is not model
    assert twin.owner[0].layers[1].up.weight is model.layers[1].up.weight


@pytest.mark.parametrize("acts", [False, True])
def test_hooks_see_the_users_run_alone(acts):
    """Where a hook changes a layer's end, copies run with those hooks that do."""
    model, _, run = made()
    seen = []
    for layer in model.layers:
        layer.up.register_forward_hook(lambda *_: seen.append(1))
        if acts:
            layer.register_forward_hook(
                lambda module, given, result: seen.append(2) or 0.7 * result
            )
    run()
    expected = seen.copy()
    seen.clear()
    alti(run, model, progress=False)
    assert seen == expected


class Changing(nn.Module):
    """A norm that counts its runs, and draws a number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))
        self.count = 0

    def forward(self, x):
        self.runs += 1
        self.count += 1
        torch.rand(1)
        return nn.functional.layer_norm(x, (WIDTH,))


class Counted(Layer):
    def __init__(self):
        super().__init__()
        self.norm2 = Changing()


def test_norms_keep_their_state_and_chance():
    model, x, run = made(Counted)

    def of_runs(analyse):
        for layer in model.layers:
            layer.norm2.runs.zero_()
            layer.norm2.count = 0
        called = []
        torch.manual_seed(1)
        analyse(lambda: called.append(1) or model(x))
        expected = [(len(called), len(called))] * len(model.layers)
        assert [(int(y.norm2.runs), y.norm2.count) for y in model.layers] == expected
        return len(called), torch.get_rng_state()

    alti(run, model, progress=False)  # What a proof runs, it has run.
    count, state = of_runs(lambda run: alti(run, model, progress=False))
    assert count == 1
    _, expected = of_runs(lambda run: run())
    assert torch.equal(state, expected)


class Noting(Layer):
    def forward(self, x, log):
        log += 1
        return super().forward(x)


class Logging(Model):
    def forward(self, x):
        self.log = torch.zeros(1)
        for layer in self.layers:
            x = layer(x, self.log)
        return x


def test_what_a_layer_is_given_is_its_own():
    model, _, run = made(Noting, Logging)
    alti(run, model, progress=False)
    assert model.log == len(model.layers)


class Checking(Layer):
    """A layer that takes only numbers as large as those of the test."""

    def forward(self, x):
        x = x + self.attend(x)
        assert x.abs().max() < 2.2
        return x + self.fed(x)


def test_a_layer_that_takes_no_other_numbers_is_refused():
    model, x, run = made(Checking)
    x.clamp_(-1, 1)
    with pytest.raises(CaptureError, match=r"copy of the layer does not run.*AssertionError"):
        alti(run, model, progress=False)


FULL = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
]


class Running(Layer):
    """A layer that fails in one of its runs, if it is told to."""

    runs_left, failure = None, None

    def forward(self, x):
        if self.runs_left is not None:
            self.runs_left -= 1
            if not self.runs_left:
                raise self.failure
        return super().forward(x)


@pytest.mark.parametrize("failure", [*FULL, ValueError("no such number")], ids=str)
@pytest.mark.parametrize("run", [1, 2])
def test_full_memory_is_not_held_against_a_layer(monkeypatch, failure, run):
    """The first run of a copy is as it is, and those after it are on other numbers."""
    copies = []

    def failing(*args, **named):
        copies.append(copied(*args, **named))
        copies[-1].runs_left, copies[-1].failure = run, failure
        return copies[-1]

    monkeypatch.setattr(twins, "copied", failing)
    model, _, call = made(Running)
    kind = CaptureError if isinstance(failure, ValueError) else type(failure)
    with pytest.raises(kind) as found:
        alti(call, model, progress=False)
    assert (found.value is failure) == (kind is not CaptureError)
    assert [one.runs_left for one in copies] == [0]


@pytest.mark.parametrize("failure", FULL, ids=str)
def test_full_memory_is_not_held_against_a_model(monkeypatch, failure):
    def fail(*_):
        raise failure

    monkeypatch.setattr(plans, "_of_copy", fail)
    model, _, run = made()
    with pytest.raises(type(failure)):
        alti(run, model, progress=False)


@dataclass
class Held:
    hidden: torch.Tensor


class Holding(Layer):
    def forward(self, x):
        return Held(super().forward(x))


class Taking(Model):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).hidden
        return x


def test_a_layer_that_gives_no_tensor_is_refused_for_that():
    model, _, run = made(Holding, Taking)
    with pytest.raises(CaptureError, match="gives no tensor, alone or in a tuple"):
        alti(run, model, progress=False)


ANSWERS = {
    "tuple": (lambda y: (y, None), lambda one: one[0]),
    "list": (lambda y: [None, y], lambda one: one[1]),
    "dict": (lambda y: {"hidden": y}, lambda one: one["hidden"]),
    "named": (lambda y: Answer(y, None), lambda one: one.hidden),
    "output": (
        lambda y: transformers.modeling_outputs.BaseModelOutput(y),
        lambda one: one.last_hidden_state,
    ),
}


@pytest.mark.parametrize("form", ANSWERS)
def test_attention_may_answer_in_any_form(form):
    packed, taken = ANSWERS[form]

    class Packing(Attention):
        def forward(self, x):
            return packed(super().forward(x))

    class Unpacking(Layer):
        def attend(self, x):
            return taken(super().attend(x))

    model, x, run = made(Unpacking)
    for layer in model.layers:
        layer.attention.__class__ = Packing
    found = alti(run, model, progress=False)
    plain, _, run = made()
    assert torch.equal(model(x), plain(x))
    assert (found.to_numpy() == alti(run, plain, progress=False).to_numpy()).all()
    gattn.why(run, plain, layer=1, head=0)
